"""Numbers of responses: penalties, masks, weights, running moments; by reference and by hand."""

import math

import numpy as np
import pytest
import reference as ref
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import double

from rlpost.kernels import moments, rewards

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=1, max_size=6))
def test_running_moments_equal_the_reference(batches):
    known, slow = rewards.RunningMoments(), ref.RunningMoments()
    for xs in batches:
        slow.fold(xs)
        known = known.merged(len(xs), ref.mean(xs), ref.std(xs) ** 2 * (len(xs) - 1) / len(xs))
        assert (known.count, known.mean) == pytest.approx((slow.count, slow.mean), abs=1e-12)
        assert (known.variance, known.std) == pytest.approx(
            (slow.var, slow.std), rel=1e-6, abs=1e-6
        )


def whole(xs):
    return np.array(xs, dtype=np.int64)


def test_an_empty_batch_does_not_change_running_moments():
    empty = moments.Moments(double([0.0, 2.0]), double([9.0, 4.0]), double([9.0, math.sqrt(2)]))
    mean, std, after = rewards.running_statistics(empty, [0, 0], {})
    assert mean.tolist() == [0, 4]
    assert std.tolist() == pytest.approx([0, math.sqrt(2)])
    assert after[0].count == 2


def test_unscored_components_add_nothing_and_no_scored_component_gives_nan():
    components = double([[1.0, math.nan], [2.0, 4.0], [math.nan, math.nan], [math.nan, 4.0]])
    got = rewards.component_sum(components, double([1.0, 0.5]))
    assert got[:2].tolist() == [1.0, 4.0]
    assert got[3].item() == 2.0
    assert math.isnan(got[2])


def test_the_overlong_penalty_grows_over_the_buffer_and_may_have_a_floor():
    tokens = np.array([0, 6, 7, 8, 10, 14])
    got = rewards.overlong_penalty(tokens, max_len=10, buffer=4, factor=2.0)
    assert got.tolist() == [0, 0, -0.5, -1, -2, -4]
    got = rewards.overlong_penalty(tokens, max_len=10, buffer=4, factor=2.0, floor="factor")
    assert got.tolist() == [0, 0, -0.5, -1, -2, -2]
    got = rewards.overlong_penalty(tokens, max_len=10, buffer=4, factor=2.0, floor="one")
    assert got.tolist() == [0, 0, -0.5, -1, -1, -1]
    got = rewards.overlong_penalty(tokens, max_len=10, buffer=4, factor=0.5, floor="one")
    assert got.tolist() == [0, 0, -0.125, -0.25, -0.5, -1]


def test_the_group_length_penalty_of_lengths_below_one():
    lengths = double([[0.25], [0.5]])
    got = rewards.group_length_penalty(double([1.0, 1.0]), lengths, whole([0, 2]), weights=(1,))
    assert got.tolist() == [0.5, 1.0]


def test_sample_weights_at_the_ends_of_their_ranges():
    assert rewards.difficulty_weights(double([-1, 0, 0.5, 1, 3])).tolist() == [
        0.5, 0.5, 1.25, 2, 2,
    ]  # fmt: skip
    got = rewards.length_weights(double([2, 4, 6]), double([2] * 3), double([6] * 3))
    want = [1.5, 1.5 - 2 / (4 + 1e-8), 1.5 - 4 / (4 + 1e-8)]
    assert got.tolist() == pytest.approx(want, rel=1e-12)
    alone = rewards.length_weights(double([3.0]), double([3.0]), double([3.0]))
    assert alone.tolist() == [1.5]
