"""Numbers of responses: penalties, masks, weights, running moments; by reference and by hand."""

import math

import numpy as np
import pytest
import reference as ref
from hypothesis import given
from hypothesis import strategies as st
from kernel_values import DOUBLE, double
from reference import Response

from rlpost.kernels import codes as codes_of_rows
from rlpost.kernels import moments, rewards

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")


lengths = st.lists(st.integers(0, 20), min_size=1, max_size=12)


def of_lengths(tokens, **columns):
    """A response of each of these many policy tokens, and the lengths as a tensor."""
    names = columns or {"reward": [0.0] * len(tokens)}
    rows = [
        Response(**{"group": "p", "reward": 0.0, **dict(zip(names, xs, strict=True))}, mask=[1] * n)
        for n, *xs in zip(tokens, *names.values(), strict=True)
    ]
    return rows, np.array(tokens, dtype=np.int64)


@given(lengths, st.integers(1, 20), st.integers(1, 20), st.sampled_from([0.0, 0.5, 3.0]))
def test_the_overlong_penalty(tokens, limit, buffer, factor):
    rows, sizes = of_lengths(tokens)
    got = rewards.overlong_penalty(sizes, max_len=limit, buffer=buffer, factor=factor)
    assert got.dtype == DOUBLE
    assert got.tolist() == ref.overlong_penalties(rows, limit, buffer, factor)


batch = st.lists(st.floats(-100, 100), min_size=1, max_size=6)


@given(st.lists(batch, min_size=1, max_size=6))
def test_running_moments_equal_the_reference(batches):
    known, own = rewards.RunningMoments(), ref.RunningMoments()
    for xs in batches:
        own.fold(xs)
        known = known.merged(len(xs), ref.mean(xs), ref.std(xs) ** 2 * (len(xs) - 1) / len(xs))
        assert (known.count, known.mean) == pytest.approx((own.count, own.mean), abs=1e-12)
        assert (known.variance, known.std) == pytest.approx((own.var, own.std), rel=1e-6, abs=1e-6)


def test_running_moments_of_one_batch_are_the_plain_moments():
    xs = [1.0, 4.0, 4.0, -3.0]
    known = rewards.RunningMoments().merged(4, ref.mean(xs), ref.std(xs) ** 2 * 3 / 4)
    assert (known.mean, known.std) == pytest.approx((ref.mean(xs), ref.std(xs)))
    assert known.merged(0, 9.0, 9.0) == known
    assert rewards.RunningMoments().std == 0


def test_running_statistics_are_per_domain_in_batch_order():
    sets = moments.Moments(double([2, 1, 2]), double([1.0, 7.0, 5.0]), double([2**0.5, 0, 2**0.5]))
    mean, std, after = rewards.running_statistics(sets, [0, 1, 0], {})
    assert mean.tolist() == pytest.approx([1, 7, 3])
    assert std.tolist() == pytest.approx([math.sqrt(2), 0, math.sqrt(20 / 3)])
    assert after[0].count == pytest.approx(4)
    again, _, _ = rewards.running_statistics(sets, [0, 1, 0], after)
    assert again.tolist() == pytest.approx([14 / 6, 7, 3])


@given(lengths, st.data())
def test_the_mask_of_long_errors_equals_the_reference(tokens, data):
    drawn = st.sampled_from([0.0, 1.0, 0.5])
    xs = data.draw(st.lists(drawn, min_size=len(tokens), max_size=len(tokens)))
    rows, sizes = of_lengths(tokens, reward=xs)
    limit = data.draw(st.integers(1, 20))
    kept = rewards.without_long_errors(double(xs), sizes, limit=limit)
    assert kept.tolist() == ref.error_max_len_kept(rows, limit)


def test_the_bounds_of_the_difficulty_mask_are_exclusive():
    mean, size = double([0.1, 0.2, 0.9, 0.95, 1.0]), np.array([4, 4, 4, 4, 1])
    kept = rewards.within_difficulty(mean, size, low=0.1, high=0.95)
    assert kept.tolist() == [False, True, True, False, True]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.floats(-2, 3), st.integers(0, 2)), min_size=1, max_size=12
    )
)
def test_sample_weights_equal_the_reference(cells):
    columns = {name: [cell[i] for cell in cells] for i, name in ((1, "difficulty"), (2, "batch"))}
    rows, sizes = of_lengths([cell[0] for cell in cells], **columns)
    got = rewards.difficulty_weights(double(columns["difficulty"]))
    assert got.tolist() == ref.difficulty_weights(rows)
    keys = np.array(columns["batch"])
    shortest, longest = codes_of_rows.keyed_extremes(sizes.astype(DOUBLE), keys, 3)
    got = rewards.length_weights(sizes.astype(DOUBLE), shortest[keys], longest[keys])
    assert got.tolist() == pytest.approx(ref.length_weights(rows))
    absent = [key for key in range(3) if key not in columns["batch"]]
    assert shortest[absent].tolist() == [math.inf] * len(absent)
    assert longest[absent].tolist() == [-math.inf] * len(absent)


def whole(xs):
    return np.array(xs, dtype=np.int64)


def test_an_empty_batch_does_not_change_running_moments():
    empty = moments.Moments(double([0.0, 2.0]), double([9.0, 4.0]), double([9.0, math.sqrt(2)]))
    mean, std, after = rewards.running_statistics(empty, [0, 0], {})
    assert mean.tolist() == [0, 4]
    assert std.tolist() == pytest.approx([0, math.sqrt(2)])
    assert after[0].count == 2


def test_the_running_standard_deviation_needs_two_rewards():
    one = rewards.RunningMoments().merged(1, 5.0, 0.0)
    assert (one.mean, one.std) == (5.0, 0.0)
    two = one.merged(1, 7.0, 0.0)
    assert (two.mean, two.std) == pytest.approx((6.0, math.sqrt(2)))


def test_running_moments_start_with_a_negligible_count():
    start = rewards.RunningMoments()
    assert (start.count, start.mean, start.variance) == (1e-24, 0.0, 1.0)
    assert start.merged(start.count, 0.0, 0.0).variance == 0.5


# Rewards


def test_unscored_components_add_nothing_and_no_scored_component_gives_nan():
    components = double([[1.0, math.nan], [2.0, 4.0], [math.nan, math.nan], [math.nan, 4.0]])
    got = rewards.component_sum(components, double([1.0, 0.5]))
    assert got[:2].tolist() == [1.0, 4.0]
    assert got[3].item() == 2.0
    assert math.isnan(got[2])


def test_rescale_clamps_to_an_interval_and_maps_it_onto_another():
    got = rewards.rescale(double([-9.0, 2.0, 3.0, 6.0, 99.0]), scale=(2.0, 6.0, 10.0, 18.0))
    assert got.tolist() == [10.0, 10.0, 12.0, 18.0, 18.0]


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


@pytest.mark.parametrize(("penalty", "want"), [(0.5, 1.5), (0.0, 0.0), (-2.0, -2.0)])
def test_the_truncation_penalty_multiplies_rewards_or_replaces_them_if_negative(penalty, want):
    got = rewards.truncation_penalty(double([3.0, 3.0]), np.array([True, False]), penalty=penalty)
    assert got.tolist() == [want, 3.0]


def test_the_group_length_penalty_is_the_mean_reward_times_the_share_of_the_longest():
    lengths = double([[1.0, 0.0], [4.0, 0.0], [3.0, 5.0]])
    got = rewards.group_length_penalty(
        double([1.0, 3.0, 7.0]), lengths, np.array([0, 2, 3]), weights=(0.5, 0.25)
    )
    assert got.tolist() == [2 * 0.5 / 4, 2 * 0.5, 7 * 0.75]


def test_the_group_length_penalty_of_lengths_below_one():
    lengths = double([[0.25], [0.5]])
    got = rewards.group_length_penalty(double([1.0, 1.0]), lengths, whole([0, 2]), weights=(1,))
    assert got.tolist() == [0.5, 1.0]


# Weights


def test_sample_weights_at_the_ends_of_their_ranges():
    assert rewards.difficulty_weights(double([-1, 0, 0.5, 1, 3])).tolist() == [
        0.5, 0.5, 1.25, 2, 2,
    ]  # fmt: skip
    got = rewards.length_weights(double([2, 4, 6]), double([2] * 3), double([6] * 3))
    want = [1.5, 1.5 - 2 / (4 + 1e-8), 1.5 - 4 / (4 + 1e-8)]
    assert got.tolist() == pytest.approx(want, rel=1e-12)
    alone = rewards.length_weights(double([3.0]), double([3.0]), double([3.0]))
    assert alone.tolist() == [1.5]
