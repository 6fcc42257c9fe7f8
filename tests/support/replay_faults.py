"""Rollout files as trainers record them: each of FAULTS has one known fault, CLEAN has none.

A file has the columns of a rollout, which are right, and columns that a trainer computed from them.
The faults were planted before the detector that names them was written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from replay_trainer import Trainer, column, lists, rollouts

import rlpost

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Fault:
    """A file of a trainer with one fault.

    A replay names it rightly if its first finding is one of `expected`; without any it names the
    stage alone, and nothing wrong.
    """

    name: str
    preset: str
    estimator: str
    options: dict[str, Any]
    """Fields of the recipe after the preset: what the user believes the trainer computed."""
    trainer: Trainer
    """The trainer with the fault."""
    expected: tuple[str, ...]
    data: dict[str, Any]
    """Arguments of `rollouts`."""

    def file(self) -> pa.Table:
        """Return the recorded file."""
        return self.trainer.record(rollouts(**self.data))

    def recipe(self) -> rlpost.Recipe:
        """Return what the user believes the trainer computed."""
        return rlpost.preset(self.preset, estimator=self.estimator, **self.options)


_GROUP, _RETURN = Trainer(baseline="mean", std=True), Trainer(credit="return", whiten=True)
TRAINERS = {
    "verl grpo": replace(_GROUP, single="raw", place="last_token"),
    "verl gae": Trainer(credit="gae", whiten=True, place="last_token"),
    "verl reinforce_pp": replace(_RETURN, place="last_token"),
    "trl grpo": replace(_GROUP, eps=1e-4),
    "slime grpo": _GROUP,
    "slime reinforce_plus_plus": replace(_RETURN, states=True),
    "openrlhf reinforce": replace(_RETURN, whiten_ddof=0, clip=10.0),
    "openrlhf rloo": Trainer(credit="return", baseline="others", clip=10.0),
    "nemo-rl gae": Trainer(credit="gae", lam=0.95, whiten=True),
    "prime-rl grpo": Trainer(baseline="mean"),
}
"""What a preset's estimator computes."""
_OF_RECIPE = {"beta": "kl_coef", "kl": "kl_estimator", "lam": "lam", "overlong": "overlong_penalty"}
"""The fields of a recipe that are those of a trainer."""


def _fault(
    of: str, name: str, wrong: dict[str, Any], expected: str, records: str, seed: int,
    right: dict[str, Any] | None = None, **data: Any,
) -> Fault:  # fmt: skip
    """Return a fault of a trainer.

    Args:
        of: preset and estimator.
        name: of the fault.
        wrong: the fields of the trainer that are the fault.
        expected: the findings that name it.
        records: the stages that the trainer records.
        seed: of the rollouts.
        right: the fields that the user knows, by names of the trainer.
        data: other arguments of `rollouts`.
    """
    noise = (0.0, 1e-7)[seed % 2]  # as of float32 in every other file
    known = {"records": tuple(records.split()), "noise": noise, **(right or {})}
    trainer = replace(TRAINERS[of], **known | wrong)
    options = {_OF_RECIPE[name]: value for name, value in (right or {}).items()}
    expect, data = tuple(expected.split()), {"seed": seed, **data}
    return Fault(name, *of.split(), options, trainer, expect, data)


FAULTS = (
    _fault("verl grpo", "std-divides-by-n", {"ddof": 0}, "option:numerics.norm_ddof",
           "response_level_rewards", 101),
    _fault("trl grpo", "eps-inside-root", {"eps_inside": True}, "", "advantages", 103),
    _fault("slime grpo", "eps-1e-4", {"eps": 1e-4}, "option:numerics.norm_eps", "advantages", 104),
    _fault("slime reinforce_plus_plus", "mask-one-token-early", {"mask_shift": -1},
           "input:column-shifted", "token_level_rewards", 105, {"beta": 0.05}),
    _fault("verl gae", "values-one-token-late", {"value_shift": 1}, "input:column-shifted",
           "returns", 108, {"lam": 0.95}),
    _fault("openrlhf reinforce", "whitening-over-padding", {"whiten_over": "padded"}, "",
           "advantages", 109),
    _fault("verl reinforce_pp", "kl-added", {"kl_sign": -1}, "sign",
           "kl token_level_rewards advantages", 110, {"beta": 0.05}),
    _fault("trl grpo", "groups-over-steps", {"group_keys": ("prompt_id",)},
           "input:other-groups option:numerics.batch", "advantages", 113, responses=160, steps=4),
    _fault("openrlhf reinforce", "kl-k3-for-k1", {"kl": "k3"}, "option:kl_estimator",
           "kl advantages", 114, {"beta": 0.1}),
    _fault("openrlhf rloo", "own-reward-in-baseline", {"baseline": "mean"}, "option:norm_mean",
           "response_level_rewards advantages", 119, group=4),
    _fault("openrlhf reinforce", "reward-clip-left-out", {"clip": None}, "option:reward_clip",
           "response_level_rewards advantages returns", 122, scale=12.0),
    _fault("verl reinforce_pp", "rollout-log-probs-for-old", {"old": "infer_log_probs"},
           "input:policies-swapped", "kl", 123, {"beta": 0.1}),
    _fault("slime grpo", "advantages-not-masked", {"masks_advantages": False}, "",
           "advantages", 126),
    _fault("openrlhf reinforce", "mask-not-read", {"reads_mask": False}, "input:mask-ones",
           "kl token_level_rewards advantages returns", 127, {"beta": 0.05}),
    _fault("trl grpo", "raw-reward-of-single-groups", {"single": "raw"},
           "option:numerics.single", "advantages", 128),
    _fault("verl grpo", "mean-of-equal-rewards-rounded", {"rounds_mean": True}, "",
           "advantages", 132, responses=256, group=6),
    _fault("verl gae", "advantages-one-token-late", {"advantage_shift": 1}, "shift",
           "raw_advantages advantages returns", 131, responses=96),
    _fault("verl gae", "gamma-and-lambda-exchanged", {"gamma": 0.95, "lam": 1.0},
           "option:gamma option:lam", "advantages returns", 133, {"lam": 0.95}),
    _fault("verl gae", "lambda-1-and-kl-added", {"lam": 1.0, "kl_sign": -1}, "",
           "returns", 134, {"lam": 0.95, "beta": 0.05}),
    _fault("nemo-rl gae", "kl-penalty-on-the-last-token", {"sums_tokens": True},
           "option:numerics.kl_credit", "kl token_level_rewards", 139, {"beta": 0.05, "kl": "k1"}),
    _fault("prime-rl grpo", "overlong-penalty-of-half-the-tokens", {"overlong": (40, 8, 1.0)},
           "option:overlong_penalty", "advantages", 142, {"overlong": (40, 16, 1.0)}),
    _fault("openrlhf reinforce", "kl-from-the-reference-to-the-policy",
           {"old": "ref_log_probs", "ref": "old_log_probs"}, "input:policies-swapped",
           "kl advantages", 143, {"beta": 0.1, "kl": "k3"}),
    _fault("openrlhf reinforce", "reference-one-token-late", {"ref_shift": 1},
           "input:column-shifted", "kl advantages", 146, {"beta": 0.05}),
    _fault("prime-rl grpo", "groups-of-consecutive-rows", {"group_rows": 4},
           "input:other-groups", "advantages", 147, group=4),
)  # fmt: skip
"""Files of trainers with one fault each."""


@dataclass(frozen=True)
class Clean:
    """A file without a fault: what the framework records, by its preset."""

    name: str
    preset: str
    estimator: str
    options: dict[str, Any]
    """Fields of the recipe after the preset."""
    records: tuple[str, ...]
    noise: str
    """The errors of float32 on a GPU: none, inputs (1e-6 of each reward's distance from its
    group's mean and 1e-7 of log-probs and values), results (2 ulps)."""
    data: dict[str, Any]
    """Arguments of `rollouts`."""

    def recipe(self) -> rlpost.Recipe:
        """Return the recipe that computes the recorded columns."""
        return rlpost.preset(self.preset, estimator=self.estimator, **self.options)

    def file(self) -> pa.Table:
        """Return the recorded file."""
        table = rollouts(**self.data)
        rng = np.random.default_rng(self.data["seed"])
        used = _rounded(rng, table) if self.noise == "inputs" else table
        made = computed(table, used, self.recipe(), self.records)
        return _jittered(rng, made, self.records) if self.noise == "results" else made


def computed(
    table: pa.Table, used: pa.Table, recipe: rlpost.Recipe, records: Sequence[str]
) -> pa.Table:
    """Return the table with columns that rlpost computes from the used one."""
    values = recipe.model_dump()
    made, _ = rlpost.enrich(used, rlpost.Recipe.of({**values, "emit": tuple(records)}))
    for name in records:
        table = table.append_column(name, made[name])
    return table


def _rounded(rng: np.random.Generator, table: pa.Table) -> pa.Table:
    """Return the table with the rounding errors of a GPU before its division by a std."""
    rewards = np.array(column(table, "reward"))
    keys = list(zip(column(table, "step"), column(table, "prompt_id"), strict=True))
    for key in dict.fromkeys(keys):
        rows = [i for i, one in enumerate(keys) if one == key]
        if np.ptp(rewards[rows]) > 0:
            centre = rewards[rows].mean()
            errors = 1 + 1e-6 * rng.normal(size=len(rows))
            rewards[rows] = centre + (rewards[rows] - centre) * errors
    new = {"reward": pa.array(rewards)}
    for name in ("old_log_probs", "ref_log_probs", "values"):
        lists = [x * (1 + 1e-7 * rng.normal(size=len(x))) for x in column(table, name)]
        new[name] = pa.array(lists, pa.list_(pa.float64()))
    for name, numbers in new.items():
        table = table.set_column(table.schema.get_field_index(name), name, numbers)
    return table


def _jittered(rng: np.random.Generator, table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the table with columns of tokens that are off by 0 to 2 units in the last place."""
    for name in names:
        place = table.schema.get_field_index(name)
        if table.schema.field(place).type != pa.list_(pa.float32()):
            continue
        rows = [np.asarray(x, np.float32) for x in column(table, name)]
        off = [x + np.spacing(x) * rng.integers(-2, 3, len(x)) * (x != 0) for x in rows]
        table = table.set_column(place, name, lists(off))
    return table


_TOKENS = ("kl", "token_level_rewards", "advantages", "returns")
_SHORT = ("advantages", "returns")
CLEAN = tuple(
    Clean(f"{preset}-{estimator}", preset, estimator, options, records, noise, data)
    for preset, estimator, options, records, noise, data in (
        ("verl", "grpo", {}, ("advantages",), "none", {"seed": 201}),
        ("verl", "gae", {"kl_coef": 0.05, "lam": 0.95}, _TOKENS, "inputs", {"seed": 202}),
        ("verl", "rloo", {}, _SHORT, "inputs", {"seed": 203, "group": 8}),
        ("verl", "reinforce_plus_plus", {"kl_coef": 0.1}, _TOKENS, "results", {"seed": 204}),
        ("verl", "opo", {}, ("advantages",), "results", {"seed": 205, "steps": 1}),
        ("trl", "grpo", {}, ("advantages",), "inputs", {"seed": 206, "group": 4}),
        ("trl", "rloo", {}, ("advantages",), "results", {"seed": 207}),
        ("slime", "grpo", {"whiten_advantages": True}, ("advantages",), "none", {"seed": 208}),
        ("slime", "reinforce_plus_plus_baseline", {}, ("advantages",), "inputs", {"seed": 209}),
        ("slime", "ppo", {"kl_coef": 0.01}, _SHORT, "results", {"seed": 210, "steps": 5}),
        ("roll", "reinforce", {"gamma": 0.99}, _SHORT, "none", {"seed": 211}),
        ("roll", "gae", {"kl_coef": 0.02}, _TOKENS, "inputs", {"seed": 212, "responses": 256}),
        ("openrlhf", "reinforce_baseline", {"kl_coef": 0.01}, _SHORT, "inputs", {"seed": 213}),
        ("openrlhf", "gae", {}, _SHORT, "none", {"seed": 214, "observations": False}),
        ("openrlhf", "group_norm", {"reward_clip": 1.0}, _SHORT, "results", {"seed": 215}),
        ("nemo-rl", "grpo", {}, ("advantages",), "results", {"seed": 216}),
        ("nemo-rl", "reinforce_plus_plus", {}, ("advantages",), "inputs", {"seed": 217}),
        ("open-instruct", "standard", {}, ("advantages",), "inputs", {"seed": 218, "group": 8}),
        ("open-instruct", "centered", {}, ("advantages",), "none", {"seed": 219, "scale": 10.0}),
        (
            *("prime-rl", "grpo", {"drop_equal_rewards": True}),
            *(("sample_mask", "advantages"), "results", {"seed": 220}),
        ),
    )
)
"""Files of the frameworks' presets, without a fault."""
