"""verl's policy losses, as its trainer calls them.

verl's side runs `ppo_loss` of `verl.workers.utils.losses` on one mini-batch, with the counts that
the trainer passes: the policy loss, the KL loss and the aggregation of both. rlpost's side is
`rlpost loss` with the preset, and `rlpost.functional.policy_loss` for the gradient. The loss, its
gradient at each token, and verl's metrics are compared: `pg_clipfrac`, `pg_clipfrac_lower` and
`ppo_kl`, if `rlpost loss` counts the same.

The grid:

- each loss of `POLICY_LOSS_REGISTRY`, on rollouts without observations, with them, and with
  responses that have no policy token; with the defaults of `ActorConfig`, and with each option that
  the loss reads; with importance weights; with log-probs far apart
- each loss with each of the five aggregations, with a KL loss
- the aggregations with `loss_scale_factor`, and without the trainer's counts
- the KL loss by each estimator, near and far
- kl_cov and clip_cov on so many tokens that the default share selects several

clip_cov selects at random. In its cases the choice is forced, since all candidates are selected.
"""

from __future__ import annotations

import tempfile
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import torch
from loss_words import nested
from peers.comparison import PeerCase
from peers.peer_rollouts import rollouts

from rlpost.analysis.loss.run import loss as loss_of_files
from rlpost.functional import policy_loss
from rlpost.kernels.aggregate import BY_SIGN, OF_UNITS
from rlpost.losses.config import LossConfig
from rlpost.pipeline.options import Options
from rlpost.recipe.loss import ABOUT_AGGREGATIONS
from rlpost.recipe.presets import loss_preset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from peers.comparison import Numbers
    from peers.peer_rollouts import PeerRollouts

    from rlpost.recipe.loss import LossOptions
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
NAME = "verl"
LOSSES = "verl.workers.utils.losses"
WORKERS = "verl.workers.config"
TENSORS = "verl.utils.tensordict_utils"
CORE = "verl.trainer.ppo.core_algos"

KL_ESTIMATORS = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
CLIP = ({"pg_clip": 0.1}, {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1})
SIDES = (
    {"pg_clip": (0.1, 0.3)},
    {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
)
CANDIDATES = ({"share": 1.0}, {"clip_cov_ratio": 1.0})
BOUNDS = ({"cov": (0.1, 0.8)}, {"clip_cov_lb": 0.1, "clip_cov_ub": 0.8})


def _both(*pairs: tuple[Json, Json]) -> tuple[Json, Json]:
    """Return options that are set together."""
    mine, theirs = zip(*pairs, strict=True)
    return {k: x for one in mine for k, x in one.items()}, {
        k: x for one in theirs for k, x in one.items()
    }


GRID: dict[str, list[tuple[Json, Json]]] = {
    "vanilla": [({}, {}), CLIP, SIDES, ({"dual_clip": 1.2}, {"clip_ratio_c": 1.2})],
    "gspo": [({}, {}), CLIP, SIDES],
    "cispo": [({}, {}), CLIP, SIDES],
    "sapo": [
        ({}, {}),
        ({"tau_pos": 2.0, "tau_neg": 3.0}, {"tau_pos": 2.0, "tau_neg": 3.0}),
    ],
    "geo_mean": [({}, {}), CLIP, SIDES],
    "gpg": [({}, {})],
    "dppo_tv": [
        ({}, {}),
        (
            {"prob_mask": (0.05, 0.1)},
            {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1},
        ),
        ({"weight_cap": 1.2}, {"clip_ratio_c": 1.2}),
    ],
    "dppo_kl": [
        ({}, {}),
        (
            {"kl_mask": (0.01, 0.02)},
            {"clip_ratio_low": 0.01, "clip_ratio_high": 0.02},
        ),
        ({"weight_cap": 1.2}, {"clip_ratio_c": 1.2}),
    ],
    "dro": [({"beta": x}, {"dro_beta": x}) for x in (0.1, 2.0)],
    "clip_cov": [
        CANDIDATES,
        _both(CANDIDATES, BOUNDS),
        _both(CANDIDATES, BOUNDS, SIDES),
        ({"cov": (50.0, 60.0)}, {"clip_cov_lb": 50.0, "clip_cov_ub": 60.0}),
    ],
    "kl_cov": [
        ({}, {}),
        ({"share": 0.1}, {"kl_cov_ratio": 0.1}),
        ({"share": 0.25, "coef": 2.0}, {"kl_cov_ratio": 0.25, "ppo_kl_coef": 2.0}),
    ],
}
"""Losses; for each, sets of options: rlpost's, and those of verl's configs."""
LEFT_OUT = {"bypass_mode": "is held by the cases of the named corrections"}
_OWN_AGGREGATION = ("sapo", "geo_mean")
_OF_POLICY_LOSS = ("clip_cov", "kl_cov", "ppo_kl_coef", "dro_beta", "rollout_correction")
_COUNTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vanilla": (("clipped_low", "clipped_high"), ("clipped_dual",)),
    "gspo": (("clipped_low", "clipped_high"), ()),
    "cispo": (("clipped_low", "clipped_high"), ()),
    "dppo_tv": (("clipped_low", "clipped_high"), ("clipped_dual",)),
    "dppo_kl": (("clipped_low", "clipped_high"), ("clipped_dual",)),
    "clip_cov": (("selected",), ()),
}
"""The clip states that verl's pg_clipfrac and pg_clipfrac_lower count."""
_CLAMP = 20.0
_WITHOUT_KL = ("gpg", "kl_cov")  # no ppo_kl, or of |log r|


@cache
def mini_batch(seed: int, *, weights: bool = False, **options: Any) -> PeerRollouts:
    """Return rollouts with advantages, as files store them, and importance weights."""
    data, rng = rollouts(seed, **options), np.random.default_rng(seed + 1000)
    advantages = [
        (rng.normal(size=size) * (rng.random(size) < 0.9)).astype(np.float32)
        for size in data.lengths
    ]
    data = data.with_(advantages=advantages)
    if not weights:
        return data
    return data.with_(
        is_weight=[rng.uniform(0.2, 2.0, size).astype(np.float32) for size in data.lengths]
    )


def ours(data: PeerRollouts, loss: str, options: Json) -> Numbers:
    """Return the loss with the preset, its gradient, and what `rlpost loss` counts."""
    chosen = loss_preset(NAME, loss=loss, **nested(options))
    found = reported(data, chosen)
    means = {name: x["all"]["mean"] for name, x in found["facts"].items() if "mean" in x["all"]}
    numbers = {"loss": means["total_loss"]}
    if _has_kl(data, loss):
        numbers["ppo_kl"] = -means["log_ratio"]
    metrics = ("pg_clipfrac", "pg_clipfrac_lower")
    for name, states in zip(metrics, _COUNTED.get(loss, ()), strict=False):
        numbers[name] = sum(means[state] for state in states)
    gradient = {"gradient": differentiated(data, chosen)[1]}
    return gradient | {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}


def reported(data: PeerRollouts, chosen: LossOptions, recipe: Recipe | None = None) -> Json:
    """Return what `rlpost loss` reports."""
    with tempfile.TemporaryDirectory(prefix="rlpost-") as folder:
        path = Path(folder, "mini_batch.parquet")
        pq.write_table(data.table(), path)
        return loss_of_files(path, None, recipe, [LossConfig(chosen)], Options(device="cpu"))


def differentiated(data: PeerRollouts, chosen: LossOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss and its gradient at each token, padded."""

    def flat(name: str) -> torch.Tensor | None:
        column = data.columns.get(name)
        return None if column is None else torch.from_numpy(np.concatenate(column)).double()

    new = flat("log_probs")
    assert new is not None, "rollouts without log-probs"
    new.requires_grad_()
    loss = policy_loss(
        new,
        flat("old_log_probs"),
        flat("advantages"),
        torch.tensor([0, *np.cumsum(data.lengths)]),
        flat("response_mask").bool(),  # type: ignore[union-attr]
        loss=chosen,
        ref_log_probs=flat("ref_log_probs"),
        is_weight=flat("is_weight"),
    ).loss
    (slope,) = torch.autograd.grad(loss, new)
    rows = [*torch.split(slope, data.lengths)]
    return loss.detach(), data.with_(gradient=rows).padded("gradient")


def theirs(data: PeerRollouts, loss: str, config: Json, *, counts: bool = True) -> Numbers:
    """Return verl's loss of a mini-batch, its gradient and its metrics.

    Args:
        data: the mini-batch.
        loss: verl's name of the loss.
        config: fields of ActorConfig and of PolicyLossConfig.
        counts: the trainer passes the numbers of tokens and responses.
    """
    workers = import_module(WORKERS)
    of_loss = {k: x for k, x in config.items() if k.startswith(_OF_POLICY_LOSS)}
    actor = workers.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=workers.PolicyLossConfig(loss_mode=loss, **of_loss),
        **{k: x for k, x in config.items() if k not in of_loss},
    )
    # The model's log-prob of a token is at the position before it.
    rows = [torch.cat([x, x.new_zeros(1)]) for x in _rows(data, "log_probs")]
    log_probs = torch.cat(rows).requires_grad_()
    batch = _tensors(data, counts=counts)
    total, metrics = import_module(LOSSES).ppo_loss(actor, {"log_probs": log_probs}, batch)
    (slope,) = torch.autograd.grad(total, log_probs)
    gradient = [x[:-1] for x in torch.split(slope, [size + 1 for size in data.lengths])]
    numbers: Numbers = {
        "loss": total.detach(),
        "gradient": data.with_(gradient=gradient).padded("gradient"),
    }
    wanted = ["ppo_kl"] if _has_kl(data, loss) else []
    wanted += ["pg_clipfrac", "pg_clipfrac_lower"] if loss in _COUNTED else []
    for name in wanted:
        if f"actor/{name}" in metrics:
            numbers[name] = torch.tensor(metrics[f"actor/{name}"].values[0], dtype=torch.float64)
    return numbers


def _has_kl(data: PeerRollouts, loss: str) -> bool:
    """Return whether verl's ppo_kl is the mean of k1, which it clamps to ±20 for some losses."""
    far = (data.padded("log_probs") - data.padded("old_log_probs")).abs().max() > _CLAMP
    return loss not in _WITHOUT_KL and not bool(far)


def _rows(data: PeerRollouts, name: str) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(row)).double() for row in data.columns[name]]


def _tensors(data: PeerRollouts, *, counts: bool) -> Any:
    """Return a mini-batch as verl's workers get it, without padding."""

    def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    columns = {
        "old_log_probs": "old_log_probs",
        "advantages": "advantages",
        "ref_log_prob": "ref_log_probs",
        "rollout_is_weights": "is_weight",
        "response_mask": "response_mask",
    }
    tensors = {
        key: jagged(_rows(data, name)) for key, name in columns.items() if name in data.columns
    }
    tensors["prompts"] = jagged([torch.zeros(1, dtype=torch.int64) for _ in data.lengths])
    tensors["responses"] = jagged([torch.zeros(n, dtype=torch.int64) for n in data.lengths])
    batch = import_module("tensordict").TensorDict(tensors, batch_size=[len(data)])
    numbers = (int(data.mask.sum()), len(data)) if counts else (None, None)
    import_module(TENSORS).assign_non_tensor(
        batch, dp_size=1, batch_num_tokens=numbers[0], global_batch_size=numbers[1]
    )
    return batch


def _case(
    what: str, data: PeerRollouts, loss: str, options: Json, config: Json, *, counts: bool = True
) -> PeerCase:
    name = f"loss {loss}: {what}"
    both = partial(ours, data, loss, options), partial(theirs, data, loss, config, counts=counts)
    return PeerCase(name, *both, part="loss", variant=loss)


def _words(config: Json) -> str:
    return ", ".join(f"{name} {value}" for name, value in config.items()) or "defaults"


def _far_cases() -> Iterator[PeerCase]:
    for loss, grid in GRID.items():
        mine, config = grid[0]
        far = _apart(mini_batch(30, turns=True))
        yield _case(f"far log-probs, {_words(config)}", far, loss, mine, config)


def _apart(data: PeerRollouts) -> PeerRollouts:
    """Return rollouts in which log-ratios exceed ±20, and means of responses 10."""
    new, old = ([*data.columns[name]] for name in ("log_probs", "old_log_probs"))
    for i in range(0, len(new), 3):
        new[i] = new[i] - 25.0 * (np.arange(len(new[i])) < 1 + i % 2)
    for i in range(1, len(old), 5):
        old[i] = old[i] - 12.0
    for i in range(2, len(old), 7):
        old[i] = old[i] - 22.0 * (np.arange(len(old[i])) < 1)
    return data.with_(log_probs=new, old_log_probs=old)


def _option_cases() -> Iterator[PeerCase]:
    kinds: dict[str, Json] = {
        "text": {},
        "observations": {"turns": True},
        "empty responses": {"turns": True, "empty": True},
        "weights": {"turns": True, "empty": True, "weights": True},
    }
    for loss, grid in GRID.items():
        for seed, (kind, options) in enumerate(kinds.items()):
            data = mini_batch(seed + 20, **options)
            for mine, config in grid:
                yield _case(f"{kind}, {_words(config)}", data, loss, mine, config)


def _large_cases() -> Iterator[PeerCase]:
    """Yield cases of so many tokens that the default share, 2e-4, selects several of them."""
    data = mini_batch(60, turns=True, steps=160).with_(step=None)
    strong = {"coef": 1000.0}, {"ppo_kl_coef": 1000.0}  # the share alone is the default
    yield _case("many tokens, default share", data, "kl_cov", *strong)
    yield _case("many tokens, all candidates", data, "clip_cov", *CANDIDATES)
    low, high = _around(data, int(2e-4 * int(data.mask.sum())))
    bounds = {"cov": (low, high)}, {"clip_cov_lb": low, "clip_cov_ub": high}
    yield _case("many tokens, as many candidates as are selected", data, "clip_cov", *bounds)


def _around(data: PeerRollouts, count: int) -> tuple[float, float]:
    """Return bounds between which so many tokens that verl does not clip have their covariance."""
    inside = data.mask.bool()
    columns = [data.padded(name)[inside] for name in ("advantages", "log_probs", "old_log_probs")]
    advantages, new, old = columns
    covariance = (advantages - advantages.mean()) * (new - new.mean())
    free = ((new - old).exp() - 1).abs() < 0.2
    ranks = covariance[free].sort(descending=True).values
    ends = (ranks[[place, place + 1]].mean() for place in (count + 4, 4))
    low, high = (round(float(end), 9) for end in ends)
    return low, high


_AGGREGATIONS = [how for how in ABOUT_AGGREGATIONS if how not in (BY_SIGN, *OF_UNITS)]  # of verl


def _aggregation_cases() -> Iterator[PeerCase]:
    data = mini_batch(40, turns=True, empty=True)
    for loss, grid in GRID.items():
        mine = {**grid[0][0], "kl_loss_coef": 0.3}
        config = {**grid[0][1], "use_kl_loss": True, "kl_loss_coef": 0.3}
        yield _case("KL loss", data, loss, mine, config)
        option = "kl_loss_aggregation" if loss in _OWN_AGGREGATION else "aggregation"
        for how in _AGGREGATIONS:
            both = {**mine, option: how}, {**config, "loss_agg_mode": how}
            yield _case(f"KL loss, {how}", data, loss, *both)
    for how in _AGGREGATIONS:
        mine, config = {"aggregation": how}, {"loss_agg_mode": how}
        plain = {**mine, "agg_rows": "valid"}
        yield _case(f"{how} without counts", data, "vanilla", plain, config, counts=False)
        if how == "seq-mean-token-sum-norm":
            mine, config = {**mine, "agg_length": 7}, {**config, "loss_scale_factor": 7}
            yield _case(f"{how}, loss_scale_factor 7", data, "vanilla", mine, config)


def _kl_cases() -> Iterator[PeerCase]:
    for kind, apart in (("near", 1.0), ("far", 60.0)):
        data = mini_batch(50, turns=True, apart=apart)
        for estimator, name in KL_ESTIMATORS.items():
            mine = {"kl_loss_coef": 0.5, "kl_loss_estimator": estimator}
            config = {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_loss_type": name}
            yield _case(f"KL loss {name}, {kind}", data, "vanilla", mine, config)


def cases() -> list[PeerCase]:
    """Return all cases."""
    return [
        *_far_cases(),
        *_kl_cases(),
        *_aggregation_cases(),
        *_large_cases(),
        *_option_cases(),
    ]


def uncovered() -> list[str]:
    """Return verl's policy losses that no case covers."""
    names = import_module(CORE).POLICY_LOSS_REGISTRY
    return [f"policy loss {name}" for name in names if name not in {*GRID, *LEFT_OUT}]
