"""Statistics: pass@k, exact sums, deviations that lose no digits, rollouts that count once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspected_files import SAMPLES

from rlpost.analysis.inspect.facts import inspect
from rlpost.analysis.inspect.inspected import pass_at_k
from rlpost.pipeline.measures import Numbers
from rlpost.pipeline.totals import ExactTotals


@given(st.integers(1, 300), st.integers(0, 300))
def test_pass_at_k_is_that_of_exact_binomials(size, passed):
    passed = min(size, passed)
    for one in pass_at_k(np.array([size]), np.array([passed])):
        exact = 1 - Fraction(math.comb(size - passed, one.k), math.comb(size, one.k))
        assert one.value == pytest.approx(float(exact), abs=1e-12, rel=0)


def test_pass_at_k_of_a_group_of_a_million_responses():
    found = {one.k: one.value for one in pass_at_k(np.array([10**6]), np.array([2]))}
    draws = [k * (2 * 10**6 - k - 1) / (10**6 * (10**6 - 1)) for k in found]
    assert [*found.values()] == pytest.approx(draws)


def spread_of(values, offsets=None):
    """The numbers of a measure of responses, or of their tokens."""
    numbers = Numbers()
    if offsets is None:
        numbers.add_numbers("x", values, np.ones(len(values), np.bool_))
    else:
        numbers.add_tokens("x", values, None, offsets)
    keys = np.zeros(len(numbers.sums["x.count"]), np.int64)
    totals = ExactTotals.of(keys, numbers.sums, numbers.spans).total()
    return totals.numbers("x", totals.count("x.count"))


def test_spread_of_one_number_and_of_no_number():
    assert spread_of(np.array([2.0])) == {
        "count": 1, "mean": 2.0, "std": 0.0, "min": 2.0, "max": 2.0,
    }  # fmt: skip
    assert spread_of(np.array([]))["mean"] is None


@pytest.mark.parametrize("lengths", [None, [1000] * 100, [1] * 99_999 + [1]])
def test_a_small_deviation_of_large_numbers_is_not_lost(lengths):
    """Σx² - (Σx)²/n in floats has no digit of it: x² has 16 digits, and the deviation is 1e-9 x."""
    values = 1e6 + np.where(np.arange(100_000) % 2, 1e-3, -1e-3)
    offsets = None if lengths is None else np.append(0, np.cumsum(lengths))
    found = spread_of(values, offsets)
    centred = values - 1e6  # exact
    want = math.sqrt(math.fsum((centred - math.fsum(centred) / 1e5) ** 2) / (1e5 - 1))
    assert found["std"] == pytest.approx(want, rel=1e-12)
    assert found["std"] == pytest.approx(1e-3, rel=1e-4)


CALCULATOR = SAMPLES / "calculator.parquet"
REWARD_OF = {
    "last": pl.col("reward").last(),
    "sum": pl.col("reward").sum(),
    "mean": pl.col("reward").mean(),
}


@pytest.mark.parametrize("reward", REWARD_OF)
def test_statistics_of_groups_count_a_rollout_once(reward):
    by = ["step", "prompt_id"]
    rollouts = (
        pl.read_parquet(CALCULATOR)
        .group_by([*by, "traj_id"], maintain_order=True)
        .agg(reward=REWARD_OF[reward], cut=pl.col("finish_reason").last() == "length")
    )
    groups = rollouts.group_by(by).agg(
        pl.len(), passed=(pl.col("reward") >= 1).sum(), equal=pl.col("reward").n_unique() == 1
    )
    found = inspect([CALCULATOR], rollout_reward=reward)
    assert (found.responses, found.unit) == (919, "rollout")
    assert found.prompt_groups.sizes == {8: 32} == dict(groups["len"].value_counts().iter_rows())
    assert found.prompt_groups.pass_at_k[0].value == pytest.approx((groups["passed"] / 8).mean())
    assert found.whole("equal_rewards")["total"] == groups["equal"].sum()
    best = found.prompt_groups.pass_at_k[-1]
    assert (best.k, best.value) == (8, pytest.approx((groups["passed"] > 0).mean()))
    rows = inspect([CALCULATOR], unit="row")
    assert rows.unit == "response"
    assert rows.prompt_groups.sizes.keys() != {8}
    assert (found.rollouts, rows.rollouts) == (256, None)
    numbers = found.whole("reward")
    assert (numbers["count"], rows.whole("reward")["count"]) == (256, 919)
    assert (numbers["mean"], numbers["std"]) == pytest.approx(
        (rollouts["reward"].mean(), rollouts["reward"].std())
    )
    assert found.whole("truncated")["total"] == rollouts["cut"].sum() > 0
    of_steps = rollouts.group_by("step").agg(pl.mean("reward", "cut")).sort("step")
    assert found.labels("step") == of_steps["step"].to_list()
    assert found.by("step", "reward") == pytest.approx(of_steps["reward"].to_list())
    assert found.by("step", "truncated") == pytest.approx(of_steps["cut"].to_list())
    assert sum(found.by("step", "counted", "count")) == 919
