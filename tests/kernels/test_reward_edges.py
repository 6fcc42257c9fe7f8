"""Rewards and KL by hand: penalties where they begin and end, moments carried over batches."""

import math

import pytest
import torch

from rlpost.kernels import kl, moments, rewards

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

DOUBLE = torch.float64


def double(xs):
    return torch.tensor(xs, dtype=DOUBLE)


def whole(xs):
    return torch.tensor(xs, dtype=torch.int64)


# KL and numbers carried from batch to batch


def test_k4_has_a_default_ratio_of_1():
    old, base = double([-1.0, -2.0]), double([-3.0, -1.0])
    assert kl.token_kl(old, base, estimator="k4").tolist() == [2.0, -1.0]
    assert kl.token_kl(old, base, estimator="k4", ratio=0.5).tolist() == [1.0, -0.5]


def test_adaptive_coefficients_need_one_row_count_for_each_batch():
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        kl.adaptive_coefficients([0.1, 0.2], [3], start=0.1, target=1.0, horizon=10.0)


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
    tokens = torch.tensor([0, 6, 7, 8, 10, 14])
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
    got = rewards.truncation_penalty(
        double([3.0, 3.0]), torch.tensor([True, False]), penalty=penalty
    )
    assert got.tolist() == [want, 3.0]


def test_the_group_length_penalty_is_the_mean_reward_times_the_share_of_the_longest():
    lengths = double([[1.0, 0.0], [4.0, 0.0], [3.0, 5.0]])
    got = rewards.group_length_penalty(
        double([1.0, 3.0, 7.0]), lengths, torch.tensor([0, 2, 3]), weights=(0.5, 0.25)
    )
    assert got.tolist() == [2 * 0.5 / 4, 2 * 0.5, 7 * 0.75]


def test_the_group_length_penalty_of_lengths_below_one():
    lengths = double([[0.25], [0.5]])
    got = rewards.group_length_penalty(double([1.0, 1.0]), lengths, whole([0, 2]), weights=(1,))
    assert got.tolist() == [0.5, 1.0]


def test_the_group_length_penalty_needs_a_weight_for_each_length():
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        rewards.group_length_penalty(
            double([1.0]), double([[1.0, 2.0]]), whole([0, 1]), weights=(1.0,)
        )
