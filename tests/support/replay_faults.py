"""Made rollouts as trainers record them: each of FAULTS has one known fault, CLEAN has none.

A file has the columns of a rollout, which are right, and recorded ones. A faulty trainer computes
these by another recipe, or from other inputs, or changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import rlpost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Change = Callable[[list[np.ndarray], pa.Table], list[np.ndarray]]
    Inputs = Callable[[pa.Table], pa.Table]


def rollouts(
    seed: int,
    *,
    responses: int = 128,
    steps: int = 3,
    group: int | None = None,
    scale: float = 1.0,
    observations: bool = True,
) -> pa.Table:
    """Return rollouts of several steps, some of whose prompts return in a later step.

    Args:
        seed: of all random numbers.
        responses: about how many there are.
        steps: how many there are.
        group: the size of every prompt group; None: unequal sizes, with some groups of one.
        scale: factor of the rewards, which are otherwise about 0 to 1.
        observations: whether there are responses of several turns, with observation tokens between
            them and, in some, at the end.
    """
    rng = np.random.default_rng(seed)
    prompts = rng.permutation(10_000)
    used, rows = 0, []
    for step in range(steps):
        if step:
            used -= 4  # the last prompts of the step before return
        start = len(rows)
        for kind in range(responses):  # far more groups than fit
            size = group or int(rng.choice((1, 2, 3, 4, 6, 8), p=(0.2, 0.15, 0.2, 0.2, 0.15, 0.1)))
            rewards = _rewards(rng, size, kind) * scale
            rows += [(step, f"p{prompts[used]}", float(np.float32(r))) for r in rewards]
            used += 1
            if len(rows) - start >= responses / steps:
                break
        mixed = [rows[start + i] for i in rng.permutation(len(rows) - start)]
        rows[start:] = mixed
    masks = [_mask(rng, observations=observations) for _ in rows]
    old = [np.minimum(-rng.gamma(0.6, 1.5, len(m)), -1e-4) for m in masks]
    values = [np.cumsum(rng.normal(0, 0.1, len(m))) + rng.normal(0.4, 0.2) * scale for m in masks]
    return pa.table(
        {
            "step": pa.array([step for step, _, _ in rows], pa.int64()),
            "prompt_id": [prompt for _, prompt, _ in rows],
            "reward": pa.array([reward for _, _, reward in rows], pa.float32()),
            "response_mask": pa.array(masks, pa.list_(pa.uint8())),
            "old_log_probs": lists(old),
            "ref_log_probs": lists([_near(rng, x, 0.2) for x in old]),
            "infer_log_probs": lists([_near(rng, x, 0.03) for x in old]),
            "values": lists(values),
        }
    )


def _rewards(rng: np.random.Generator, size: int, kind: int) -> np.ndarray:
    """Return the rewards of a group: of ten, one has equal rewards, two have almost equal ones."""
    centre = rng.uniform(0.1, 0.9)
    width = {3: 0.0, 5: 0.01, 8: 0.01}.get(kind % 10, 0.35)
    return centre + width * rng.normal(size=size) + 0.4 * width * rng.exponential(size=size)


def _mask(rng: np.random.Generator, *, observations: bool) -> np.ndarray:
    length = int(rng.integers(3, 41))
    if not observations or rng.random() < 0.5:
        return np.ones(length, np.uint8)
    turns: list[int] = []
    while len(turns) < length:
        turns += [1] * int(rng.integers(2, 9)) + [0] * int(rng.integers(1, 6))
    mask = np.array(turns[:length], np.uint8)
    if rng.random() < 0.6:
        mask[-1] = 1  # most end with a token of the policy
    return mask


def _near(rng: np.random.Generator, log_probs: np.ndarray, noise: float) -> np.ndarray:
    return np.minimum(log_probs + rng.normal(0, noise, len(log_probs)), -1e-5)


def lists(rows: Sequence[np.ndarray]) -> pa.Array:
    """Return a column of float32 lists."""
    return pa.array([np.asarray(row, np.float32) for row in rows], pa.list_(pa.float32()))


def column(table: pa.Table, name: str) -> list[Any]:
    """Return a column: numbers or texts, or a float64 array for each list."""
    rows = table[name].to_pylist()
    is_list = pa.types.is_list(table.schema.field(name).type)
    return [np.array(row, np.float64) for row in rows] if is_list else rows


def with_lists(table: pa.Table, name: str, rows: Sequence[np.ndarray]) -> pa.Table:
    """Return the table with other numbers in a column of lists, of its type."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, lists(rows).cast(table.schema.field(place).type))


def shifted(values: np.ndarray, by: int) -> np.ndarray:
    """Return the tokens' values moved to later tokens, or to earlier ones if `by` is negative."""
    moved = np.roll(values, by)
    moved[slice(None, by) if by > 0 else slice(by, None)] = 0
    return moved


def shift(table: pa.Table, name: str, by: int) -> pa.Table:
    """Return the table with a column of tokens that is off by so many tokens."""
    return with_lists(table, name, [shifted(row, by) for row in column(table, name)])


def read(table: pa.Table, **names: str) -> pa.Table:
    """Return the table with some columns in place of others."""
    for name, other in names.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[other])
    return table


def exchange(table: pa.Table) -> pa.Table:
    """Return the table with the log-probs of the policy and of the reference exchanged."""
    old = table["old_log_probs"]
    place = table.schema.get_field_index("ref_log_probs")
    return read(table, old_log_probs="ref_log_probs").set_column(place, "ref_log_probs", old)


def grouped(table: pa.Table, rows: int = 0) -> pa.Table:
    """Return the table as one step, with groups of consecutive rows if there is a number."""
    table = table.set_column(0, "step", pa.array(np.zeros(len(table), np.int64)))
    groups = pa.array([f"{row // rows}" for row in range(len(table))]) if rows else None
    return table.set_column(1, "prompt_id", table["prompt_id"] if groups is None else groups)


def without_mask(table: pa.Table) -> pa.Table:
    """Return the table with a mask of ones."""
    return with_lists(table, "response_mask", [m * 0 + 1 for m in column(table, "response_mask")])


def unmasked(rows: list[np.ndarray], _: pa.Table) -> list[np.ndarray]:
    """Return numbers of responses on all of their tokens."""
    return [np.full(len(row), row[np.argmax(np.abs(row))]) for row in rows]


@dataclass(frozen=True)
class Fault:
    """A file of a trainer with one fault.

    A replay names it rightly if its first finding is one of `expected`; without any it names the
    stage alone, and nothing wrong.
    """

    name: str
    preset: str
    """A preset and its estimator."""
    known: dict[str, Any]
    """Fields of the recipe after the preset: what the user believes the trainer computed."""
    records: str
    expected: str
    wrong: dict[str, Any]
    """Other fields of the trainer's recipe."""
    inputs: Inputs | None = None
    """What the trainer reads in place of the rollouts."""
    change: Change | None = None
    """What it does to the last column that it records."""
    right: str = ""
    """The recorded columns without the fault."""
    data: tuple[tuple[str, Any], ...] = (("seed", 1),)
    """Arguments of `rollouts`."""

    def recipe(self) -> rlpost.Recipe:
        """Return what the user believes the trainer computed."""
        preset, estimator = self.preset.split()
        return rlpost.preset(preset, estimator=estimator, **self.known)

    def file(self) -> pa.Table:
        """Return the recorded file."""
        table, records = rollouts(**dict(self.data)), self.records.split()
        preset, estimator = self.preset.split()
        trainer = rlpost.preset(preset, estimator=estimator, **{**self.known, **self.wrong})
        used = table if self.inputs is None else self.inputs(table)
        recorded = computed(table, used, trainer, records)
        recorded = computed(recorded, table, self.recipe(), self.right.split())
        if self.change is None:
            return recorded
        last = records[-1]
        return with_lists(recorded, last, self.change(column(recorded, last), table))


def _seeded(seed: int, **data: Any) -> dict[str, Any]:
    return {"data": (("seed", seed), *data.items())}


KL, LAM = {"kl_coef": 0.05}, {"lam": 0.95}
FAULTS = (
    Fault("std-divides-by-n", "verl grpo", {}, "response_level_rewards",
          "option:numerics.norm_ddof", {"numerics": {"norm_ddof": 0}}),
    Fault("eps-1e-4", "slime grpo", {}, "advantages", "option:numerics.norm_eps",
          {"numerics": {"norm_eps": 1e-4}}),
    Fault("raw-reward-of-single-groups", "trl grpo", {}, "advantages", "option:numerics.single",
          {"numerics": {"single": "raw"}}),
    Fault("kl-k3-for-k1", "openrlhf reinforce", KL, "kl advantages", "option:kl_estimator",
          {"kl_estimator": "k3"}),
    Fault("own-reward-in-baseline", "openrlhf rloo", {}, "response_level_rewards advantages",
          "option:norm_mean", {"norm_mean": "group"}, **_seeded(2, group=4)),
    Fault("reward-clip-left-out", "openrlhf reinforce", {},
          "response_level_rewards advantages returns", "option:reward_clip", {"reward_clip": None},
          **_seeded(3, scale=12.0)),
    Fault("gamma-and-lambda-exchanged", "verl gae", LAM, "advantages returns",
          "option:gamma option:lam", {"gamma": 0.95, "lam": 1.0}),
    Fault("kl-penalty-on-the-last-token", "nemo-rl gae", {**KL, "kl_estimator": "k1"},
          "kl token_level_rewards", "option:numerics.kl_credit",
          {"numerics": {"kl_credit": "response"}}),
    Fault("overlong-penalty-of-half-the-tokens", "prime-rl grpo",
          {"overlong_penalty": (40, 16, 1.0)}, "advantages", "option:overlong_penalty",
          {"overlong_penalty": (40, 8, 1.0)}),
    Fault("mask-one-token-early", "slime reinforce_plus_plus", KL, "token_level_rewards",
          "input:column-shifted", {}, partial(shift, name="response_mask", by=-1)),
    Fault("values-one-token-late", "verl gae", LAM, "returns", "input:column-shifted", {},
          partial(shift, name="values", by=1)),
    Fault("reference-one-token-late", "openrlhf reinforce", KL, "kl advantages",
          "input:column-shifted", {}, partial(shift, name="ref_log_probs", by=1)),
    Fault("rollout-log-probs-for-old", "verl reinforce_pp", KL, "kl", "input:policies-swapped",
          {}, partial(read, old_log_probs="infer_log_probs")),
    Fault("kl-from-the-reference-to-the-policy", "openrlhf reinforce",
          {**KL, "kl_estimator": "k3"}, "kl advantages", "input:policies-swapped", {}, exchange),
    Fault("mask-not-read", "openrlhf reinforce", KL, "kl token_level_rewards advantages returns",
          "input:mask-ones", {}, without_mask),
    Fault("groups-over-steps", "trl grpo", {}, "advantages",
          "input:other-groups option:numerics.batch", {}, grouped),
    Fault("groups-of-consecutive-rows", "prime-rl grpo", {}, "advantages", "input:other-groups",
          {}, partial(grouped, rows=4), **_seeded(4, group=4)),
    Fault("kl-added", "verl reinforce_pp", KL, "token_level_rewards advantages", "sign", {},
          exchange, right="kl"),
    Fault("lambda-1-and-kl-added", "verl gae", {**KL, **LAM}, "returns", "", {"lam": 1.0},
          exchange),
    Fault("advantages-one-token-late", "verl gae", {}, "advantages", "shift", {},
          change=lambda rows, _: [shifted(row, 1) for row in rows], right="raw_advantages returns"),
    Fault("advantages-in-float16", "verl grpo", {}, "advantages", "rounded", {},
          change=lambda rows, _: [row.astype(np.float16).astype(np.float32) for row in rows]),
    Fault("advantages-times-a-constant", "trl grpo", {}, "advantages", "factor", {},
          change=lambda rows, _: [-0.25 * row for row in rows]),
    Fault("advantages-of-another-scale", "openrlhf reinforce", {}, "advantages", "", {},
          change=lambda rows, _: [0.9 * row + 0.01 for row in rows]),
    Fault("advantages-not-masked", "slime grpo", {}, "advantages", "", {}, change=unmasked),
    Fault("mean-of-equal-rewards-rounded", "verl grpo", {}, "advantages", "", {},
          change=lambda rows, _: [np.where(row == 0, 1e-3, row) for row in rows]),
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
    made, _ = rlpost.enrich(used, rlpost.Recipe.of({**values, "emit": tuple(records) or None}))
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
