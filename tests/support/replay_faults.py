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
    right: Trainer
    """The trainer without the fault: the recipe's numbers."""
    wrong: dict[str, Any]
    """The fields of the trainer that are the fault."""
    expected: frozenset[str]
    data: dict[str, Any]
    """Arguments of `rollouts`."""

    def plant(self, table: pa.Table) -> pa.Table:
        """Return the table with the columns that the trainer with the fault records."""
        return replace(self.right, **self.wrong).record(table)

    def file(self) -> pa.Table:
        """Return the recorded file."""
        return self.plant(rollouts(**self.data))

    def recipe(self) -> rlpost.Recipe:
        """Return what the user believes the trainer computed."""
        return rlpost.preset(self.preset, estimator=self.estimator, **self.options)


RETURN = Trainer(credit="return")
GROUP_NORM = Trainer(baseline="mean", std=True)
CENTRED = Trainer(baseline="mean")


@dataclass(frozen=True)
class _Preset:
    """A preset's estimator and the trainer that computes it."""

    preset: str
    estimator: str
    trainer: Trainer

    def fault(
        self,
        name: str,
        wrong: dict[str, Any],
        *expected: str,
        records: str | Sequence[str] = "advantages",
        data: dict[str, Any],
        trainer: dict[str, Any] | None = None,
        **options: Any,
    ) -> Fault:
        columns = (records,) if isinstance(records, str) else tuple(records)
        noise = (0.0, 1e-7)[data["seed"] % 2]  # as of float32 in every other file
        right = replace(self.trainer, records=columns, noise=noise, **(trainer or {}))
        return Fault(
            name, self.preset, self.estimator, options, right, wrong, frozenset(expected), data
        )


VERL_GRPO = _Preset("verl", "grpo", replace(GROUP_NORM, single="raw", place="last_token"))
VERL_GAE = _Preset("verl", "gae", Trainer(credit="gae", whiten=True, place="last_token"))
VERL_RPP = _Preset("verl", "reinforce_pp", replace(RETURN, whiten=True, place="last_token"))
TRL_GRPO = _Preset("trl", "grpo", replace(GROUP_NORM, eps=1e-4))
SLIME_GRPO = _Preset("slime", "grpo", GROUP_NORM)
SLIME_RPP = _Preset("slime", "reinforce_plus_plus", replace(RETURN, whiten=True, states=True))
OPENRLHF = _Preset("openrlhf", "reinforce", replace(RETURN, whiten=True, whiten_ddof=0, clip=10.0))
OPENRLHF_RLOO = _Preset("openrlhf", "rloo", replace(RETURN, baseline="others", clip=10.0))
NEMO_GAE = _Preset("nemo-rl", "gae", Trainer(credit="gae", lam=0.95, whiten=True))
INSTRUCT_CENTRED = _Preset("open-instruct", "centered", CENTRED)
PRIME = _Preset("prime-rl", "grpo", CENTRED)

FAULTS = (
    VERL_GRPO.fault(
        "std-divides-by-n",
        {"ddof": 0},
        "option:numerics.norm_ddof",
        records=("response_level_rewards",),
        data={"seed": 101},
    ),
    TRL_GRPO.fault("eps-inside-root", {"eps_inside": True}, data={"seed": 103}),
    SLIME_GRPO.fault("eps-1e-4", {"eps": 1e-4}, "option:numerics.norm_eps", data={"seed": 104}),
    SLIME_RPP.fault(
        "mask-one-token-early",
        {"mask_shift": -1},
        "input:column-shifted",
        records=("token_level_rewards",),
        data={"seed": 105},
        trainer={"beta": 0.05},
        kl_coef=0.05,
    ),
    VERL_GAE.fault(
        "values-one-token-late",
        {"value_shift": 1},
        "input:column-shifted",
        records=("returns",),
        data={"seed": 108},
        trainer={"lam": 0.95},
        lam=0.95,
    ),
    OPENRLHF.fault(
        "whitening-over-padding",
        {"whiten_over": "padded"},
        records=("advantages",),
        data={"seed": 109},
    ),
    VERL_RPP.fault(
        "kl-added",
        {"kl_sign": -1},
        "sign",
        records=("kl", "token_level_rewards", "advantages"),
        data={"seed": 110},
        trainer={"beta": 0.05},
        kl_coef=0.05,
    ),
    VERL_GAE.fault(
        "one-step-with-another-beta",
        {"betas": {2: 0.1}},
        records=("kl", "token_level_rewards"),
        data={"seed": 112},
        trainer={"beta": 0.02},
        kl_coef=0.02,
    ),
    TRL_GRPO.fault(
        "groups-over-steps",
        {"group_keys": ("prompt_id",)},
        *("input:other-groups", "option:numerics.batch"),
        data={"seed": 113, "responses": 160, "steps": 4},
    ),
    OPENRLHF.fault(
        "kl-k3-for-k1",
        {"kl": "k3"},
        "option:kl_estimator",
        records=("kl", "advantages"),
        data={"seed": 114},
        trainer={"beta": 0.1},
        kl_coef=0.1,
    ),
    OPENRLHF_RLOO.fault(
        "own-reward-in-baseline",
        {"baseline": "mean"},
        "option:norm_mean",
        records=("response_level_rewards", "advantages"),
        data={"seed": 119, "group": 4},
    ),
    OPENRLHF.fault(
        "reward-clip-left-out",
        {"clip": None},
        "option:reward_clip",
        records=("response_level_rewards", "advantages", "returns"),
        data={"seed": 122, "scale": 12.0},
    ),
    VERL_RPP.fault(
        "rollout-log-probs-for-old",
        {"old": "infer_log_probs"},
        "input:policies-swapped",
        records=("kl",),
        data={"seed": 123},
        trainer={"beta": 0.1},
        kl_coef=0.1,
    ),
    VERL_GAE.fault(
        "value-twice-in-returns",
        {"value_times": 2},
        records=("returns",),
        data={"seed": 125, "observations": False},
    ),
    SLIME_GRPO.fault(
        "advantages-not-masked",
        {"masks_advantages": False},
        data={"seed": 126},
    ),
    OPENRLHF.fault(
        "mask-not-read",
        {"reads_mask": False},
        "input:mask-ones",
        records=("kl", "token_level_rewards", "advantages", "returns"),
        data={"seed": 127},
        trainer={"beta": 0.05},
        kl_coef=0.05,
    ),
    TRL_GRPO.fault(
        "raw-reward-of-single-groups",
        {"single": "raw"},
        "option:numerics.single",
        data={"seed": 128},
    ),
    VERL_GRPO.fault(
        "mean-of-equal-rewards-rounded",
        {"rounds_mean": True},
        data={"seed": 132, "responses": 256, "group": 6},
    ),
    VERL_GAE.fault(
        "advantages-one-token-late",
        {"advantage_shift": 1},
        "shift",
        records=("raw_advantages", "advantages", "returns"),
        data={"seed": 131, "responses": 96},
    ),
    VERL_GAE.fault(
        "gamma-and-lambda-exchanged",
        {"gamma": 0.95, "lam": 1.0},
        *("option:gamma", "option:lam"),
        records=("advantages", "returns"),
        data={"seed": 133},
        trainer={"lam": 0.95},
        lam=0.95,
    ),
    VERL_GAE.fault(
        "lambda-1-and-kl-added",
        {"lam": 1.0, "kl_sign": -1},
        records=("returns",),
        data={"seed": 134},
        trainer={"lam": 0.95, "beta": 0.05},
        lam=0.95,
        kl_coef=0.05,
    ),
    VERL_GAE.fault(
        "rewards-of-other-responses",
        {"rolls_rewards": 3},
        records=("token_level_rewards",),
        data={"seed": 138, "observations": False},
    ),
    NEMO_GAE.fault(
        "kl-penalty-on-the-last-token",
        {"sums_tokens": True},
        "option:numerics.kl_credit",
        records=("kl", "token_level_rewards"),
        data={"seed": 139},
        trainer={"beta": 0.05},
        kl_coef=0.05,
        kl_estimator="k1",
    ),
    PRIME.fault(
        "overlong-penalty-of-half-the-tokens",
        {"overlong": (40, 8, 1.0)},
        "option:overlong_penalty",
        data={"seed": 142},
        trainer={"overlong": (40, 16, 1.0)},
        overlong_penalty=(40, 16, 1.0),
    ),
    OPENRLHF.fault(
        "kl-from-the-reference-to-the-policy",
        {"old": "ref_log_probs", "ref": "old_log_probs"},
        "input:policies-swapped",
        records=("kl", "advantages"),
        data={"seed": 143},
        trainer={"beta": 0.1, "kl": "k3"},
        kl_coef=0.1,
        kl_estimator="k3",
    ),
    OPENRLHF.fault(
        "reference-one-token-late",
        {"ref_shift": 1},
        "input:column-shifted",
        records=("kl", "advantages"),
        data={"seed": 146},
        trainer={"beta": 0.05},
        kl_coef=0.05,
    ),
    PRIME.fault(
        "groups-of-consecutive-rows",
        {"group_rows": 4},
        "input:other-groups",
        data={"seed": 147, "group": 4},
    ),
)
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

    def exact(self, table: pa.Table) -> pa.Table:
        """Return the table with the recipe's columns after its own."""
        return computed(table, table, self.recipe(), self.records)

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
