"""verl: its estimators, KL and rollout correction, as its trainer calls them, and its losses.

verl's side runs what `RayPPOTrainer.fit` runs, on padded float64 tensors: `apply_kl_penalty`,
`compute_rollout_correction_and_add_to_batch`, `compute_advantage`. rlpost's side is `enrich` with
the preset. Numbers are compared on the policy tokens that verl keeps.

The grid:

- every estimator of `ADV_ESTIMATOR_REGISTRY`, on rollouts without observations, with them, with
  responses that have no policy token, and with process rewards; with the defaults of `AlgoConfig`,
  and with each option that the estimator reads: γ and λ, `norm_adv_by_std_in_grpo`, weights of
  components
- every estimator with a KL penalty in the reward; some with each estimator of KL
- `kl_penalty` by each estimator, with log-probs near and far apart; the adaptive controller over
  three batches
- importance weights of tokens and sequences: truncated, masked, divided by their mean
- rejection by each of the eleven modes, with one bound and with two, and by three modes together
- every estimator after rejection of tokens, and after rejection of responses
- optimal token baselines with importance weights of tokens
- every named preset of `RolloutCorrectionConfig`; those of the bypass mode with their loss, a mean
  over the tokens that are left
- `compute_advantage_for_multi_trajectories`: grpo where several rows are one rollout
- policy losses: see `verl_losses`
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from peers import verl_loss_cases as verl_losses
from peers.comparison import Peer, PeerCase
from peers.peer_rollouts import PeerRollouts, rollouts

from rlpost.api import enrich
from rlpost.pipeline.options import Options
from rlpost.recipe.presets import correction_named, corrections, loss_preset, preset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from peers.comparison import Numbers

    Json = dict[str, Any]

NAME = "verl"
TRAINER = "verl.trainer.ppo.ray_trainer"
CORE = "verl.trainer.ppo.core_algos"
CORRECTION = "verl.trainer.ppo.rollout_corr_helper"
ROLLOUTS = "verl.trainer.ppo.v1.utils"
CONFIG = "verl.trainer.config.algorithm"
PROTOCOL = "verl.protocol"

COMPONENTS = ("right", "form")
KL_ESTIMATORS = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
"""rlpost's names, and verl's."""
BY_STD = ({"norm_std": "none"}, {"norm_adv_by_std_in_grpo": False})
DISCOUNTED = ({"gamma": 0.9}, {"gamma": 0.9})
GRID: dict[str, list[tuple[Json, Json]]] = {
    "gae": [
        ({"gamma": 0.9, "lam": 0.5}, {"gamma": 0.9, "lam": 0.5}),
        ({"lam": 0.0}, {"lam": 0.0}),
    ],
    "grpo": [BY_STD],
    "grpo_vectorized": [BY_STD],
    "grpo_passk": [BY_STD],
    "reinforce_plus_plus": [DISCOUNTED],
    "reinforce_plus_plus_baseline": [],
    "remax": [],
    "rloo": [],
    "rloo_vectorized": [],
    "opo": [],
    "gpg": [],
    "gdpo": [({"component_weights": (2.0, 0.5)}, {"gdpo_reward_weights": [2.0, 0.5]})],
    "optimal_token_baseline": [],
    "tir_optimal_token_baseline": [],
}
"""Estimators; for each, sets of options: rlpost's, and those of `AlgoConfig`."""
RLPOST_NAMES = {"reinforce_pp": "reinforce_plus_plus"}
"""Estimators that the preset also has by rlpost's name, and verl's names of them."""


@dataclass(frozen=True)
class VerlStep:
    """A training step: what both sides compute advantages with."""

    estimator: str
    data: PeerRollouts
    options: Json = field(default_factory=dict)
    """Of rlpost's recipe."""
    config: Json = field(default_factory=dict)
    """Of verl's AlgoConfig."""
    kl: tuple[str, float] | None = None
    """KL estimator and coefficient of the penalty in the reward."""
    correction: Json | None = None
    """Of verl's RolloutCorrectionConfig."""


def ours(data: PeerRollouts, options: Json, *columns: str) -> Numbers:
    """Return what rlpost writes with the preset, padded."""
    recipe = preset(NAME, emit=columns, **options)
    if options["estimator"] == "grpo":  # the preset's joins rows as verl does, in another call
        data = data.with_(rollout_id=None)
    table, _ = enrich(data.table(), recipe, Options(device="cpu"))
    return {name: data.ragged(table[name]) for name in columns}


def our_step(step: VerlStep) -> Numbers:
    """Return the advantages and returns that rlpost writes."""
    options = {"estimator": step.estimator, **step.options}
    if step.estimator == "gdpo":
        options["reward_components"] = COMPONENTS
    if step.kl:
        options |= {"kl_estimator": step.kl[0], "kl_coef": step.kl[1]}
    return ours(step.data, options, "advantages", "returns")


def scores(data: PeerRollouts) -> torch.Tensor:
    """Return verl's token scores: process rewards, and the reward on the last token, [N, T]."""
    out = torch.zeros(len(data), max(data.lengths), dtype=torch.float64)
    if "token_rewards" in data.columns:
        out += data.padded("token_rewards")
    last = torch.tensor(data.lengths) - 1
    out[torch.arange(len(data)), last] += data.of_responses("reward")
    return out


def batch_of(data: PeerRollouts) -> Any:
    """Return the rollouts as verl's DataProto, before rewards and corrections."""
    tensors = {
        "token_level_scores": scores(data),
        "response_mask": data.mask,
        "old_log_probs": data.padded("old_log_probs"),
        "ref_log_prob": data.padded("ref_log_probs"),
        "rollout_log_probs": data.padded("infer_log_probs"),
        "values": data.padded("values"),
        "sum_pi_squared": data.padded("sum_pi_squared"),
        "prompts": torch.zeros(len(data), 1, dtype=torch.int64),
        "attention_mask": torch.cat([torch.ones(len(data), 1), data.real], 1).to(torch.int64),
    }
    names = {"prompt_id": "uid", **{name: name for name in COMPONENTS}}
    others = {theirs: data.columns[name].astype(object) for name, theirs in names.items()}
    return import_module(PROTOCOL).DataProto.from_dict(tensors=tensors, non_tensors=others)


def their_step(step: VerlStep) -> Numbers:
    """Return verl's advantages and returns, 0 on tokens that its mask leaves out."""
    batch = their_batch(step).batch
    mask = batch["response_mask"] > 0
    return {name: batch[name].where(mask, 0.0) for name in ("advantages", "returns")}


def their_batch(step: VerlStep) -> Any:
    """Return verl's DataProto as its trainer has it after `compute_advantage`."""
    trainer, core = import_module(TRAINER), import_module(CORE)
    batch = batch_of(step.data)
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
    if step.estimator == "remax":
        batch.batch["reward_baselines"] = step.data.of_responses("reward_baseline")
    if step.kl:
        controller = core.FixedKLController(step.kl[1])
        batch, _ = trainer.apply_kl_penalty(batch, controller, KL_ESTIMATORS[step.kl[0]])
    if step.correction is not None:
        batch = corrected(batch, step.correction)
    estimator = RLPOST_NAMES.get(step.estimator, step.estimator)
    components = {"gdpo_reward_keys": [*COMPONENTS]} if estimator == "gdpo" else {}
    config = import_module(CONFIG).AlgoConfig(adv_estimator=estimator, **components, **step.config)
    return trainer.compute_advantage(
        batch,
        adv_estimator=estimator,
        gamma=config.gamma,
        lam=config.lam,
        norm_adv_by_std_in_grpo=config.norm_adv_by_std_in_grpo,
        config=config,
    )


def corrected(batch: Any, options: Json) -> Any:
    """Return verl's batch with importance weights, and without rejected tokens in its mask."""
    config = import_module(CONFIG).RolloutCorrectionConfig(**options)
    correct = import_module(CORRECTION).compute_rollout_correction_and_add_to_batch
    return correct(batch, config)[0]


def step_case(what: str, step: VerlStep, *, fault: str = "") -> PeerCase:
    """Return the case of a training step."""
    name = f"{step.estimator}: {what}"
    mine, theirs = partial(our_step, step), partial(their_step, step)
    return PeerCase(name, mine, theirs, variant=step.estimator, fault=fault)


@cache
def _rollouts(estimator: str) -> dict[str, PeerRollouts]:
    """Return the rollouts of an estimator's cases; pass@k needs two responses in each group."""
    single = estimator != "grpo_passk"
    kinds: dict[str, Json] = {
        "text": {},
        "observations": {"turns": True},
        "empty responses": {"turns": True, "empty": True},
        "process rewards": {"turns": True, "process": True},
    }
    return {
        name: rollouts(seed, single=single, **options)
        for seed, (name, options) in enumerate(kinds.items())
    }


def _words(options: Json) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "defaults"


GAPS = (
    "handle_zero_tail of optimal_token_baseline uses a number of policy tokens as a column, so "
    "with observations the tail begins inside the longest response"
)


UNREAD = (
    "compute_advantage does not pass norm_adv_by_std_in_grpo to grpo_vectorized, which divides by "
    "the standard deviation in any case"
)


def _fault(estimator: str, kind: str, config: Json) -> str:
    """Return the fault of verl that a case shows; empty if there is none."""
    if estimator == "optimal_token_baseline" and kind != "text":
        return GAPS
    return UNREAD if estimator == "grpo_vectorized" and config else ""


def _estimator_cases() -> Iterator[PeerCase]:
    for estimator, grid in GRID.items():
        for kind, data in _rollouts(estimator).items():
            for options, config in [({}, {}), *grid]:
                step, fault = (
                    VerlStep(estimator, data, options, config),
                    _fault(estimator, kind, config),
                )
                yield step_case(f"{kind}, {_words(config)}", step, fault=fault)
            step, fault = VerlStep(estimator, data, kl=("k3", 0.5)), _fault(estimator, kind, {})
            yield step_case(f"{kind}, KL penalty k3", step, fault=fault)
    for estimator in ("gae", "grpo", "rloo", *RLPOST_NAMES):
        for kl in KL_ESTIMATORS:
            far = rollouts(11, turns=True, apart=60.0)
            yield step_case(
                f"far log-probs, KL penalty {kl}", VerlStep(estimator, far, kl=(kl, 0.05))
            )


REJECTIONS_BEFORE = {"tokens": ("token_k2", "0.05"), "responses": ("seq_mean_k3", "0.04")}


def _rejection_cases() -> Iterator[PeerCase]:
    for estimator in GRID:
        for what, (mode, bound) in REJECTIONS_BEFORE.items():
            data = _rollouts(estimator)["observations"]
            options = {"is_filter": [our_filter(mode, bound)]}
            config = {"rollout_is": None, "rollout_rs": mode, "rollout_rs_threshold": bound}
            kl = None if estimator == "gdpo" else ("k1", 0.1)
            step = VerlStep(estimator, data, options, kl=kl, correction=config)
            fault = GAPS if estimator == "optimal_token_baseline" else ""
            yield step_case(f"after rejection of {what}", step, fault=fault)


def _weighted_baseline_cases() -> Iterator[PeerCase]:
    """Yield cases of optimal token baselines that are weighed by truncated importance weights."""
    for estimator in ("optimal_token_baseline", "tir_optimal_token_baseline"):
        for cap in (2.0, 1.1):
            options = {"is_weight": "token", "is_cap": cap, "options": {"ratio_cap": cap}}
            config = {"rollout_is": "token", "rollout_is_threshold": cap}
            step = VerlStep(estimator, _rollouts(estimator)["text"], options, correction=config)
            yield step_case(f"importance weights up to {cap}", step)


def _rollout_cases() -> Iterator[PeerCase]:
    """Yield the case of rollouts with several rows; the reward of the last one counts."""
    data = rollouts(16)
    turn, seen = [], Counter[str]()
    names = data.columns["prompt_id"]
    for name in names:
        turn.append(seen[name])
        seen[name] += 1
    # Two rows of a group are one rollout, the second its last.
    ids = [f"{name}_{number // 2}" for name, number in zip(names, turn, strict=True)]

    def theirs() -> Numbers:
        batch = batch_of(data)
        batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
        keys = [f"{rollout}_{number % 2}" for rollout, number in zip(ids, turn, strict=True)]
        compute = import_module(ROLLOUTS).compute_advantage_for_multi_trajectories
        batch = compute(batch, keys, "grpo", config=import_module(CONFIG).AlgoConfig())
        return {name: batch.batch[name] for name in ("advantages", "returns")}

    several = data.with_(rollout=np.array(ids))
    options = {"estimator": "grpo", "columns": {"rollout": "rollout"}}
    mine = partial(ours, several, options, "advantages", "returns")
    yield PeerCase("grpo: rollouts of several rows", mine, theirs, variant="grpo")


def _kl_cases() -> Iterator[PeerCase]:
    def theirs(data: PeerRollouts, kind: str) -> Numbers:
        pair = data.padded("old_log_probs"), data.padded("ref_log_probs")
        return {"kl": import_module(CORE).kl_penalty(*pair, KL_ESTIMATORS[kind]) * data.mask}

    for apart in (1.0, 60.0):
        data = rollouts(12, turns=True, apart=apart)
        for kind in KL_ESTIMATORS:
            options = {"estimator": "grpo", "kl_estimator": kind}
            mine = partial(ours, data, options, "kl")
            yield PeerCase(
                f"KL {kind}: log-probs {apart:g} apart", mine, partial(theirs, data, kind)
            )


def _adaptive_cases() -> Iterator[PeerCase]:
    start, horizon, steps = 0.1, 60, 3

    def theirs(data: PeerRollouts, target: float) -> Numbers:
        controller = import_module(CORE).AdaptiveKLController(start, target, horizon)
        batch, parts = batch_of(data), []
        size = len(data) // steps
        for step in range(steps):
            rows = list(range(step * size, (step + 1) * size))
            part, _ = import_module(TRAINER).apply_kl_penalty(
                batch.select_idxs(rows), controller, "kl"
            )
            parts.append(part.batch["token_level_rewards"])
        return {"token_level_rewards": torch.cat(parts)}

    data = rollouts(13, steps=steps)
    for target in (0.01, 0.2, 5.0):
        options = {
            "estimator": "gae",
            "kl_coef": start,
            "kl_target": (target, horizon),
        }
        mine = partial(ours, data, options, "token_level_rewards")
        yield PeerCase(f"adaptive KL: target {target}", mine, partial(theirs, data, target))


WEIGHTS: list[tuple[Json, Json]] = [
    ({"is_cap": 2.0}, {}),
    ({"is_cap": 1.1}, {"rollout_is_threshold": 1.1}),
    ({"is_cap": 1e12}, {"rollout_is_threshold": 1e12}),
    ({"is_mask": (0.5, 2.0)}, {"rollout_is_threshold": "0.5_2.0"}),
]
LEVELS = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric", "seq_max": "max"}
REJECTIONS = (
    *(
        f"{level}_{kind}"
        for level in ("token", "seq_sum", "seq_mean")
        for kind in ("k1", "k2", "k3")
    ),
    "seq_max_k2",
    "seq_max_k3",
)
BOUNDS = {
    "k1": ("1.5", "0.6_1.2", "1e-15_1e15"),
    "k2": ("0.1", "0.01", "300"),
    "k3": ("0.1", "0.01", "1e9"),
}
"""No token reaches the last bounds: verl clamps to ±20."""


def our_filter(mode: str, bound: str) -> str:
    """Return rlpost's filter for a mode of rejection; one bound t of k1 stands for 1/t and t."""
    level, _, kind = mode.rpartition("_")
    if kind != "k1":
        return f"{LEVELS[level]}:{kind}::{bound}"
    low, _, high = bound.rpartition("_")
    logs = (math.log(x) for x in (float(low) if low else 1 / float(high), float(high)))
    return ":".join([LEVELS[level], kind, *map(repr, logs)])


def _correction_cases() -> Iterator[PeerCase]:
    def theirs(data: PeerRollouts, options: Json) -> Numbers:
        batch = corrected(batch_of(data), {"rollout_is": None, **options}).batch
        mask = batch["response_mask"]
        weights = (
            {"is_weight": batch["rollout_is_weights"] * mask} if "rollout_is" in options else {}
        )
        return {"final_response_mask": mask, **weights}

    def case(name: str, data: PeerRollouts, mine: Json, options: Json) -> PeerCase:
        columns = ["final_response_mask", *(["is_weight"] if "is_weight" in mine else [])]
        recipe = {"estimator": "grpo", **mine}
        both = partial(ours, data, recipe, *columns), partial(theirs, data, options)
        return PeerCase(f"correction: {name}", *both)

    for kind, apart in (("near", 1.0), ("far", 60.0)):
        data = rollouts(14, turns=True, empty=True, apart=apart)
        for level in ("token", "sequence"):
            for normalise in (False, True):
                for mine, options in WEIGHTS:
                    if kind == "far" and "is_mask" in mine:
                        continue  # no weight is left, and verl's metrics then divide by 0
                    added = {"is_weight": level + ":normalised" * normalise}
                    config = {
                        **options,
                        "rollout_is": level,
                        "rollout_is_batch_normalize": normalise,
                    }
                    yield case(f"{kind}, {_words(config)}", data, {**mine, **added}, config)
        for mode in REJECTIONS:
            for bound in BOUNDS[mode[-2:]]:
                config = {"rollout_rs": mode, "rollout_rs_threshold": bound}
                mine = {"is_filter": [our_filter(mode, bound)]}
                yield case(f"{kind}, {_words(config)}", data, mine, config)
    modes, bounds = ("token_k1", "seq_mean_k3", "seq_max_k2"), ("0.6_1.5", "0.2", "0.5")
    config = {"rollout_rs": ",".join(modes), "rollout_rs_threshold": ",".join(bounds)}
    config |= {"rollout_is": "token"}
    mine = {"is_filter": [our_filter(*pair) for pair in zip(modes, bounds, strict=True)]}
    mine |= {"is_weight": "token", "is_cap": 2.0}
    yield case("three modes and weights", rollouts(15, turns=True), mine, config)


def _gapped(policy: str) -> PeerRollouts:
    """Return rollouts in which every part of a named correction matters.

    Log-ratios of a response are 0; 1.2 and -1.2 in turn; 0.05 each; 0.8 at one token; 9e-4 at each
    of 1,200 tokens; 0.5 each; 0.4 at one token.
    """
    data, rng = rollouts(17), np.random.default_rng(17)
    own: list[np.ndarray] = []
    gaps: list[np.ndarray] = []
    for row in range(len(data)):
        kind, count = row % 7, 1200 if row % 7 == 4 else 2 * int(rng.integers(22, 36))
        alternating, one = np.resize([1.2, -1.2], count), np.arange(count) == 1
        gaps.append(
            [np.zeros(count), alternating, 0.05, one * 0.8, 9e-4, 0.5, one * 0.4][kind]
            + np.zeros(count)
        )
        own.append(-2.0 - rng.exponential(1.0, count))
    engine = [a - b for a, b in zip(own, gaps, strict=True)]
    columns = {"infer_log_probs": engine, policy: own}
    columns |= dict.fromkeys(("ref_log_probs", "values", "sum_pi_squared"), own)
    masks = [np.ones(len(x), np.int64) for x in own]
    keys = {name: data.columns[name] for name in ("prompt_id", "reward", *COMPONENTS)}
    return PeerRollouts({"response_mask": masks, **keys, **columns})


def _named_cases() -> Iterator[PeerCase]:
    """Yield a case of each named preset of RolloutCorrectionConfig."""
    for text in corrections():
        framework, _, name = text.partition(":")
        if framework == NAME:
            both = (_our_loss, _their_loss) if correction_named(text).loss else (_ours, _theirs)
            mine, theirs = (partial(function, name) for function in both)
            case = PeerCase(f"correction {name}", mine, theirs, variant=name)
            yield replace(case, part="loss") if correction_named(text).loss else case


def _config(name: str) -> Any:
    return getattr(import_module(CONFIG).RolloutCorrectionConfig, name)()


def _ours(name: str, policy: str = "old_log_probs") -> Numbers:
    """Return advantages, mask and weights with a named correction; weights are 1 if it has none."""
    options = {"correction": f"{NAME}:{name}", "estimator": "reinforce_plus_plus"}
    weighs = preset(NAME, **options).is_weight is not None
    columns = ("advantages", "final_response_mask", *(["is_weight"] if weighs else []))
    found = ours(_gapped(policy), options, *columns)
    return {"is_weight": found["final_response_mask"], **found}


def _theirs(name: str) -> Numbers:
    step = VerlStep("reinforce_plus_plus", _gapped("old_log_probs"), correction=vars(_config(name)))
    batch = their_batch(step).batch
    mask = batch["response_mask"]
    weights = batch.get("rollout_is_weights", mask) * mask
    return {
        "advantages": batch["advantages"] * mask,
        "final_response_mask": mask,
        "is_weight": weights,
    }


def _our_loss(name: str) -> Numbers:
    data, chosen = _gapped("log_probs"), f"{NAME}:{name}"
    found = _ours(name, "log_probs")
    rows = {
        "advantages": found["advantages"],
        "response_mask": found["final_response_mask"],
        "old_log_probs": data.padded("infer_log_probs"),
        "is_weight": found["is_weight"],
    }
    columns = {
        key: [x[:size].numpy() for x, size in zip(column, data.lengths, strict=True)]
        for key, column in rows.items()
    }
    chosen_loss = loss_preset(NAME, correction=chosen)
    total, gradient = verl_losses.differentiated(
        data.with_(ref_log_probs=None, **columns),
        chosen_loss.model_copy(update={"behaviour": "old"}),
    )
    recipe = preset(NAME, correction=chosen, estimator="reinforce_plus_plus")
    number = verl_losses.reported(data, chosen_loss, recipe)["facts"]["total_loss"]["all"]["mean"]
    return {"loss": torch.tensor(number, dtype=torch.float64), "gradient": gradient, "own": total}


def _their_loss(name: str) -> Numbers:
    data = _gapped("log_probs")
    data = data.with_(old_log_probs=data.columns["infer_log_probs"])
    batch = their_batch(VerlStep("reinforce_plus_plus", data)).batch
    sizes = zip(batch["advantages"], data.lengths, strict=True)
    advantages = [x[:size].numpy().astype(np.float32) for x, size in sizes]
    data = data.with_(advantages=advantages, ref_log_probs=None)
    config = {"rollout_correction": _config(name)}
    found = verl_losses.theirs(data, "bypass_mode", config, counts=False)
    return {"loss": found["loss"], "gradient": found["gradient"], "own": found["loss"]}


def cases() -> list[PeerCase]:
    """Return all cases."""
    return [
        *_estimator_cases(),
        *_rejection_cases(),
        *_weighted_baseline_cases(),
        *_rollout_cases(),
        *_kl_cases(),
        *_adaptive_cases(),
        *_correction_cases(),
        *_named_cases(),
        *verl_losses.cases(),
    ]


def uncovered() -> list[str]:
    """Return verl's estimators and policy losses that no case covers."""
    estimators = import_module(CORE).ADV_ESTIMATOR_REGISTRY
    missing = [f"estimator {name}" for name in estimators if name not in GRID]
    config = import_module(CONFIG).RolloutCorrectionConfig
    names = [name for name, x in vars(config).items() if isinstance(x, classmethod)]
    lacks = [name for name in names if f"{NAME}:{name}" not in corrections()]
    return [*missing, *(f"correction {name}" for name in lacks), *verl_losses.uncovered()]


PEER = Peer(NAME, "verl", cases, uncovered)
