"""Terms of divergences against their definitions, for arrays of numpy and of torch."""

import math
from fractions import Fraction

import numpy as np
import pytest

from rlpost.kernels import divergence


def double(values):
    return np.array(values, dtype=np.float64)


KINDS = pytest.mark.parametrize("array", [np.array, double])


@KINDS
def test_terms_are_those_of_schulman(array):
    nats = array([0.5, -2.0, 0.0, 1e-9])
    excess = array([math.expm1(x) for x in nats.tolist()])
    terms = divergence.kl_terms(nats, excess)
    assert terms["k1"].tolist() == [-0.5, 2.0, 0.0, -1e-9]
    want = [math.exp(x) - 1 - x for x in (0.5, -2.0, 0.0)] + [5e-19]
    assert terms["k3"].tolist() == pytest.approx(want, rel=1e-7)
    ratios = [math.exp(x) for x in nats.tolist()]
    assert divergence.chi_square(excess).tolist() == pytest.approx([r * r - 1 for r in ratios])


def test_the_effective_sample_size_is_a_share():
    assert divergence.effective_sample_size(4, 8.0, 16.0) == 1.0
    assert divergence.effective_sample_size(4, Fraction(1), Fraction(1)) == 0.25
    assert divergence.effective_sample_size(0, 0.0, 0.0) is None


@KINDS
def test_confident_disagreement_is_probability_at_least_half_and_over_two_nats_apart(array):
    half = math.log(0.5)
    infer = array([half, half, -0.1, -0.8, -2.0, 0.0, 0.0])
    old = array([-3.0, -2.0, -2.2, -9.0, -0.0, -2.0, 2.5])
    found = divergence.confident_disagreement(infer, abs(old - infer))
    assert found.tolist() == [True, False, True, False, False, False, True]
