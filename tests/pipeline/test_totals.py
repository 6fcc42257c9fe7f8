"""Totals over sets of keys against fractions."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summaries import whole

import rlpost
from rlpost.pipeline.measures import Numbers
from rlpost.pipeline.totals import ExactTotals, Totals

NUMBERS = st.floats(-1e300, 1e300) | st.floats(-1, 1) | st.sampled_from([0.0, 5e-324, 1e-300])
ROWS = st.lists(st.tuples(st.integers(0, 5), NUMBERS), min_size=1, max_size=12)


def exact_statistic(numbers: list[float]) -> dict[str, float | None]:
    if not numbers:
        return {"count": 0, "mean": None, "std": None, "min": None, "max": None}
    count, total = len(numbers), sum(map(Fraction, numbers))
    squares = sum(Fraction(number * number) for number in numbers)
    variance = (squares - total * total / count) / (count - 1) if count > 1 else Fraction(0)
    return {
        "count": count,
        "mean": float(total / count),
        "std": float(max(variance, Fraction(0))) ** 0.5,
        "min": min(numbers) + 0.0,
        "max": max(numbers) + 0.0,
    }


@given(ROWS, st.lists(st.lists(st.integers(0, 6), unique=True), max_size=4))
def test_totals_over_sets_of_keys_are_those_of_fractions(rows, sets):
    small = [(key, number if abs(number) < 1e150 else number * 1e-160) for key, number in rows]
    keys = np.array([key for key, _ in small])
    values = np.array([number for _, number in small], dtype=np.float64)
    parts = {"x.count": np.ones_like(values), "x.total": values, "x.squares": values**2}
    totals = ExactTotals.of(keys, parts, {"x": (values, values)})
    for chosen, found in zip(sets, totals.over_each(sets), strict=True):
        numbers = [number for key, number in small if key in chosen]
        assert found.numbers("x", len(numbers)) == exact_statistic(numbers)
        assert found.count("x.count") == len(numbers)
        assert found.total("x.total") == sum(map(Fraction, numbers))
        assert found == totals.over_each([chosen])[0]


def test_totals_without_keys_have_no_numbers():
    assert ExactTotals().over_each([[], [1]]) == [Totals(), Totals()]
    assert Totals().numbers("x", 0)["mean"] is None


def test_totals_of_other_names_do_not_add():
    keys, ones = np.zeros(1, np.int64), {"x": np.ones(1)}
    with pytest.raises(AssertionError, match="totals of other names"):
        ExactTotals.of(keys, ones, {}) + ExactTotals.of(keys, {"y": np.ones(1)}, {})


# Spreads a billionth as large as the numbers

COUNT, BASE, STD = 100_000, 1e6, 1e-3
LARGE = BASE + STD * np.random.default_rng(7).choice([-1.0, 1.0], COUNT)
WANT = {
    "count": COUNT,
    "mean": pytest.approx(BASE, rel=1e-11),
    "std": pytest.approx((LARGE - BASE).std(ddof=1), rel=1e-6),
    "min": LARGE.min(),
    "max": LARGE.max(),
}


def statistic_of(numbers: Numbers, keys: np.ndarray) -> dict[str, float | None]:
    counted = numbers.counted(keys)
    totals = counted.totals(counted.numbers).total()
    return totals.numbers("x", totals.count("x.count"))


def test_the_deviation_of_large_rewards_is_not_lost_to_rounding():
    assert (LARGE - BASE).std(ddof=1) == pytest.approx(STD, rel=1e-4)
    rows = {"prompt_id": np.arange(COUNT) // 8, "reward": LARGE, "step": np.arange(COUNT) % 3}
    summary = rlpost.enrich(pa.table(rows), rlpost.Recipe(estimator="raw"))[1]
    assert whole(summary, "reward") == WANT
    for step, std in enumerate(summary["facts"]["reward"]["step"]["std"]):
        assert std == pytest.approx((LARGE - BASE)[step::3].std(ddof=1), rel=1e-6)


def test_nor_is_that_of_large_advantages_of_tokens():
    lengths = np.random.default_rng(8).multinomial(COUNT, np.ones(300) / 300)
    lengths[:2] = 0, lengths[:2].sum()
    offsets, keys = np.concatenate([[0], lengths.cumsum()]), np.arange(300) % 4
    numbers = Numbers()
    numbers.add_tokens("x", LARGE, None, offsets)
    assert statistic_of(numbers, keys) == WANT
    mask, numbers = np.arange(COUNT) % 3 > 0, Numbers()
    numbers.add_tokens("x", np.where(mask, LARGE, 0.5), mask, offsets)
    want = pytest.approx((LARGE - BASE)[mask].std(ddof=1), rel=1e-6)
    assert statistic_of(numbers, keys) == {**WANT, "count": mask.sum(), "std": want}


def test_nor_is_that_of_responses_whose_tokens_have_one():
    count = np.arange(COUNT) % 7
    numbers = Numbers()
    numbers.add_constant("x", count, LARGE)
    want = pytest.approx((LARGE - BASE).repeat(count).std(ddof=1), rel=1e-6)
    found = statistic_of(numbers, np.arange(COUNT) % 4)
    assert found == {**WANT, "count": count.sum(), "std": want}
