"""Totals over sets of keys against fractions."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlpost.pipeline.totals import ExactTotals, Totals

NUMBERS = st.floats(-1e300, 1e300) | st.floats(-1, 1) | st.sampled_from([0.0, 5e-324, 1e-300])
ROWS = st.lists(st.tuples(st.integers(0, 5), NUMBERS), min_size=1, max_size=12)


def exact_statistic(numbers: list[float]) -> dict[str, float | None]:
    if not numbers:
        return {"mean": None, "std": None, "min": None, "max": None}
    count, total = len(numbers), sum(map(Fraction, numbers))
    squares = sum(Fraction(number * number) for number in numbers)
    variance = (squares - total * total / count) / (count - 1) if count > 1 else Fraction(0)
    return {
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
        assert found.statistic("x") == exact_statistic(numbers)
        assert found.count("x.count") == len(numbers)
        assert found.total("x.total") == sum(map(Fraction, numbers))
        share = Fraction(len(numbers)) and found.total("x.total") / len(numbers)
        assert found.share("x.total", "x.count") == float(share)
        assert found == totals.over(chosen)


def test_totals_without_keys_have_no_numbers():
    assert ExactTotals().over_each([[], [1]]) == [Totals(), Totals()]
    assert Totals().statistic("x")["mean"] is None
