"""Weights and divergences of the off-policy correction: against plain loops, laws, and by hand."""

import numpy as np
import pytest
import reference_corrections as slow
from corrected_rows import LEVELS, close
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_values import double
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


def test_weights_truncate_at_the_cap_and_the_floor_and_mask_beyond_the_bounds():
    logs = np.log([0.25, 0.5, 1.0, 2.0, 4.0])
    found = corrections.importance_weights(logs, cap=1.5, floor=0.6, bounds=(0.4, 3.0))
    assert found.values.tolist() == pytest.approx([0, 0.6, 1, 1.5, 0])
    assert found.truncated.tolist() == [False, True, False, True, False]
    assert found.masked.tolist() == [True, False, False, False, True]


def test_a_segment_ends_with_its_response_and_at_observations():
    mask = np.array([1, 1, 0, 1, 1, 1, 0], np.bool_)
    values = np.array([1.0, 3, 99, 5, 7, 9, 99])
    means = corrections.segment_means(values, mask, np.array([0, 0, 4, 7, 7]))
    assert means.tolist() == [2, 2, 0, 5, 8, 8, 0]


def test_a_weight_equal_to_the_cap_or_the_floor_is_not_truncated():
    found = corrections.importance_weights(double([0.0]), cap=1.0, floor=1.0)
    assert (found.values.tolist(), found.truncated.tolist()) == ([1.0], [False])
