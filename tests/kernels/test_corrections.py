"""Weights and divergences of the off-policy correction: against plain loops, laws, and by hand."""

import math

import numpy as np
import pytest
import reference_corrections as slow
from corrected_rows import LEVELS, close
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_values import double, flags
from strategies import rollouts

from rlpost.kernels import corrections
from rlpost.recipe.recipe import MEASURES

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")
few = settings(max_examples=25)

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def flat(rows, name):
    return np.array([x for row in rows for x in getattr(row, name)], dtype=np.float64)


def tensors(rows):
    """Old and infer log-probs, mask and offsets."""
    sizes = np.array([0, *(len(row.mask) for row in rows)])
    return flat(rows, "old"), flat(rows, "infer"), flat(rows, "mask") > 0, sizes.cumsum(0)


@few
@given(rollouts(), st.sampled_from(LEVELS), st.sampled_from(["level", "token"]))
def test_log_weights_are_those_of_the_loops(rows, level, at):
    old, infer, mask, offsets = tensors(rows)
    for bound in (math.inf, 0.3):
        want = [slow.log_weights(one, level, bound, at) for one in rows]
        limits = {"clamp": bound, "clamp_at": at}
        got = corrections.log_weights(old, infer, mask, offsets, level=level, **limits)
        close([got], want, **EXACT)


@few
@given(
    rollouts(), st.sampled_from(sorted({*MEASURES} - {"age"})), st.sampled_from((*LEVELS, "max"))
)
def test_divergences_are_those_of_the_loops(rows, measure, level):
    old, infer, mask, offsets = tensors(rows)
    want = [slow.divergences(one, measure, level, 0.7) for one in rows]
    options = {"measure": measure, "level": level, "clamp": 0.7}
    got = corrections.divergence(old, infer, mask, offsets, **options)
    if level in corrections.RESPONSE_LEVELS:
        assert got.shape == (len(rows),)
        got = got.repeat(np.diff(offsets))
    close([got], want, **EXACT)


@few
@given(rollouts(), st.sampled_from(LEVELS))
def test_a_cap_of_infinity_and_open_bounds_change_nothing(rows, level):
    logs = corrections.log_weights(*tensors(rows), level=level)
    found = corrections.importance_weights(logs)
    assert np.array_equal(found.values, np.exp(logs))
    assert not found.truncated.any()
    assert not found.masked.any()


def test_weights_truncate_at_the_cap_and_the_floor_and_mask_beyond_the_bounds():
    logs = np.log([0.25, 0.5, 1.0, 2.0, 4.0])
    found = corrections.importance_weights(logs, cap=1.5, floor=0.6, bounds=(0.4, 3.0))
    assert found.values.tolist() == pytest.approx([0, 0.6, 1, 1.5, 0])
    assert found.truncated.tolist() == [False, True, False, True, False]
    assert found.masked.tolist() == [True, False, False, False, True]


def test_bounds_belong_to_what_stays():
    logs = np.log([0.5, 2.0])
    assert not corrections.importance_weights(logs, bounds=(0.5, 2.0)).masked.any()


def test_a_weight_without_clamp_is_a_float32():
    found = corrections.importance_weights(np.array([1e4, -1e4], dtype=np.float64))
    assert np.isfinite(found.values.astype(np.float32)).all()


def test_a_segment_ends_with_its_response_and_at_observations():
    mask = np.array([1, 1, 0, 1, 1, 1, 0], np.bool_)
    values = np.array([1.0, 3, 99, 5, 7, 9, 99])
    means = corrections.segment_means(values, mask, np.array([0, 0, 4, 7, 7]))
    assert means.tolist() == [2, 2, 0, 5, 8, 8, 0]


@few
@given(rollouts(extreme=True))
def test_levels_are_related(rows):
    old, infer, mask, offsets = tensors(rows)
    logs = {
        level: corrections.log_weights(old, infer, mask, offsets, level=level) for level in LEVELS
    }
    count = corrections.reduce_responses(mask.astype(np.float64), mask, offsets, level="sequence")
    times = count.repeat(np.diff(offsets))
    policy = {level: values[mask] for level, values in logs.items()}
    np.testing.assert_allclose(policy["geometric"] * times[mask], policy["sequence"])
    whole = np.ones_like(mask)
    one_run = corrections.log_weights(old, infer, whole, offsets, level="segment")
    geometric = corrections.log_weights(old, infer, whole, offsets, level="geometric")
    np.testing.assert_allclose(one_run, geometric)


# The gap between engine and trainer
LOGS = (double([-1.0, -9.0, -3.0]), double([-2.0, -1.0, -2.5]))  # d = 1, -8, -0.5


MASK, BOUNDS = flags([1, 0, 1]), np.array([0, 3, 3])


@pytest.mark.parametrize(
    ("measure", "want"),
    [
        ("ratio", [math.exp(1), math.exp(-8), math.exp(-0.5)]),
        ("diff", [math.exp(a) - math.exp(b) for a, b in ((-1, -2), (-9, -1), (-3, -2.5))]),
        ("k1", [-1, 8, 0.5]),
        ("k2", [0.5, 32, 0.125]),
        ("k3", [math.exp(d) - 1 - d for d in (1, -8, -0.5)]),
        ("tv", [abs(math.exp(d) - 1) for d in (1, -8, -0.5)]),
        ("error", [math.exp(1), math.exp(8), math.exp(0.5)]),
        ("prob_gap", [0.23254416, 0.36775603, 0.03229793]),
        ("bkl", [0.13553105, 2.65317555, 0.00929980]),
    ],
)
def test_each_divergence_of_tokens_is_its_formula(measure, want):
    got = corrections.divergence(*LOGS, MASK, BOUNDS, measure=measure, level="token")
    assert got.tolist() == pytest.approx(want)


def test_response_levels_skip_observations_and_are_0_without_policy_tokens():
    values = double([-5.0, 99.0, -3.0])
    levels = {"sequence": -8.0, "geometric": -4.0, "max": -3.0}
    for level, want in levels.items():
        got = corrections.reduce_responses(values, MASK, BOUNDS, level=level)
        assert got.tolist() == [want, 0.0]


def test_a_weight_equal_to_the_cap_or_the_floor_is_not_truncated():
    found = corrections.importance_weights(double([0.0]), cap=1.0, floor=1.0)
    assert (found.values.tolist(), found.truncated.tolist()) == ([1.0], [False])
