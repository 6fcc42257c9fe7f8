"""Quantiles of histograms against those of sorted numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import double

from rlpost.kernels import quantiles
from rlpost.kernels.histogram import tally

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


def quantile(counts, share):
    return quantiles.quantiles(*counts, [share])[0]


def counted(xs):
    return tally(double(xs), bits=quantiles.BITS), len(xs)


sided = st.floats(2.0**-20, 2.0**6, exclude_max=True, width=32)


@given(st.lists(sided | sided.map(lambda x: -x) | st.just(0.0), min_size=1), st.floats(0, 1))
def test_a_quantile_is_within_its_error_of_the_exact_one(xs, share):
    got, ordered = quantile(counted(xs), share), sorted(xs)
    # The least number with so many numbers up to it; of a count next to a whole one, that one.
    ranks = {max(1, math.ceil(share * len(xs) * (1 + shift))) for shift in (-1e-12, 0.0)}
    wants = [ordered[min(rank, len(xs)) - 1] for rank in ranks]
    assert any(abs(got - want) <= abs(want) / 64 for want in wants)


@pytest.mark.parametrize(
    ("share", "rank"), [(0.0, 1), (0.01, 1), (0.07, 7), (0.071, 8), (0.55, 55), (1.0, 100)]
)
def test_quantiles_of_share_0_and_1_are_the_first_and_last_number(share, rank):
    numbers = [2.0 ** (place / 32) for place in range(-60, 40)]  # each in a bin of its own
    want = numbers[rank - 1]
    assert quantile(counted(numbers), share) == pytest.approx(want, rel=1 / 64)
    assert quantile(counted([-x for x in numbers]), share) == pytest.approx(
        -numbers[100 - rank], rel=1 / 64
    )


def test_a_quantile_is_the_middle_of_its_bin():
    assert quantile(counted([1.0]), 0.5) == 1 + 1 / 64
    assert quantile(counted([-3.0]), 0.5) == -3.03125
    assert quantile(counted([2.0**-20]), 0.5) == 2.0**-20 * (1 + 1 / 64)
    assert quantile(counted([1e-9]), 0.5) == 0
    assert quantile(counted([1e9]), 0.5) == 63.5
    assert quantile(counted([1.0, 1e9, 1e9, 1e9]), 0.5) == 63.5
    assert math.copysign(1, quantile(counted([0.0]), 0.5)) == 1  # not -0.0
