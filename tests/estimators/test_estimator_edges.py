"""Estimators by hand: groups of one, ties, nothing earned, empty responses, every knob."""

import math

import numpy as np
import pytest

from rlpost.estimators.groups import gdpo, gpg, grpo_passk, max_rl, opo, rae, rloo
from rlpost.estimators.returns import agentic_reinforce, gae, reinforce, token_weights
from rlpost.estimators.turns import gigpo_rewards, step_returns

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

DOUBLE = np.float64
NONE = np.zeros(1, dtype=np.int64)
"""Offsets of no groups."""


def double(xs):
    return np.array(xs, dtype=DOUBLE)


def whole(xs):
    return np.array(xs, dtype=np.int64)


# Advantages of tokens


def test_gae_on_numbers_computed_by_hand():
    rewards, values, offsets = double([1.0, 2.0, 4.0]), double([1.0, 3.0, 0.5]), whole([0, 2, 2, 3])
    credit = gae(rewards, values, offsets, gamma=0.5, lam=0.5)
    assert credit.advantages.tolist() == [1.25, -1.0, 3.5]
    assert credit.returns.tolist() == [2.25, 2.0, 4.0]
    for empty in (NONE, whole([0, 0])):
        assert gae(double([]), double([]), empty).advantages.tolist() == []


def test_returns_are_undiscounted_by_default():
    rewards, offsets = double([1.0, 2.0, 4.0]), whole([0, 2, 3])
    assert reinforce(rewards, offsets).returns.tolist() == [3, 2, 4]
    assert reinforce(rewards, offsets, gamma=0.25).returns.tolist() == [1.5, 2, 4]


def test_policy_segments_get_the_sum_of_their_rewards_or_the_last():
    rewards = double([1.0, 2.0, 99.0, 4.0, 8.0, 16.0])
    mask, offsets = np.array([1, 1, 0, 1, 1, 1], dtype=np.bool_), whole([0, 5, 6])
    got = agentic_reinforce(rewards, offsets, mask, gamma=0.5).advantages
    assert got.tolist() == [9.0, 9.0, 0.0, 12.0, 12.0, 16.0]
    last = agentic_reinforce(rewards, offsets, mask, gamma=0.5, segment_reward="last")
    assert last.returns.tolist() == [6.0, 6.0, 0.0, 8.0, 8.0, 16.0]
    assert agentic_reinforce(rewards, offsets, mask).returns[0].item() == 15.0
    assert agentic_reinforce(rewards, offsets).returns.tolist() == [114.0] * 5 + [16.0]


def test_the_optimal_token_baseline_weighs_by_score_norm_and_capped_ratios():
    old, infer = (
        double([math.log(0.5), math.log(0.25), 0.0]),
        double([math.log(0.25)] * 2 + [-99.0]),
    )
    squares, offsets = double([0.5, 0.25, 1.0]), whole([0, 2, 3])
    assert token_weights(old, squares, offsets).tolist() == pytest.approx([0.5, 1.25, 0.0])
    same = token_weights(old, squares, offsets, infer)
    assert same.tolist() == pytest.approx([0.5, 1.25, 0.0])
    assert token_weights(old, squares, offsets, None, ratio_cap=9.0).tolist() == same.tolist()
    capped = token_weights(old, squares + 1, offsets, infer, ratio_cap=1.5)
    assert capped.tolist() == pytest.approx([1.5 * 2.25, 1.5 * 2.25 + 1.75, 2.25])
    free = token_weights(old, squares + 1, offsets, infer, ratio_cap=math.inf)
    assert free.tolist() == pytest.approx([1.5 * 4, 1.5 * 4 + 1.75, math.exp(40)])
    far = token_weights(infer, squares + 1, offsets, old, ratio_cap=9.0)
    assert far[2].item() == pytest.approx(3 * math.exp(-40), rel=1e-9, abs=0)


# Advantages of responses


def test_rloo_of_groups_of_one_two_and_three():
    got = rloo(double([5.0, 1.0, 3.0, 1.0, 2.0, 6.0]), whole([0, 1, 3, 6])).advantages
    assert got.tolist() == pytest.approx([0, -2, 2, -3, -1.5, 4.5])


def test_gpg_divides_by_the_share_of_non_zero_rewards_of_each_batch():
    rewards, batch = double([0.0, 1.0, 0.0, 2.0, 0.0, 0.0]), whole([0, 0, 0, 1, 2, 2])
    offsets = whole([0, 2, 3, 4, 6])
    got = gpg(rewards, batch, offsets, f_norm=2.0).advantages
    assert got.tolist() == [-0.75, 0.75, 0, 0, 0, 0]
    got = gpg(rewards, batch, offsets, single="raw").advantages
    assert got.tolist() == [-1.5, 1.5, 0, 2, 0, 0]
    assert gpg(double([-1.0, 1.0]), whole([0, 0]), whole([0, 2])).advantages.tolist() == [-1, 1]


def test_max_rl_is_0_for_groups_whose_mean_is_0_or_less():
    rewards = double([0.0, 0.0, -1.0, 1.0, -3.0, 1.0, 0.0, 0.5, 3.0])
    got = max_rl(rewards, whole([0, 2, 4, 6, 8, 9])).advantages
    assert got.tolist() == [0, 0, 0, 0, 0, 0, -1, 1, 0]


def test_opo_weighs_by_length_and_has_baseline_0_without_tokens():
    rewards, tokens = double([1.0, 3.0, 1.0, 3.0, 4.0, 5.0]), whole([0, 0, 1, 3, 2, 0])
    got = opo(rewards, tokens, whole([0, 2, 4, 5, 6])).advantages
    assert got.tolist() == [1, 3, -1.5, 0.5, 0, 5]


def test_grpo_passk_is_the_lead_of_the_best():
    rewards, offsets = double([2.0, 0.0, 1.0, 3.0, 1.0, 1.0, -2.0, 5.0]), whole([0, 1, 4, 6, 8])
    lead = grpo_passk(rewards, offsets, norm_std="none").advantages
    assert lead.tolist() == [0, 0, 0, 2, 0, 0, 0, 7]
    got = grpo_passk(rewards, offsets).advantages
    three, two = math.sqrt(7 / 3), 7 / math.sqrt(2)
    want = [0, 0, 0, 2 / (three + 1e-6), 0, 0, 0, 7 / (two + 1e-6)]
    assert got.tolist() == pytest.approx(want, rel=1e-12)
    assert grpo_passk(rewards, offsets, norm_eps=1.0).advantages[3].item() == pytest.approx(
        2 / (three + 1)
    )


def test_gdpo_weighs_components_divided_by_their_own_standard_deviation():
    components = double([[0.0, 5.0, math.nan], [2.0, 1.0, 4.0], [7.0, 7.0, 7.0]])
    offsets = whole([0, 2, 3])
    got = gdpo(components, offsets, component_weights=(1.0, 0.5, 3.0), norm_std="none").advantages
    assert got.tolist() == [-1 + 1, 1 - 1, 0]
    root = math.sqrt(2)
    got = gdpo(components, offsets, component_weights=(1.0, 0.5, 3.0)).advantages
    one = 1 / (root + 1e-6) - 0.5 * 2 / (2 * root + 1e-6)
    assert got.tolist() == pytest.approx([-one, one, 0], rel=1e-6, abs=1e-15)
    one = 1 / (root + 1e-6) - 2 / (2 * root + 1e-6)
    assert gdpo(components, offsets).advantages.tolist() == pytest.approx(
        [-one, one, 0], rel=1e-6, abs=1e-15
    )


@pytest.mark.parametrize("by", ["row", "group"])
def test_rae_subtracts_the_moving_average_of_the_domain(by):
    rewards = [1.0, 4.0, 2.0, 8.0, 16.0, 3.0]
    domain, group = [0, 1, 0, 0, 1, 2], [0, 0, 1, 0, 1, 1]
    order = sorted(range(6), key=lambda row: (group[row] if by == "group" else 0, row))
    averages, want = {}, [0.0] * 6
    for row in order:
        before = averages.get(domain[row], 0.0)
        want[row] = rewards[row] - before
        averages[domain[row]] = 0.75 * before + 0.25 * rewards[row]
    got = rae(double(rewards), whole(domain), whole(group), ema_decay=0.75, order=by)
    assert got.advantages.tolist() == pytest.approx(want)
    assert got.returns.tolist() == got.advantages.tolist()


def test_rae_has_a_default_decay_of_0_9_and_accepts_missing_domains():
    got = rae(double([1.0, 1.0]), whole([2, 2]), whole([0, 0])).advantages
    assert got.tolist() == pytest.approx([1.0, 0.9])
    assert rae(double([]), whole([]), whole([])).advantages.tolist() == []


# Steps


def test_step_returns_are_discounted_sums_over_later_turns():
    score, turn = double([4.0, 1.0, 2.0, 8.0, 16.0]), whole([2, 0, 1, 0, 0])
    trajectory, group = whole([0, 0, 0, 1, 0]), whole([0, 0, 0, 0, 1])
    got = step_returns(score, turn, trajectory, group, step_gamma=0.5)
    assert got.tolist() == [4, 3, 4, 8, 16]
    assert step_returns(score, turn, trajectory, group).tolist() == [4, 7, 6, 8, 16]
    assert step_returns(double([]), whole([]), whole([]), whole([])).tolist() == []


def gigpo(**knobs):
    """Two trajectories of two turns and one of one, the second of each from state 1."""
    return gigpo_rewards(
        double([1.0, 2.0, 5.0, 4.0, 9.0]), double([0.0, 0.0, 3.0, 3.0, 6.0]),
        whole([0, 1, 0, 1, 0]), whole([0, 0, 1, 1, 2]), whole([0, 1, 0, 1, 1]),
        whole([0, 0, 0, 0, 1]), whole([0] * 5), norm_std="none", **knobs,
    ).tolist()  # fmt: skip


def test_gigpo_adds_episode_and_step_scores():
    episode = [-1.5, -1.5, 1.5, 1.5, 0]
    step = [(3 - 9) / 2, -1, (9 - 3) / 2, 1, 0]
    assert gigpo() == [a + b for a, b in zip(episode, step, strict=True)]
    got = gigpo(episode_weight=2.0, step_weight=0.25)
    assert got == [2 * a + b / 4 for a, b in zip(episode, step, strict=True)]
    assert gigpo(step_weight=0.0, norm_mean="none") == [0, 0, 3, 3, 6]
    assert gigpo(episode_weight=0.0, step_gamma=0.5) == [(2 - 7) / 2, -1, (7 - 2) / 2, 1, 0]


def test_gigpo_compares_states_within_a_batch_and_counts_rows():
    got = gigpo(episode_weight=0.0, states="batch")
    assert got == [-3, 2 - 5, 3, 4 - 5, 9 - 5]
    three = gigpo_rewards(
        double([0.0] * 3), double([0.0, 0.0, 3.0]), whole([0, 1, 0]), whole([0, 0, 1]),
        whole([0, 1, 2]), whole([0] * 3), whole([0] * 3), norm_std="none", episodes="row",
    )  # fmt: skip
    assert three.tolist() == [-1, -1, 2]


def test_gigpo_of_no_steps_is_empty():
    none, ids = double([]), whole([])
    assert gigpo_rewards(none, none, ids, ids, ids, ids, ids).tolist() == []


def test_gigpo_divides_by_the_standard_deviation_of_trajectories():
    got = gigpo_rewards(
        double([0.0] * 3), double([0.0, 0.0, 3.0]), whole([0, 1, 0]), whole([0, 0, 1]),
        whole([0, 1, 2]), whole([0] * 3), whole([0] * 3),
    )  # fmt: skip
    one = 1.5 / (math.sqrt(4.5) + 1e-6)
    assert got.tolist() == pytest.approx([-one, -one, one], rel=1e-12)
