"""A field that no stage reads changes no number, and one that a stage reads changes some.

Recipes and data are random. `LAW_SECONDS=300 python -m pytest tests/pipeline/test_fields.py` runs
longer, from another seed with `LAW_SEED`.
"""

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from strategies import COMPONENTS, ragged

from rlpost.errors import RlpostError
from rlpost.estimators import ESTIMATORS
from rlpost.io.parquet.source import TableSource
from rlpost.pipeline import run
from rlpost.pipeline.device import single_threaded
from rlpost.pipeline.effects import fields_behind, fields_of
from rlpost.pipeline.options import Options
from rlpost.pipeline.output.columns import emitted
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import EXTRA, GROUP_COLUMNS, WRITTEN, Recipe

DETAIL = "numerics."
SECONDS = float(os.environ.get("LAW_SECONDS", "0"))
SEED = int(os.environ.get("LAW_SEED", "1"))
RECIPES = 60
"""Recipes of the short run."""
READ = 3
"""Fields of a recipe that a stage reads, and that are changed."""
TRIES = 240
SCOPES = (None, "group", "others", "batch", "running", "none")
SOME = 0.3
VALUES = {
    "estimator": tuple(ESTIMATORS),
    "estimator_name": ("mine",),
    "gamma": (0.9, 0.0),
    "lam": (0.5, 1.0),
    "bootstrap": ("column", "last"),
    "scan": ("rollout",),
    "options.lambda_policy": (0.3, 1.0),
    "options.lambda_value": (0.3, 1.0),
    "options.length_adaptive_alpha": (0.7,),
    "options.step_gamma": (0.5,),
    "options.episode_weight": (2.0,),
    "options.step_weight": (0.5,),
    "options.f_norm": (3.0,),
    "options.ema_decay": (0.5,),
    "options.order": ("group",),
    "options.ratio_cap": (0.8, 2.0),
    "options.position": ("policy_token",),
    "options.lone": ("none",),
    "options.eps": (0.1,),
    "options.rho_cap": (0.5, 2.0),
    "options.c_cap": (0.5, 2.0),
    "options.episode_domains": (["math"], ["math", "code"]),
    "options.segment_reward": ("last",),
    "options.turn_value": ("last",),
    "options.turn_baseline": ("reward",),
    "options.floor": (0.9, 0.1),
    "options.cap": (1.0, 1.1),
    "options.batch_over": ("tokens",),
    "options.batch_eps": (0.1,),
    "options.episodes": ("row",),
    "options.states": ("batch",),
    "teachers": ({"teacher_a": 1.0}, {"teacher_a": 0.5, "teacher_b": -0.2}),
    "reward_components": (COMPONENTS, COMPONENTS[::-1]),
    "component_weights": ((1.0, 0.5), (0.0, 2.0)),
    "reward_scale": ((0.0, 1.0, -1.0, 1.0), (-2.0, 2.0, 0.0, 3.0)),
    "truncation_penalty": (0.5, -1.0),
    "group_length_penalty": ((0.1, 0.2, 0.3), (0.3, 0.0, 0.0)),
    "overlong_penalty": ((4, 3, 1.0), (2, 1, 0.4)),
    "norm_mean": SCOPES[1:],
    "norm_std": SCOPES[1:],
    "reward_clip": ((-0.4, 0.4), (-0.2, 1.1), (0.2, 1.1)),
    "is_weight": ("token", "segment", "geometric", "sequence", "token:normalised"),
    "is_cap": (1.1, 3.0, "0.5:", "0.9:3"),
    "is_mask": ((0.5, 2.0), (0.0, 1.2)),
    "is_filter": (
        ("token:ratio:0.6:1.8",),
        ("sequence:k3::0.5", "segment:k1:-0.4:0.4"),
        ("max:diff:-0.2:0.3",),
        ("token:k2::30",),
        ("geometric:ratio:0.5:2",),
        ("geometric:age::1.5",),
        ("token:ratio:0.6:1.8:negative", "sequence:k3::0.5:diverging"),
    ),
    "is_policy": ("current", "loglinear", "linear"),
    "top_entropy_quantile": (0.5, 0.1),
    "age_decay": (0.5, 0.9),
    "drop_longer": (3, 5),
    "drop_difficulty": ((-0.5, 0.6), (0.4, 3.0)),
    "drop_long_errors": (2, 9),
    "drop_equal_rewards": (True,),
    "drop_single": (True,),
    "drop_truncated": (True,),
    "mask_before_norm": (True,),
    "kl_coef": (0.1, 2.0),
    "kl_estimator": ("abs", "k2", "k3", "k4"),
    "kl_target": (0.05, 3.0, (0.05, 4.0)),
    "whiten_rewards": (True,),
    "whiten_advantages": (True, False),
    "advantage_clip": (0.3, 1.3),
    "difficulty_weight": (True,),
    "length_weight": (True,),
    "pass_threshold": (0.5, 0.0),
    "columns": ({"values": "old_log_probs"}, {"batch": "none"}, {"reward": "other_reward"}),
    "unit": ("row",),
    "rollout_reward": ("last", "sum", "mean"),
    "failures": ("mask", "keep", "zero"),
    "attempts": ("all",),
    "nonfinite": ("mask",),
    "emit": (),
    "emit_only": (True,),
    "replace": (True,),
    "numerics.batch": ("step_domain", "all"),
    "numerics.penalty_length": ("row",),
    "numerics.penalty_floor": ("factor", "one"),
    "numerics.norm_eps": (0.0, 0.1),
    "numerics.norm_ddof": (0,),
    "numerics.norm_floor": (0.5,),
    "numerics.single": ("zero_always", "raw", "normalise"),
    "numerics.constant": ("divide",),
    "numerics.empty": ("leave_out",),
    "numerics.missing_components": ("skip",),
    "numerics.clip_stages": ("response",),
    "numerics.log_ratio_clamp": (0.5, "k3:40", "never"),
    "numerics.kl_clamp": ("k3:0.3", 10, 0.3, "never"),
    "numerics.kl_policy": ("current",),
    "numerics.kl_credit": ("token", "response", "none"),
    "numerics.process_rewards": ("response", "token"),
    "numerics.terminal_reward": ("last_token",),
    "numerics.observations": ("states", "zero_states", "policy", "restart", "cut"),
    "numerics.outcome": ("response",),
    "numerics.whiten_eps": (0.1, 0.0),
    "numerics.whiten_floor": ("clamp",),
    "numerics.whiten_ddof": (0,),
    "numerics.whiten_scale": ("none",),
    "numerics.correction": ("first",),
    "numerics.is_clamp": (0.2, "token:0.2", "never"),
    "numerics.is_filter_clamp": (0.2, "never"),
    "numerics.is_missing": ("one",),
    "numerics.is_observations": ("one", "ratio"),
}
"""By field: values other than the default."""
_KL = {"kl_coef": 0.5}
_WHITENED = {"whiten_advantages": True}
_WEIGHTED = {"is_weight": "sequence"}
_FILTERED = {"is_filter": ("token:ratio:0.6:1.8",)}
_PENALTY = {"overlong_penalty": (4, 3, 1.5)}
NEEDS = {
    "kl_target": _KL,
    "component_weights": {"reward_components": COMPONENTS},
    "is_weight": _WEIGHTED,
    "rollout_reward": {"unit": "rollout"},
    "mask_before_norm": {"drop_truncated": True},
    "difficulty_weight": {"length_weight": True},  # so that both recipes have weights
    "length_weight": {"difficulty_weight": True},
    "age_decay": {"difficulty_weight": True},
}
"""What a field needs to be valid, or to have an effect."""
NEEDS |= dict.fromkeys(("is_cap", "is_mask", "is_policy"), _WEIGHTED)
NEEDS |= {f"{DETAIL}{name}": _PENALTY for name in ("penalty_length", "penalty_floor")}
NEEDS |= {name: _WHITENED for name in VALUES if name.startswith(f"{DETAIL}whiten_")}
NEEDS |= {name: _KL for name in VALUES if name.startswith((f"{DETAIL}kl_", f"{DETAIL}log_"))}
NEEDS |= {name: _WEIGHTED for name in VALUES if name.startswith(f"{DETAIL}is_")}
NEEDS |= {
    "numerics.constant": {"norm_mean": "none", "norm_std": "group"},
    "numerics.missing_components": {"reward_components": COMPONENTS, "nonfinite": "mask"},
    "numerics.clip_stages": {**_KL, "reward_clip": 0.4},
    "numerics.correction": _FILTERED,
    "numerics.kl_clamp": _KL,
    "numerics.is_filter_clamp": _FILTERED,
    "numerics.is_missing": {**_WEIGHTED, "nonfinite": "mask"},
}
OF_ESTIMATOR = {
    "gdpo": {"reward_components": COMPONENTS},
    "opd": {"teachers": {"teacher_a": 1.0}},
}

# Data


def _tokens(rng, lengths):
    """Token columns by name; log-probs differ a little, or by dozens of nats."""
    total = int(lengths.sum())
    old = -rng.exponential(0.8, total)
    far = rng.random(total) < rng.choice([0.0, 0.1])
    columns = {"old_log_probs": np.where(far, -60.0, old)}
    for name in ("ref_log_probs", "infer_log_probs", "log_probs", "teacher_a", "teacher_b"):
        shift = rng.normal(0, 0.4, total)
        columns[name] = np.where(rng.random(total) < 0.05, -60.0, np.minimum(old + shift, 0))
    columns["values"] = rng.normal(0, 1, total)
    columns["token_rewards"] = rng.choice([0.0, 0.0, 0.5, -0.25, 2.0], total)
    columns["sum_pi_squared"] = rng.random(total)
    columns["entropy"] = rng.random(total)
    columns["policy_version"] = rng.integers(0, 3, total)
    return columns


def _rewards(rng, groups):
    """Rewards; some groups have equal ones."""
    kind = rng.integers(3)
    rewards = rng.normal(0.5, 1, len(groups)) if kind else rng.integers(0, 2, len(groups))
    equal = rng.random(groups.max() + 1) < 0.25
    return np.where(equal[groups], np.take(rewards, groups % len(rewards)), rewards)


def _keys(rng):
    """Groups of 1 to 5 rows, and their batches."""
    sizes = rng.choice([1, 1, 2, 3, 4, 5], rng.integers(2, 6))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    if rng.random() < 0.4:
        groups = rng.permutation(groups)
    steps, count = rng.integers(1, 4), len(groups)
    batch = rng.integers(0, steps, len(sizes))[groups]
    if rng.random() < 0.2:  # a group in two batches
        batch = rng.integers(0, steps, count)
    return groups, batch


def _lacking(rng, columns, lengths):
    """The columns without some, or without all of tokens."""
    for name in ("token_rewards", "ref_log_probs", "log_probs", "infer_log_probs"):
        if rng.random() < (0.5 if name == "token_rewards" else 0.1):
            del columns[name]
    if rng.random() < 0.9:
        return columns
    columns = {name: x for name, x in columns.items() if not pa.types.is_list(x.type)}
    known = rng.random() < 0.5
    return columns | ({"response_length": pa.array(lengths, pa.int64())} if known else {})


def random_table(rng):
    """A small table with all roles, or without some."""
    groups, batch = _keys(rng)
    count = len(groups)
    lengths = rng.choice([0, 1, 1, 2, 3, 4, 5, 6], count)
    if not lengths.any():
        lengths[0] = 3
    bounds = np.concatenate([[0], lengths.cumsum()])
    keep = rng.choice([1.0, 0.6])
    mask = rng.random(bounds[-1]) < keep
    mask[0] = True
    components = rng.choice([0.0, 0.5, 1.0], (count, 2))
    if rng.random() < 0.3:
        components[rng.random((count, 2)) < 0.2] = np.nan
    traj = rng.integers(0, 3, count)
    episode = rng.normal(0.5, 1, 100)
    rewards = _rewards(rng, groups)
    turn = np.array([(traj[:i] == t)[groups[:i] == groups[i]].sum() for i, t in enumerate(traj)])
    columns = {
        "prompt_id": pa.array([f"p{g}" for g in groups]),
        "step": pa.array(batch, pa.int64()),
        "domain": pa.array(rng.choice(["math", "code"], count).tolist()),
        "reward": pa.array(rewards, pa.float32()),
        "other_reward": pa.array(rng.normal(0, 1, count), pa.float32()),
        "difficulty": pa.array(rng.random(count), pa.float32()),
        "reward_baseline": pa.array(rng.normal(0.5, 1, count), pa.float32()),
        "finish_reason": pa.array(rng.choice(["stop", "stop", "length"], count).tolist()),
        "traj_id": pa.array([f"t{t}" for t in traj]),
        "turn": pa.array(turn, pa.int64()),
        "state_id": pa.array(rng.choice(["s0", "s1"], count).tolist()),
        "step_score": pa.array(rng.normal(0, 1, count), pa.float32()),
        "agent_role": pa.array(rng.choice(["judge", "solver", "other"], count).tolist()),
        "turn_reward": pa.array(rng.choice([0.0, 0.5, 1.0, np.nan], count), pa.float32()),
        "win_rate": pa.array(rng.choice([0.0, 0.5, 1.0, np.nan], count), pa.float32()),
        "hack": pa.array(rng.random(count) < 0.2),
        "episode_score": pa.array(episode[groups * 3 + traj], pa.float32()),
        "rollout": pa.array([f"r{r}" for r in rng.integers(0, rng.choice([2, 40]), count)]),
        "failure": pa.array(rng.choice(["", "", "", "crash"], count).tolist()),
        "run_attempt": pa.array(rng.integers(0, rng.choice([1, 3]), count), pa.int64()),
        "next_value": pa.array(rng.normal(0, 1, count), pa.float32()),
        "response_mask": ragged(np.split(mask.astype(int), bounds[1:-1]), "list", pa.uint8()),
    }
    prompts = np.split(rng.integers(0, 2, count), np.arange(1, count))
    columns["prompt_token_ids"] = ragged(prompts, "list", pa.int32())
    ids = np.split(rng.integers(0, 2, bounds[-1]), bounds[1:-1])
    columns["response_token_ids"] = ragged(ids, "list", pa.int32())
    for name, values in zip(COMPONENTS, components.T, strict=True):
        columns[name] = pa.array(values, pa.float32())
    tokens = _tokens(rng, lengths)
    for name in ("old_log_probs", "infer_log_probs"):
        if rng.random() < 0.1:
            tokens[name][rng.integers(0, bounds[-1])] = np.nan
    for name, values in tokens.items():
        columns[name] = ragged(np.split(values, bounds[1:-1]), "list", pa.float32())
    if rng.random() < 0.2:
        columns["sample_mask"] = pa.array(rng.random(count) < 0.8)
    return pa.table(_lacking(rng, columns, lengths))


@cache
def drawn(number):
    """The random numbers of a try, and its table."""
    draws = Draws(SEED, number)
    return draws, random_table(draws.of("table"))


# Recipes


def nested(fields):
    """Fields with those of the numerics, and the estimator's options, in their tables."""
    tables = {"numerics": {}, "options": {}}
    for name in fields:
        if "." in name:
            table, _, key = name.partition(".")
            tables[table][key] = fields[name]
    return {n: x for n, x in fields.items() if "." not in n} | tables


@dataclass(frozen=True)
class Draws:
    """Random numbers by name, so that another field does not change what the others draw."""

    seed: int
    number: int

    def of(self, what):
        """The generator of a name."""
        return np.random.default_rng([self.seed, self.number, crc32(what.encode())])

    def largest(self, names, what, most=1):
        """Some of these names, those that draw the largest numbers."""
        return sorted(names, key=lambda name: -self.of(f"{what} {name}").random())[:most]

    def value(self, name, values, what="value"):
        """One of the values of a field."""
        return values[self.of(f"{what} {name}").integers(len(values))]

    def chosen(self, share):
        """The names of a share of the fields."""
        fields = (name for name, values in VALUES.items() if values)
        return [name for name in fields if self.of(f"chosen {name}").random() < share]


def random_fields(draws):
    """Values of some fields, and of those that they need."""
    share = draws.of("share").choice([0.05, 0.15, 0.3])
    (estimator,) = draws.largest(ESTIMATORS, "estimator")
    return fitting(draws, draws.chosen(share), estimator)


def reading(draws, name, table):
    """A few random fields, with what a stage needs to read one, and the recipe; None if none does.

    The estimator is one whose stages read the field.
    """
    for estimator in draws.largest(ESTIMATORS, "estimator", None):
        values = {**fitting(draws, draws.chosen(0.03), estimator), **NEEDS.get(name, {})}
        try:
            base = bound(table, values, everything=True)
        except RlpostError:
            continue
        if name in fields_of(base.plan.resolved):
            return values, base
    return None


def names_of(estimator):
    """The fields that have other values, and no option of another estimator."""
    options = {f"options.{name}" for name in ESTIMATORS[estimator].options}
    return {n for n, x in VALUES.items() if x and (n in options or not n.startswith("options."))}


def fitting(draws, chosen, estimator):
    """Values of these fields with an estimator, and of the fields that they need."""
    fields = {"estimator": estimator}
    for name in chosen:
        if name not in names_of(estimator):
            continue
        value = draws.value(name, VALUES[name])
        fields = {**NEEDS.get(name, {}), name: value, **fields}
    return {**OF_ESTIMATOR.get(estimator, {}), **fields}


def other_value(draws, fields, name):
    """The fields with another value of one: the default, or one of the list."""
    default = {k: v for k, v in fields.items() if k != name}
    others = [x for x in VALUES[name] if x != fields.get(name)]
    if name in fields and (not others or draws.of(f"default {name}").random() < SOME):
        return default
    return {**fields, name: draws.value(name, others, "other")} if others else None


class Bound(NamedTuple):
    """A recipe on a table: its plan and the columns that it computes."""

    plan: object
    names: tuple


def bound(table, fields, *, everything):
    """The recipe of some fields, which writes all that it computes, or what it does by default."""
    recipe = Recipe(**nested(fields))
    plan = run.bind(TableSource(table), recipe)
    if not everything:
        return Bound(plan, emitted(plan.resolved))
    names = [*WRITTEN, *EXTRA]
    resolved = plan.resolved
    if "group" not in plan.columns:
        names = [name for name in names if name not in GROUP_COLUMNS]
    lacking = {
        "sample_weight": not resolved.recipe.weighs_responses,
        "is_weight": recipe.is_weight is None,
        "kl": not resolved.has_kl,
        "response_advantage": not resolved.constant,
    }
    if resolved.rows_only:
        lacking |= dict.fromkeys(
            ("advantages", "returns", "is_weight", "raw_advantages", "token_level_rewards", "kl",
             "final_response_mask"), True)  # fmt: skip
    names = tuple(name for name in names if not lacking.get(name))
    plan = run.bind(TableSource(table), recipe.model_copy(update={"emit": names}))
    return Bound(plan, emitted(plan.resolved))


def numbers(one):
    """The computed columns; the name of the error if there is one."""
    try:
        engine = run.engine_for(one.plan, Options(workers=1))
        with single_threaded():
            responses = engine.responses(one.names)
            parts = list(engine.last_pass([0], responses, one.names, lambda columns: columns))
    except RlpostError as error:
        return type(error).__name__
    table = pa.Table.from_batches([columns for part in parts for *_, columns in part.parts])
    return {name: bits(table[name]) for name in table.schema.names}


def bits(column):
    """The values of a column as bytes; lists one after another."""
    array = column.combine_chunks()
    values = array.flatten() if pa.types.is_list(array.type) else array
    return values.to_numpy(zero_copy_only=False).tobytes()


def differing(one, other):
    """The columns of both that differ; that there is an error if one has none."""
    if isinstance(one, str) or isinstance(other, str):
        return [] if one == other else ["error"]
    return [name for name in one if name in other and one[name] != other[name]]


# The law


UNREAD = ("estimator_name", "emit", "emit_only", "replace")
"""Fields that change no number, but names, and which columns are written."""
OF_ESTIMATORS_DEFAULTS = ("response_level_rewards", "token_level_rewards")
"""Columns before the estimator's stage, which change with its defaults for fields of rewards."""
ELSEWHERE = {
    "options.turn_baseline": "turns that several rollouts of a group reach: test_turn_credit.py",
}
"""Fields that change numbers of data that this test does not have."""


def behind(plan, column):
    """The fields that can change a column of a recipe."""
    fields = fields_behind(plan.resolved, column)
    return fields | {"estimator"} if column in OF_ESTIMATORS_DEFAULTS else fields


@dataclass
class Counts:
    """What changes of one field at a time did."""

    unread: Counter = field(default_factory=Counter)
    """Changes of fields that no stage reads."""
    wrong: dict = field(default_factory=dict)
    """Those that changed a number: by field, the seconds, the recipe, the value and the columns."""
    read: Counter = field(default_factory=Counter)
    """Changes of fields that a stage reads."""
    moved: Counter = field(default_factory=Counter)
    """Those that changed a number."""
    outside: dict = field(default_factory=dict)
    """Those that changed a column to which no stage that reads the field leads."""


def changed(table, before, other, *, everything):
    """The recipe with another value, and the columns that differ; None if it is not valid."""
    try:
        one = None if other is None else bound(table, other, everything=everything)
    except RlpostError:
        return None
    return None if one is None else (one, differing(before, numbers(one)))


def examine(fields, *, seed, recipes, seconds=0.0, both=False):
    """Change one field at a time of random recipes on random data.

    Args:
        fields: of a resolved recipe, the names of the fields that it reads.
        seed: of all random numbers.
        recipes: the least number of recipes.
        seconds: the least time.
        both: a field is read if the changed recipe reads it, even if the first does not.
    """
    counts, start, number = Counts(), time.perf_counter(), 0
    while number < recipes or time.perf_counter() - start < seconds:
        draws = Draws(seed, number)
        number += 1
        table, values = random_table(draws.of("table")), random_fields(draws)
        everything = draws.of("everything").random() < 0.7
        try:
            base = bound(table, values, everything=everything)
        except RlpostError:
            continue
        reads, before = fields(base.plan.resolved), numbers(base)
        for name in some_fields(draws, names_of(values["estimator"]), reads, counts):
            other = other_value(draws, values, name)
            result = changed(table, before, other, everything=everything)
            if result is None:
                continue
            one, moved = result
            if name in reads or (both and name in fields(one.plan.resolved)):
                counts.read[name] += 1
                counts.moved[name] += bool(moved)
                outside = {c for c in moved if name not in behind(base.plan, c)} - {"error"}
                if outside and name in reads:
                    counts.outside[name] = (outside, values, one.plan.resolved.recipe)
                continue
            if moved == ["error"]:  # one recipe reads NaN, or masks drop every response
                continue
            counts.unread[name] += 1
            if moved and name not in counts.wrong:
                passed = round(time.perf_counter() - start, 1)
                counts.wrong[name] = (passed, values, one.plan.resolved.recipe, moved)
    return counts


def some_fields(draws, names, reads, counts):
    """Names of unread fields to change, and of the read ones that were changed least."""
    read = sorted(draws.largest(names & reads, "read", None), key=lambda name: counts.moved[name])
    return [*draws.largest(names - reads, "unread", 8), *read[:READ]]


def test_every_field_has_another_value():
    names = {*Recipe.model_fields} - {"numerics", "options"}
    names |= {f"options.{name}" for x in ESTIMATORS.values() for name in x.options}
    names |= {f"{DETAIL}{name}" for name in Numerics.model_fields}
    lacks, others = sorted(names - {*VALUES}), sorted({*VALUES} - names)
    assert not lacks, f"VALUES of this file lacks {lacks}: add values other than the default"
    assert not others, f"VALUES of this file has {others}, which are no fields: remove them"


def test_a_field_that_no_stage_reads_changes_no_number():
    counts = examine(fields_of, seed=SEED, recipes=RECIPES, seconds=SECONDS)
    assert not counts.wrong
    assert not counts.outside
    assert len(counts.unread) > 30, counts.unread  # no option of another estimator


@pytest.mark.parametrize("name", sorted({*VALUES} - {*UNREAD} - {*ELSEWHERE}))
def test_a_field_that_a_stage_reads_changes_some_number(name):
    read = 0
    for number in range(TRIES):
        draws, table = drawn(number)
        recipe = reading(draws, name, table)
        if recipe is None:
            continue
        values, base = recipe
        other = other_value(draws, values, name)
        result = changed(table, numbers(base), other, everything=True)
        if result is not None and result[1]:
            return
        read += 1
    if not read:
        pytest.fail(
            f"{name} is read by no stage of {TRIES} random recipes: name it in `fields_by_part` of "
            "rlpost/pipeline/effects.py, and in NEEDS of this file what that stage needs"
        )
    pytest.fail(
        f"{name} is read by a stage of {read} random recipes, and changes no number: name it only "
        "if it can, or add to VALUES of this file a value, or to NEEDS fields, with which it does"
    )
