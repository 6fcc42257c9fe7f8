"""KL per token and its coefficient: against the reference, with all clamps, and by hand."""

import math

import numpy as np
import pytest
import reference as ref
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import double

from rlpost.kernels import kl

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


log_probs = st.floats(-400, 0)


pairs = st.lists(st.tuples(log_probs, log_probs), max_size=12)


@given(pairs, st.sampled_from(["k1", "abs", "k2", "k3"]), st.sampled_from([40.0, 2.0, math.inf]))
def test_kl_equals_the_reference_with_all_clamps(cells, estimator, bound):
    old, base = (double([pair[i] for pair in cells]) for i in (0, 1))
    before = old.copy(), base.copy()
    got = kl.token_kl(old, base, estimator=estimator, log_ratio_clamp=bound, clamp=10.0)
    assert (np.array_equal(old, before[0]), np.array_equal(base, before[1])) == (True, True)
    distances = [ref.clamp(a - b, -bound, bound) for a, b in cells]
    want = [ref.divergence(d, estimator) if d > -700 else 10.0 for d in distances]
    assert got.tolist() == pytest.approx(want, rel=1e-12, abs=1e-300)


def test_k3_of_nearly_equal_policies_keeps_its_digits():
    got = kl.token_kl(double([1e-9]), double([0.0]), estimator="k3", log_ratio_clamp=40, clamp=10)
    assert got.tolist() == pytest.approx([0.0], abs=1e-16)
    got = kl.token_kl(double([1e-4]), double([0.0]), estimator="k3", log_ratio_clamp=40, clamp=10)
    assert got.tolist() == pytest.approx([0.5e-8 - 1e-12 / 6], rel=1e-8)


@given(st.lists(st.tuples(st.floats(-1, 10), st.integers(1, 50)), max_size=8))
def test_the_kl_coefficient_adapts_after_each_batch(batches):
    means, sizes = [kl for kl, _ in batches], [n for _, n in batches]
    got = kl.adaptive_coefficients(means, sizes, start=0.2, target=0.5, horizon=20.0)
    beta, want = 0.2, []
    for value, n in batches:
        want.append(beta)
        beta *= 1 + ref.clamp(value / 0.5 - 1, -0.2, 0.2) * n / 20
    assert got == pytest.approx(want)
