"""The values of a batch at or above a quantile: against sorted fractions."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlpost.kernels import trimming

LISTS = st.lists(
    st.one_of(st.floats(0, 4, width=32), st.floats(0, 1e-40), st.sampled_from([0.25, 1e40])),
    max_size=30,
)


@given(LISTS, st.sampled_from([0.01, 0.2, 0.5, 0.9, 1.0]), st.integers(0, 2**31))
def test_the_values_at_or_above_a_quantile_stay(values, share, seed):
    """The quantile is between two values, as numpy's; equal values stay together."""
    rng, values = np.random.default_rng(seed), np.array(values, np.float64)
    competes = rng.random(len(values)) < 0.9
    found = trimming.top_share(values, competes, share)
    single = np.minimum(values, np.finfo(np.float32).max).astype(np.float32)[competes]
    own = np.sort(single)
    ranks = Fraction(len(own) - 1) * (1 - Fraction(str(share)))
    least = [x for rank, x in enumerate(own) if rank >= ranks]
    assert found[competes].tolist() == [x >= least[0] for x in single]
