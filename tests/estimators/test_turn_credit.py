"""Credit of turns by hand: MT-GRPO and its bias, turn credit, turn GAE, GAR."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpost.estimators.agentic_reinforce import agentic_reinforce
from rlpost.estimators.gae import gae
from rlpost.estimators.gar import gar
from rlpost.estimators.mt_grpo import mt_grpo_rewards
from rlpost.estimators.turn_credit import turn_credit_rewards
from rlpost.estimators.turn_gae import turn_gae

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

NULL = np.nan


def double(xs):
    return np.array(xs, dtype=np.float64)


def whole(xs):
    return np.array(xs, dtype=np.int64)


# MT-GRPO

# Three rollouts of a group: of three turns, of two, and of one.
TURN, ROLLOUT, GROUP = whole([0, 1, 2, 0, 1, 0]), whole([0, 0, 0, 1, 1, 2]), whole([0] * 6)
GAINS = double([1.0, 2.0, 4.0, 0.0, 8.0, 3.0])


def turns(gains=GAINS, outcome=0.0, **knobs):
    outcomes = np.broadcast_to(double(outcome), (6,)).copy()
    options = {"norm_std": "none", **knobs}
    return mt_grpo_rewards(outcomes, gains, TURN, ROLLOUT, GROUP, TURN, **options).tolist()


def test_returns_are_compared_among_the_rollouts_that_reach_a_turn():
    # G: 7 6 4 | 8 8 | 3, so the means are 6 at turn 0, 7 at turn 1, 4 at turn 2
    assert turns() == [1, -1, 0, 2, 1, -3]
    # γ = 1/2: 3 4 4 | 4 8 | 3
    assert turns(step_gamma=0.5) == pytest.approx([3 - 10 / 3, -2, 0, 4 - 10 / 3, 2, 3 - 10 / 3])
    # leave-one-out: 7 - (8 + 3)/2, 6 - 8, 4 - 4, ...
    assert turns(norm_mean="others") == [1.5, -2, 0, 3, 2, -4.5]


def test_rewards_of_turns_are_summed_after_their_baselines():
    # means of rewards: 4/3 at turn 0, 5 at turn 1, 4 at turn 2
    first = 4 / 3
    want = [7 - first - 9, 6 - 9, 0, 8 - first - 5, 3, 3 - first]
    assert turns(turn_baseline="reward") == pytest.approx(want)


def test_a_turn_without_a_reward_adds_nothing():
    gains = double([1.0, NULL, 4.0, 0.0, 8.0, 3.0])
    assert turns(gains) == turns(np.nan_to_num(gains))
    # The mean reward of turn 1 is then that of the other rollout.
    assert turns(gains, turn_baseline="reward")[1] == 0


def test_outcomes_of_rollouts_count_once():
    outcome = [3.0, 3.0, 3.0, 0.0, 0.0, 0.0]
    assert turns(double([0.0] * 6), outcome) == [2, 2, 2, -1, -1, -1]
    assert turns(double([0.0] * 6), outcome, episode_weight=0.5) == [1, 1, 1, -0.5, -0.5, -0.5]
    assert turns(outcome=outcome, step_weight=0.0) == [2, 2, 2, -1, -1, -1]
    both = turns(double([0.0] * 6), outcome, norm_std="group")
    assert both == pytest.approx(double([2, 2, 2, -1, -1, -1]) / (np.sqrt(3) + 1e-6))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_bias_of_summed_baselines_is_the_mean_reward_of_the_turns_that_follow(seed):
    """T(reward) = G - Σ mₗ over the rollout's own turns: more turns, more is subtracted."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, 6)
    turn = np.concatenate([np.arange(n) for n in sizes])
    rollout = np.repeat(np.arange(6), sizes)
    gains, zeros = rng.normal(size=len(turn)), np.zeros(len(turn), np.int64)
    means = [gains[turn == k].mean() for k in range(5) if (turn == k).any()]
    options = {"norm_std": "none", "episode_weight": 0.0}
    found, biased = (
        mt_grpo_rewards(gains, gains, turn, rollout, zeros, turn, turn_baseline=how, **options)
        for how in ("return", "reward")
    )
    for row, (k, own) in enumerate(zip(turn, rollout, strict=True)):
        rest = (rollout == own) & (turn >= k)
        returns = gains[rest].sum()
        reaching = np.flatnonzero(turn == k)
        each = [gains[(rollout == rollout[i]) & (turn >= k)].sum() for i in reaching]
        assert biased[row] == pytest.approx(returns - sum(means[later] for later in turn[rest]))
        assert found[row] == pytest.approx(returns - np.mean(each))


def test_the_policy_gradient_is_exact_with_returns_and_biased_by_the_mean_reward_otherwise():
    """A policy goes on after turn 0 with probability p; the group has each case as often as it is.

    J = E[r₀] + p·E[r₁], so dJ/dp = E[r₁]. With baselines per reward the gradient of p lacks E[r₁],
    the mean reward of the turn that going on adds.
    """
    stops, goes = 2, 6  # p = 3/4
    p, mean = goes / (stops + goes), 2.5
    first = double([1.0, 3.0, *[2.0] * goes])
    second = double([1.0, 4.0] * (goes // 2))
    gains = np.concatenate([first, second])
    rollout = np.concatenate([np.arange(stops + goes), np.arange(stops, stops + goes)])
    turn = whole([0] * (stops + goes) + [1] * goes)
    score = double([-1 / (1 - p)] * stops + [1 / p] * goes)  # d log π / dp at turn 0

    def gradient(how):
        made = mt_grpo_rewards(
            np.zeros_like(gains), gains, turn, rollout, np.zeros_like(turn), turn,
            norm_std="none", turn_baseline=how,
        )  # fmt: skip
        return float((made[: stops + goes] * score).mean())

    assert gradient("return") == pytest.approx(mean)
    assert gradient("reward") == pytest.approx(mean - mean)


def test_turns_of_equal_number_are_joined_in_their_order():
    def made(order):
        return mt_grpo_rewards(
            double([0.0] * 3), double([1.0, 2.0, 4.0]), whole([0, 0, 0]), whole([0, 0, 0]),
            whole([0] * 3), order, norm_mean="none", norm_std="none",
        ).tolist()  # fmt: skip

    assert made(whole([0, 1, 2])) == [7, 6, 4]
    assert made(whole([2, 1, 0])) == [1, 3, 7]


# Turn credit


def credit(scores, tokens=(1, 1, 1), rewards=0.0, **knobs):
    rows = len(scores)
    return turn_credit_rewards(
        np.full(rows, rewards), double(scores), np.arange(rows), whole([0] * rows),
        whole([0] * rows), whole(tokens), **knobs,
    ).tolist()  # fmt: skip


def test_progress_is_divided_among_a_turn_and_those_before_it():
    # progress 0, 1, 3 without discount: 1/2 + 1, 1/2 + 1, 1; the mean is 4/3
    assert credit([0.0, 1.0, 4.0]) == pytest.approx([1 / 6, 1 / 6, -1 / 3])
    # γ = 0 leaves it where it was made
    assert credit([0.0, 1.0, 4.0], step_gamma=0.0) == pytest.approx([-4 / 3, -1 / 3, 5 / 3])
    # γ = 1/2: z = 1, 3/2, 7/4, so v = 0, 2/3, 12/7
    values = [0.5 * (2 / 3 + 6 / 7), 2 / 3 + 6 / 7, 12 / 7]
    want = double(values) - np.mean(values)
    assert credit([0.0, 1.0, 4.0], step_gamma=0.5) == pytest.approx(want.tolist())
    assert credit([0.0, 1.0, 4.0], step_gamma=0.5, step_weight=3.0) == pytest.approx(3 * want)


def test_a_turn_without_a_score_passes_its_progress_on():
    assert credit([0.0, NULL, 4.0], step_gamma=0.0) == pytest.approx([-4 / 3, -4 / 3, 8 / 3])
    assert credit([NULL, NULL, NULL]) == [0, 0, 0]


def test_the_shift_sums_to_zero_over_tokens():
    tokens = double([5, 1, 2])
    assert float(tokens @ credit([0.0, 1.0, 4.0], tokens=[5, 1, 2])) == pytest.approx(0)
    assert credit([0.0, 1.0, 4.0], tokens=[0, 0, 0]) == pytest.approx([1.5, 1.5, 1])


def test_levels_compare_outcome_and_net_progress_of_rollouts():
    made = turn_credit_rewards(
        double([1.0, 1.0, 0.0]), double([0.0, 0.5, NULL]), whole([0, 1, 0]), whole([0, 0, 1]),
        whole([0, 0, 0]), whole([1, 1, 1]), step_weight=0.0,
    )  # fmt: skip
    assert made.tolist() == [0.75, 0.75, -0.75]


# Turn GAE

MASK = np.array([1, 1, 0, 1, 0, 1, 1], bool)
BOUNDS = whole([0, 5, 7])
REWARDS = double([0.0, 1.0, 9.0, 2.0, 9.0, 0.0, 4.0])
VALUES = double([0.5, 0.25, 9.0, 1.0, 9.0, 2.0, 3.0])


def test_a_turn_is_one_step_from_the_value_at_its_first_token():
    # second turn: 2 - 1; first: 1 + 1/2·1 - 1/2 + 1/2·1/2·1; the other response: 4 - 2
    got = turn_gae(REWARDS, VALUES, BOUNDS, MASK, gamma=0.5, lam=0.5)
    assert got.advantages.tolist() == [1.25, 1.25, 0, 1, 0, 2, 2]
    assert got.returns.tolist() == [1.75, 1.75, 0, 2, 0, 4, 4]


def test_a_turn_may_have_the_value_at_its_last_token():
    got = turn_gae(REWARDS, VALUES, BOUNDS, MASK, gamma=0.5, lam=0.5, turn_value="last")
    assert got.advantages.tolist() == [1.5, 1.5, 0, 1, 0, 1, 1]


def test_turns_of_one_token_are_steps_of_gae_and_turns_without_values_their_returns():
    every = np.array([1, 0] * 3, bool)
    rewards, values = double([1.0, 0, 2, 0, 4, 0]), double([0.5, 0, 1, 0, 2, 0])
    got = turn_gae(rewards, values, whole([0, 6]), every, gamma=0.5).advantages
    want = gae(rewards[every], values[every], whole([0, 3]), gamma=0.5).advantages
    assert got[every].tolist() == want.tolist()
    zeros = np.zeros_like(VALUES)
    got = turn_gae(REWARDS, zeros, BOUNDS, MASK, gamma=0.5, lam=1.0)
    want = agentic_reinforce(REWARDS, BOUNDS, MASK, gamma=0.5)
    assert got.advantages.tolist() == want.advantages.tolist()


# GAR


def test_a_ranking_redistributes_the_positive_advantages_of_a_group():
    rates = double([NULL, 0.0, 1.0, NULL])
    # A = ±1/2; f = 1/2 and 1, so λ = 1 / (3/4)
    got = gar(double([0.0, 1.0, 1.0, 0.0]), rates, whole([0, 4])).advantages
    assert got.tolist() == pytest.approx([-0.5, 1 / 3, 2 / 3, -0.5])


def test_the_cap_of_the_factor_is_followed_by_a_new_centre():
    rates = double([NULL, 0.0, 0.0, NULL])
    got = gar(double([0.0, 1.0, 1.0, 0.0]), rates, whole([0, 4]), gar_floor=0.25).advantages
    # λ would be 4, and is 2: 2 · 1/4 · 1/2 = 1/4; the mean of (-1/2, 1/4, 1/4, -1/2) is -1/8
    assert got.tolist() == [-0.375, 0.375, 0.375, -0.375]


def test_a_hack_has_the_smallest_reward_of_its_group():
    hack = np.array([False, True, False])
    got = gar(double([0.5, 1.0, 2.0]), double([NULL] * 3), whole([0, 3]), hack).advantages
    assert got.tolist() == pytest.approx([-0.5, -0.5, 1.0])


def test_equal_rewards_and_groups_of_one_get_nothing():
    got = gar(double([0.7, 0.7, 3.0]), double([0.0, 1.0, 1.0]), whole([0, 2, 2, 3])).advantages
    assert got.tolist() == [0, 0, 0]
    assert gar(double([]), double([]), whole([0])).advantages.tolist() == []
