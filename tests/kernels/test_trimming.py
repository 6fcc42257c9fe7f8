"""The tokens of a batch whose mean is below a bound: against sorted fractions."""

from fractions import Fraction

import numpy as np
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

    rule = trimming.MeanBelow(bound)
    codes = trimming.leading_codes(values, batch, competes)
    boundary = rule.boundary(tally(codes, trimming.LEADING), 3)
    codes = trimming.trailing_codes(values, batch, competes, boundary.bins)
    found = rule.keeps(values, batch, rule.cuts(tally(codes, 0), boundary))
    for code in range(3):
        own = competes & (batch == code)
        assert found[own].tolist() == slow(values[own], bound)


@given(LISTS, st.sampled_from([0.01, 0.2, 0.5, 0.9, 1.0]), st.integers(0, 2**31))
def test_the_values_at_or_above_a_quantile_stay(values, share, seed):
    """The quantile is between two values, as numpy's; equal values stay together."""
    rng, values = np.random.default_rng(seed), np.array(values, np.float64)
    competes = rng.random(len(values)) < 0.9
    found = trimming.kept_of(values, competes, trimming.TopShare(share))
    single = np.minimum(values, np.finfo(np.float32).max).astype(np.float32)[competes]
    own = np.sort(single)
    ranks = Fraction(len(own) - 1) * (1 - Fraction(str(share)))
    least = [x for rank, x in enumerate(own) if rank >= ranks]
    assert found[competes].tolist() == [x >= least[0] for x in single]
