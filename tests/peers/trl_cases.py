"""TRL: training steps of GRPOTrainer and RLOOTrainer on a tiny random model.

TRL's side is its trainers: prompts, completions and log-probs are those of a Qwen2 of some thousand
weights, rewards are random. rlpost's side reads what the trainer saw, with the preset.

The grid:

- advantages of a step of GRPOTrainer: each value of `scale_rewards`, one and two reward functions,
  weights, both orders of `multi_objective_aggregation`, with and without KL in the loss; components
  that are None for some completions, and completions that no function scores
- advantages of a step of RLOOTrainer, with and without KL in the reward
- importance ratios of each `vllm_importance_sampling_mode`, with one bound and with two, on random
  log-probs of the rollout engine and with tool masks
- the mean KL
- `_compute_loss` of GRPOTrainer, for each `loss_type`: in the second update on one batch, whose
  ratios are not 1, and on random log-probs and advantages with tool masks and an empty response.
  With `epsilon`, `epsilon_high`, `delta`, ratios of sequences, KL with and without its correction.
  The loss, the shares of clipped tokens and the mean KL are compared
- `get_soft_overlong_punishment`, around its limits
"""

from __future__ import annotations

import inspect
import math
import random
import re
import tempfile
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from loss_words import nested
from peers.comparison import Peer, PeerCase

from rlpost.analysis.loss.run import loss as run_loss
from rlpost.api import enrich
from rlpost.losses.config import LossConfig
from rlpost.pipeline.options import Options
from rlpost.recipe.presets import loss_preset, preset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from peers.comparison import Numbers
    from torch import Tensor

    Json = dict[str, Any]

NAME = "trl"
COMPONENTS = ("correct", "short")
PROMPTS, GENERATIONS, LONGEST = 3, 4, 6
_WORDS = 24
_PAD, _EOS = "<pad>", "<eos>"
_UNSCORED, _OF_POLICY = 0.4, 0.8  # shares of components, of tokens
_ON_CPU = Options(device="cpu")
SCALES: dict[str, Json] = {
    "group": {},
    "batch": {"norm_std": "batch"},
    "none": {"norm_std": "none"},
}
"""TRL's `scale_rewards`, and rlpost's options."""
BY_SEQUENCE = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
LOSSES: list[tuple[str | None, Json, Json]] = [
    (None, {}, {}),
    ("grpo", {}, {}),
    ("grpo", {"epsilon": 0.1, "epsilon_high": 0.3}, {"pg_clip": (0.1, 0.3)}),
    ("grpo", {"delta": 1.5}, {"dual_clip": 1.5}),
    ("grpo", {"beta": 0.1}, {"kl_loss_coef": 0.1}),
    (
        "grpo",
        {"beta": 0.1, "use_bias_correction_kl": False},
        {"kl_loss_coef": 0.1, "kl_loss_ratio": False},
    ),
    ("bnpo", {}, {}),
    ("dapo", {}, {}),
    ("dapo", {"beta": 0.1}, {"kl_loss_coef": 0.1}),
    ("dr_grpo", {}, {"agg_length": LONGEST}),
    ("gspo", BY_SEQUENCE, {}),
    (
        "gspo",
        {**BY_SEQUENCE, "epsilon": 3e-4, "epsilon_high": 4e-4},
        {"pg_clip": (3e-4, 4e-4)},
    ),
    ("luspo", {"importance_sampling_level": "sequence"}, {}),
    ("sapo", {}, {}),
    (
        "sapo",
        {"sapo_temperature_pos": 0.5, "sapo_temperature_neg": 2.0},
        {"tau_pos": 0.5, "tau_neg": 2.0},
    ),
    ("cispo", {}, {}),
    ("cispo", {"epsilon_high": 1.5}, {"pg_clip": (None, 1.5)}),
    ("vespo", {}, {}),
    (
        "vespo",
        {"vespo_k_pos": 1.0, "vespo_lambda_neg": 0.5},
        {"k_pos": 1.0, "lambda_neg": 0.5},
    ),
]
"""The preset's losses (None: the default), with options of GRPOConfig and of rlpost."""


@dataclass
class TrlUpdate:
    """One evaluation of a trainer's loss."""

    inputs: Json
    log_probs: Tensor
    loss: float
    metrics: Json


@dataclass
class TrlStep:
    """What a trainer saw."""

    trainer: Any
    rewards: list[tuple[float | None, ...]]
    """Of each completion, by reward function."""
    generated: Json = field(default_factory=dict)
    """The batch with its advantages."""
    updates: list[TrlUpdate] = field(default_factory=list)
    """On the batch, in order."""


# --- TRL's side ----------------------------------------------------------------------------------


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Save a tiny Qwen2 with random weights: the reference model is loaded by name."""
    folder = tempfile.TemporaryDirectory(prefix="rlpost-trl-")
    save_model(folder.name, _WORDS + 2)
    return folder


def save_model(folder: str, words: int) -> None:
    """Save a Qwen2 of some thousand weights with so many words."""
    transformers = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=words, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
        eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)


def tokenizer_of(words: int) -> Any:
    """Return a tokenizer of so many words: <pad>, <eos>, w0, w1, ..."""
    transformers, tokenizers = import_module("transformers"), import_module("tokenizers")
    names = {_PAD: 0, _EOS: 1} | {f"w{i}": i + 2 for i in range(words - 2)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token=_PAD))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_EOS, pad_token=_PAD
    )


def _recording(base: type) -> type:
    """Return a trainer class that keeps what it sees in its `step`."""

    class Recording(base):  # type: ignore[misc]
        step: TrlStep

        def _generate(self, prompts: Any) -> Any:
            parts = list(super()._generate(prompts))
            if getattr(self.args, "vllm_importance_sampling_correction", False):
                rng = random.Random(3)  # noqa: S311
                ids = parts[1]
                parts[2] = [[int(rng.random() < _OF_POLICY) for _ in row] for row in ids]
                parts[4] = [[rng.gauss(-3.2, 0.8) for _ in row] for row in ids]
                parts[2][0][0], parts[4][0][0] = 1, -60.0  # no clamp of log ratios at 40
                self.use_vllm = True  # as if vLLM had generated them
            return tuple(parts)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.log_probs: list[Tensor] = []
            batch = super()._generate_and_score_completions(inputs)
            self.step.generated = {**batch, "log_probs": self.log_probs}
            self.use_vllm = False
            return batch

        def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
            both = super()._get_per_token_logps_and_entropies(*args, **options)
            self.log_probs.append(both[0].detach())
            return both

        def _compute_loss(self, model: Any, inputs: Json) -> Any:
            loss = super()._compute_loss(model, inputs)
            self.step.updates.append(self.update(inputs, self.log_probs[-1], loss))
            return loss

        def update(self, inputs: Json, log_probs: Tensor, loss: Tensor) -> TrlUpdate:
            """Return an evaluation of the loss, with the metrics that it appended."""
            mode = "train" if self.model.training else "eval"
            metrics = {name: values[-1] for name, values in self._metrics[mode].items()}
            return TrlUpdate(dict(inputs), log_probs, float(loss.detach()), metrics)

    return Recording


def _rewards(seed: int, functions: int, *, unscored: bool) -> list[tuple[float | None, ...]]:
    """Return random rewards of each completion; of one group all are equal."""
    rng = random.Random(seed)  # noqa: S311
    number = PROMPTS * GENERATIONS
    rewards: list[tuple[float | None, ...]] = []
    for i in range(number):
        values: list[float | None] = [rng.randint(-8, 8) / 4 for _ in range(functions)]
        if i < GENERATIONS:
            values = [0.5] * functions
        if unscored:
            values = [None if rng.random() < _UNSCORED else x for x in values]
        rewards.append(tuple(values))
    if unscored:
        rewards[-1] = (None,) * functions
    return rewards


@cache
def _step(
    kind: str = "GRPO",
    functions: int = 1,
    unscored: bool = False,  # noqa: FBT001
    options: tuple[tuple[str, Any], ...] = (),
) -> TrlStep:
    """Train two updates on one batch, and return what the trainer saw.

    RLOOTrainer generates a second batch, by a policy that is no longer the reference.
    """
    trl, datasets = import_module("trl"), import_module("datasets")
    rewards = _rewards(len(options) + functions, functions, unscored=unscored)

    def function(index: int) -> Callable[..., list[float | None]]:
        def reward(completions: list[Any], **_: Any) -> list[float | None]:
            return [row[index] for row in rewards[: len(completions)]]

        reward.__name__ = COMPONENTS[index]
        return reward

    number = PROMPTS * GENERATIONS
    settings = {
        "output_dir": _folder().name, "max_steps": 3 if kind == "RLOO" else 2,
        "num_iterations": 2, "use_cpu": True,
        "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "learning_rate": 0.05, "lr_scheduler_type": "constant", "gradient_checkpointing": False,
        "num_generations": GENERATIONS, "per_device_train_batch_size": number,
        "steps_per_generation": 1, "max_completion_length": LONGEST, "seed": 0,
        "logging_strategy": "no", "shuffle_dataset": False,
        **({"vllm_importance_sampling_correction": False} if kind == "GRPO" else {}),
        **dict(options),
    }  # fmt: skip
    trainer = _recording(getattr(trl, f"{kind}Trainer"))(
        model=_folder().name,
        reward_funcs=[function(index) for index in range(functions)],
        args=getattr(trl, f"{kind}Config")(**settings),
        processing_class=tokenizer_of(_WORDS + 2),
        train_dataset=datasets.Dataset.from_dict({"prompt": [f"w{i}" for i in range(PROMPTS)]}),
    )
    transformers = import_module("transformers")
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.step = TrlStep(trainer, rewards)
    trainer.train()
    step: TrlStep = trainer.step
    return step


def _on_random_log_probs(trainer: Any, *, far: bool = False) -> TrlUpdate:
    """Evaluate a trainer's loss on random log-probs, advantages and masks.

    Args:
        trainer: has the options.
        far: one log ratio to the old policy is 25, and one to the reference 45.
    """
    rng = torch.Generator().manual_seed(7)
    lengths = torch.tensor([6, 1, 3, 6, 2, 5, 4, 6, 3, 1])
    shape = len(lengths), LONGEST
    real = (torch.arange(LONGEST) < lengths[:, None]).long()
    tools = (torch.rand(shape, generator=rng) < _OF_POLICY).long()
    tools[2], tools[1] = 0, 1
    old = -torch.rand(shape, generator=rng) * 2 - 0.5
    current = old + torch.randn(shape, generator=rng) * 0.4
    current[3, :2] = old[3, :2] + torch.tensor([1.0, -2.5])
    reference = current + torch.randn(shape, generator=rng) * 0.3
    tools[[3, 7]], reference[3, 2] = 1, current[3, 2] + 3.5
    if far:
        current[7, 0], reference[7, 1] = old[7, 0] + 25, current[7, 1] + 45
    advantages = torch.randn(len(lengths), generator=rng)
    advantages[4], advantages[7] = 0.0, -1.0
    mask = real * tools
    inputs = {
        "prompt_ids": torch.full((len(lengths), 1), 2),
        "prompt_mask": torch.ones(len(lengths), 1, dtype=torch.long),
        "completion_ids": torch.full(shape, 3),
        "completion_mask": real,
        "tool_mask": tools,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
    }
    name, result = "_get_per_token_logps_and_entropies", (current, -current, None)
    with mock.patch.object(type(trainer).__mro__[1], name, return_value=result):
        trainer.compute_loss(trainer.model, inputs)
    update: TrlUpdate = trainer.step.updates.pop()
    return update


# --- rlpost's side -------------------------------------------------------------------------------


def _table(inputs: Json, **columns: Tensor) -> pa.Table:
    """Return completions as rlpost reads them: ragged, with a mask of policy tokens."""
    real = inputs["completion_mask"]
    mask = real * inputs.get("tool_mask", torch.ones_like(real))
    lengths = real.sum(1).tolist()
    padded = {"response_mask": mask, **columns}
    rows = {
        name: [row[:length].tolist() for row, length in zip(x, lengths, strict=True)]
        for name, x in padded.items()
    }
    prompts = [f"p{i // GENERATIONS}" for i in range(len(lengths))]
    return pa.table({"prompt_id": prompts, **rows})


def _our_advantages(step: TrlStep, options: Json) -> Numbers:
    """Return the advantages that rlpost computes from the rewards of a step."""
    names = COMPONENTS[: len(step.rewards[0])]
    seen = step.generated["log_probs"]
    log_probs = dict(zip(("old_log_probs", "ref_log_probs"), seen, strict=False))
    table = _table(step.generated, **log_probs)
    for name, values in zip(names, zip(*step.rewards, strict=True), strict=True):
        table = table.append_column(name, pa.array(values, pa.float64()))
    recipe = preset(NAME, reward_components=names, emit=("advantages",), **options)
    written, _ = enrich(table, recipe, _ON_CPU)
    return {"advantages": torch.tensor([row[0] for row in written["advantages"].to_pylist()])}


def _our_weights(step: TrlStep, options: Json) -> Numbers:
    """Return the importance weights that rlpost computes from the log-probs of a step."""
    batch = step.generated
    columns = {
        "old_log_probs": batch["log_probs"][0],
        "infer_log_probs": batch["sampling_per_token_logps"],
    }
    table = _table(batch, **columns)
    table = table.append_column("reward", pa.array([0.0] * len(table)))
    written, _ = enrich(table, preset(NAME, emit=("is_weight",), **options), _ON_CPU)
    rows = zip(written["is_weight"].to_pylist(), table["response_mask"].to_pylist(), strict=True)
    weights = [(x, of_policy) for row in rows for x, of_policy in zip(*row, strict=True)]
    by_token = options["is_weight"] == "token"
    return {"is_weight": torch.tensor([x for x, of_policy in weights if by_token or of_policy])}


def _their_weights(step: TrlStep) -> Numbers:
    """Return TRL's importance ratios: of all tokens, or of completions at their policy tokens."""
    batch = step.generated
    compared = batch["completion_mask"].bool()
    ratios = batch["importance_sampling_ratio"]
    if ratios.shape[1] == 1:
        compared = compared & batch["tool_mask"].bool()
    return {"is_weight": ratios.expand_as(compared)[compared]}


def _our_loss(update: TrlUpdate, name: str | None, options: Json) -> Numbers:
    """Return what `rlpost loss` computes from the inputs of a trainer's loss."""
    inputs = update.inputs
    advantages = inputs["advantages"][:, None] * torch.ones_like(update.log_probs)
    columns = {"advantages": advantages, "log_probs": update.log_probs}
    for role in ("old", "ref"):
        if f"{role}_per_token_logps" in inputs:
            columns[f"{role}_log_probs"] = inputs[f"{role}_per_token_logps"]
    table = _table(inputs, **columns)
    table = table.append_column("reward", pa.array([0.0] * len(table)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batch.parquet"
        pq.write_table(table, path)
        named = {} if name is None else {"loss": name}
        config = LossConfig(loss_preset(NAME, **named, **nested(options)))
        summary = run_loss(path, None, None, [config], _ON_CPU)
    facts = summary["facts"]
    numbers = {"loss": facts["total_loss"]["all"]["mean"]}
    if options.get("kl_loss_coef") and summary["aggregation"] == "token-mean":
        numbers["kl"] = facts["kl_loss"]["all"]["mean"]
    if summary["options"]["loss"] == "ppo":
        for side in ("low", "high"):
            numbers[f"clip_ratio/{side}_mean"] = facts[f"clipped_{side}"]["all"]["mean"]
    return {key: torch.tensor(x, dtype=torch.float64) for key, x in numbers.items()}


def _their_loss(update: TrlUpdate, config: Json) -> Numbers:
    """Return the loss and the metrics of a trainer that rlpost prints, too.

    With ratios of sequences TRL counts clipped sequences, rlpost their tokens; TRL's mean KL is
    over tokens whatever the aggregation of the loss.
    """
    numbers = {"loss": update.loss}
    if config.get("loss_type") in ("bnpo", "dapo") and "kl" in update.metrics:
        numbers["kl"] = update.metrics["kl"]
    if "clip_ratio/low_mean" in update.metrics and "importance_sampling_level" not in config:
        for side in ("low", "high"):
            numbers[f"clip_ratio/{side}_mean"] = update.metrics[f"clip_ratio/{side}_mean"]
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}


# --- the cases -----------------------------------------------------------------------------------


def _our_kl(update: TrlUpdate) -> Numbers:
    """Return the mean KL of policy tokens, from the inputs of a trainer's loss."""
    inputs = update.inputs
    columns = {"log_probs": update.log_probs, "ref_log_probs": inputs["ref_per_token_logps"]}
    table = _table(inputs, **columns)
    table = table.append_column("reward", pa.array([0.0] * len(table)))
    written, _ = enrich(table, preset(NAME, emit=("kl",)), _ON_CPU)
    total = sum(x for row in written["kl"].to_pylist() for x in row)
    tokens = sum(map(sum, table["response_mask"].to_pylist()))
    return {"kl": torch.tensor(total / tokens, dtype=torch.float64)}


def _kl_cases() -> Iterator[PeerCase]:
    config = {"beta": 0.1, "use_bias_correction_kl": False}
    for far in (False, True):
        update = partial(
            lambda far: _on_random_log_probs(_step(options=tuple(config.items())).trainer, far=far),
            far,
        )
        yield PeerCase(
            f"mean KL{', log-probs far apart' if far else ''}",
            ours=partial(lambda update: _our_kl(update()), update),
            theirs=partial(lambda update: {"kl": torch.tensor(update().metrics["kl"])}, update),
        )


def _overlong_cases() -> Iterator[PeerCase]:
    lengths, limits = range(1, 13), (8, 4)

    def ours() -> Numbers:
        masks = [[1, 0] * (length // 2) + [1] * (length % 2) for length in lengths]
        zeros = [0.0] * len(masks)
        table = pa.table({"prompt_id": zeros, "reward": zeros, "response_mask": masks})
        recipe = preset(
            NAME,
            estimator="raw",
            overlong_penalty=(*limits, 1.0),
            emit=("response_level_rewards",),
        )
        written, _ = enrich(table, recipe, _ON_CPU)
        return {"reward": torch.tensor(written["response_level_rewards"].to_pylist())}

    def theirs() -> Numbers:
        reward = import_module("trl.rewards").get_soft_overlong_punishment(*limits)
        return {"reward": torch.tensor(reward([[0] * length for length in lengths]))}

    yield PeerCase("soft overlong punishment", ours, theirs)


def _advantage_cases() -> Iterator[PeerCase]:
    def case(kind: str, functions: int, unscored: bool, config: Json, options: Json) -> PeerCase:  # noqa: FBT001
        named = {"GRPO": "grpo", "RLOO": "rloo"}[kind]
        estimator = options.pop("estimator", named)
        step = partial(_step, kind, functions, unscored, tuple(config.items()))
        words = [f"{name}={x}" for name, x in config.items()] + ["unscored"] * unscored
        return PeerCase(
            f"advantages of {kind}, reward functions: {functions}, {' '.join(words) or 'defaults'}",
            ours=lambda: _our_advantages(step(), {"estimator": estimator, **options}),
            theirs=lambda: {"advantages": step().generated["advantages"]},
            variant=estimator,
        )

    separate = {"multi_objective_aggregation": "normalize_then_sum"}
    weights = {"reward_weights": [2.0, 0.5]}
    ours = {"component_weights": (2.0, 0.5)}
    for unscored in (False, True):
        for scale, options in SCALES.items():
            yield case("GRPO", 1, unscored, {"scale_rewards": scale}, dict(options))
        yield case("GRPO", 2, unscored, _frozen(weights), dict(ours))
        yield case("GRPO", 1, unscored, {"beta": 0.5}, {"kl_coef": 0.5})
        yield case("GRPO", 2, unscored, dict(separate), {"estimator": "gdpo"})
        both = _frozen({**separate, **weights})
        yield case("GRPO", 2, unscored, both, {"estimator": "gdpo", **ours})
        charged = {**separate, "beta": 0.5}
        yield case("GRPO", 2, unscored, charged, {"estimator": "gdpo", "kl_coef": 0.5})
        for beta in (0.0, 0.5):
            config = {"beta": beta}
            yield case("RLOO", 1, unscored, config, {"kl_coef": beta} if beta else {})
        yield case("RLOO", 2, unscored, _frozen({"beta": 0.0, **weights}), dict(ours))


def _frozen(config: Json) -> Json:
    """Return the config with tuples in place of lists."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in config.items()}


def _weight_cases() -> Iterator[PeerCase]:
    modes = {"token_mask": "token", "token_truncate": "token",
             "sequence_mask": "sequence", "sequence_truncate": "sequence"}  # fmt: skip
    for mode, level in modes.items():
        for low, high in ((None, 1.5), (0.5, 1.5), (0.5, None)):
            config = {
                "vllm_importance_sampling_correction": True,
                "vllm_importance_sampling_mode": mode,
                "vllm_importance_sampling_clip_min": low,
                "vllm_importance_sampling_clip_max": high,
            }
            options: Json = {"is_weight": level, "is_cap": (low, high)}
            if mode.endswith("mask"):
                options = {"is_weight": level, "is_mask": (low or -math.inf, high or math.inf)}
            step = partial(_step, options=tuple(config.items()))
            yield PeerCase(
                f"importance ratios, {mode}, {low} to {high}",
                ours=partial(lambda step, options: _our_weights(step(), options), step, options),
                theirs=partial(lambda step: _their_weights(step()), step),
            )


def _loss_cases() -> Iterator[PeerCase]:
    for name, config, options in LOSSES:
        both = {"loss_type": name, **config} if name else {}
        step = partial(_step, options=tuple(both.items()))
        sources: dict[str, Callable[[TrlStep], TrlUpdate]] = {
            "second update": lambda step: step.updates[1],
            "random log-probs": lambda step: _on_random_log_probs(step.trainer),
            "log-probs far apart": lambda step: _on_random_log_probs(step.trainer, far=True),
        }
        for what, update in sources.items():
            words = " ".join(f"{key}={x}" for key, x in both.items()) or "defaults"
            yield PeerCase(
                f"loss, {what}, {words}",
                ours=partial(
                    lambda update, step, name, options: _our_loss(update(step()), name, options),
                    update, step, name, options,
                ),
                theirs=partial(
                    lambda update, step, both: _their_loss(update(step()), both), update, step, both
                ),
                variant=name or "ppo",
                part="loss",
            )  # fmt: skip


def _cases() -> list[PeerCase]:
    return [*_advantage_cases(), *_weight_cases(), *_kl_cases(), *_overlong_cases(), *_loss_cases()]


def _uncovered() -> list[str]:
    """Return the losses of GRPOTrainer that the preset lacks."""
    trainer = import_module("trl.trainer.grpo_trainer").GRPOTrainer
    lines = inspect.getsource(trainer).splitlines()
    lines = [line for line in lines if "self.loss_type" in line]
    names = {x for line in lines for x in re.findall(r'"(\w+)"', line)}
    covered = {config.get("loss_type", name) for name, config, _ in LOSSES}
    return [f"policy loss {name}" for name in sorted(names - covered)]


PEER = Peer(
    preset=NAME,
    package="trl",
    cases=_cases,
    uncovered=_uncovered,
)
