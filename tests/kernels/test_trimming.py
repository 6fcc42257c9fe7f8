"""The tokens of a batch whose mean is below a bound: against sorted fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpost.kernels import trimming

LISTS = st.lists(
    st.one_of(st.floats(0, 4, width=32), st.floats(0, 1e-40), st.sampled_from([0.25, 1e40])),
    max_size=30,
)


def slow(values, bound):
    """Whether each value stays: the largest ones leave, equal ones together, the smallest never."""
    single = [Fraction(float(np.float32(min(x, np.finfo(np.float32).max)))) for x in values]
    for cut in sorted({*single}, reverse=True):
        kept = [x for x in single if x <= cut]
        if sum(kept) / len(kept) < Fraction(bound) or cut == min(single):
            return [x <= cut for x in single]
    return []


@given(LISTS, st.sampled_from([0.02, 0.25, 1.0, 1e-41, 1e30]), st.integers(0, 2**31))
def test_the_largest_leave_until_the_mean_is_below_the_bound(values, bound, seed):
    rng, values = np.random.default_rng(seed), np.array(values, np.float64)
    batch, competes = rng.integers(0, 3, len(values)), rng.random(len(values)) < 0.9
    at = rng.integers(0, len(values) + 1)

    def tally(codes, dropped):
        return trimming.Tally.empty().plus(codes[at:], dropped).plus(codes[:at], dropped)

    codes = trimming.leading_codes(values, batch, competes)
    boundary = trimming.boundary_of(tally(codes, trimming.LEADING), 3, bound)
    codes = trimming.trailing_codes(values, batch, competes, boundary.bins)
    cuts = trimming.cuts_of(tally(codes, 0), boundary, bound)
    found = trimming.up_to(values, batch, cuts)
    for code in range(3):
        own = competes & (batch == code)
        assert found[own].tolist() == slow(values[own], bound)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([0.01, 0.02, 0.5], [True, True, False]),
        ([0.02, 0.02], [True, True]),  # nothing is below the bound: the smallest ones stay
        ([0.02, 0.03], [True, False]),
        ([0.0, 0.04, 0.04], [True, False, False]),  # a mean equal to the bound is not below it
    ],
)
def test_by_hand(values, kept):
    assert slow(values, float(np.float32(0.02))) == kept
