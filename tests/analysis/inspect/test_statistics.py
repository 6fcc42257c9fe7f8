"""Statistics: pass@k, exact sums, standard deviations that lose no digits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
