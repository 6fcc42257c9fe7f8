"""Formulas at their edges, on both libraries: an equal bound, nearly equal policies."""

import math

import pytest
from array_kinds import array_of, numbers_of

from rlpost.kernels.corrections import importance_weights
from rlpost.kernels.kl import token_kl

BOTH = pytest.mark.parametrize("kind", ["numpy", "torch"])


@BOTH
def test_a_weight_equal_to_a_bound_is_not_beyond_it(kind):
    logs = array_of(kind, [-0.5, 0.0, 0.5])
    capped = importance_weights(logs, cap=1.0)
    assert numbers_of(capped.truncated).tolist() == [False, False, True]
    masked = importance_weights(logs, bounds=(1.0, 1.0))
    assert numbers_of(masked.masked).tolist() == [True, False, True]


@BOTH
@pytest.mark.parametrize("gap", [1e-4, -1e-4, 1e-6])
def test_k3_of_nearly_equal_policies_keeps_its_digits(kind, gap):
    value = token_kl(array_of(kind, [gap]), array_of(kind, [0.0]), estimator="k3")
    series = gap**2 / 2 - gap**3 / 6 + gap**4 / 24
    assert math.isclose(numbers_of(value)[0], series, rel_tol=1e-8, abs_tol=0)
