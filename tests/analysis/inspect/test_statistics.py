"""Statistics: pass@k, exact sums, spreads and histograms that grow."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.analysis.inspect.model import Spread
from rlpost.analysis.inspect.responses import pass_at_k
from rlpost.analysis.inspect.statistics import GrowingHistogram, exact_sum, pearson, spread_of


def test_pass_at_k_is_the_probability_that_one_of_k_responses_passes():
    for size, passed in [(1, 0), (1, 1), (5, 2), (8, 1), (8, 8)]:
        outcomes = [1] * passed + [0] * (size - passed)
        for one in pass_at_k(np.array([size]), np.array([passed])):
            draws = [any(draw) for draw in combinations(outcomes, one.k)]
            assert one.value == pytest.approx(np.mean(draws))


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


def test_groups_smaller_than_k_do_not_count():
    found = {one.k: one for one in pass_at_k(np.array([2, 8]), np.array([2, 0]))}
    assert (found[1].value, found[1].groups) == (0.5, 2)
    assert (found[4].value, found[4].groups) == (0.0, 1)


@given(st.lists(st.floats(-1e300, 1e300), max_size=40))
def test_sums_are_exact_in_any_order(values):
    numbers = np.array(values)
    assert float(exact_sum(numbers)) == math.fsum(values) == float(exact_sum(numbers[::-1]))


def test_spread_of_one_number_and_of_no_number():
    assert spread_of(np.array([2.0])) == Spread(1, 2.0, 0.0, 2.0, 2.0)
    assert spread_of(np.array([])).mean is None


def test_a_constant_with_rounding_errors_has_no_correlation():
    assert pearson(np.full(10, 0.1) + np.array([1e-17, 0] * 5), np.arange(10)) is None


@given(st.lists(st.floats(-1e12, 1e12), max_size=60), st.integers(1, 59))
def test_a_growing_histogram_does_not_depend_on_the_chunks(values, at):
    whole, chunks = GrowingHistogram(), GrowingHistogram()
    array = np.array(values, np.float64)
    whole.add(array)
    for chunk in (array[:at], array[at:]):
        chunks.add(chunk)
    bins = whole.bins(20)
    assert bins == chunks.bins(20)
    assert whole.count == chunks.count == len(values)
    assert (bins is None) == (len(set(array.tolist())) <= 1)
    if bins is not None:
        assert len(bins.counts) <= 20
        assert sum(bins.counts) >= 0.998 * len(values)
        inside = np.histogram(array, [*bins.edges[:-1], np.nextafter(bins.edges[-1], -np.inf)])[0]
        assert bins.counts == inside.tolist()


def test_a_growing_histogram_leaves_out_distant_numbers_and_ones_that_are_not_finite():
    histogram = GrowingHistogram()
    histogram.add(np.concatenate([np.linspace(-1, 1, 9_999), [1000.0, np.nan, np.inf]]))
    bins = histogram.bins(30)
    assert histogram.count == 10_000
    assert 1 <= histogram.count - sum(bins.counts) <= 20
    assert -1.25 <= bins.edges[0] < -0.9
    assert 0.9 < bins.edges[-1] <= 1.25
