"""Estimators of turns: the rewards of steps, which the return-to-go then credits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from rlpost.estimators.base import Estimator
from rlpost.estimators.returns import reinforce
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rewards import z_scores
from rlpost.kernels.rollouts import RolloutOrder
from rlpost.kernels.scans import reverse_scan
from rlpost.recipe.base import Finite, Unit

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def step_returns(
    step_score: Floats,
    rollout_order: Integers,
    rollout: Integers,
    group: Integers,
    *,
    step_gamma: Unit = 1.0,
) -> Floats:
    """Return the discounted return of each turn over the rest of its trajectory, [N].

        Gₖ = sₖ + γ·Gₖ₊₁ over the turns k of a trajectory

    Args:
        step_score: [N] score s of each turn.
        rollout_order: [N] ranks of the turns within their trajectory.
        rollout: [N] codes of the trajectories, unique within a group.
        group: [N] codes of the groups.
        step_gamma: discount γ per turn, in [0, 1].

    Source: ROLL, compute_discounted_returns.

    >>> ids = np.zeros(2, np.int64)
    >>> step_returns(np.array([1.0, 4.0]), np.array([0, 1]), ids, ids, step_gamma=0.5)
    array([3., 4.])
    """
    rows = RolloutOrder.of(joint_codes(group, rollout), rollout_order)
    return rows.returns(step_score, step_gamma)


def gigpo_rewards(
    step_score: Floats,
    episode_score: Floats,
    rollout_order: Integers,
    rollout: Integers,
    state_id: Integers,
    group: Integers,
    batch: Integers,
    *,
    step_gamma: Unit = 1.0,
    episode_weight: Finite = 1.0,
    step_weight: Finite = 1.0,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
    episodes: Literal["trajectory", "row"] = "trajectory",
    states: Literal["group", "batch"] = "group",
) -> Floats:
    """Return the reward of each step: a weighted sum of episode score and step return, [N].

        rᵢ = w_e·z(episode score over the group) + w_s·z(step return over the steps of a state)
        z(x) = (x - mean) / (std + ε)

    Args:
        step_score: [N] score of each turn.
        episode_score: [N] score of the turn's trajectory.
        rollout_order: [N] ranks of the turns within their trajectory.
        rollout: [N] codes of the trajectories.
        state_id: [N] codes of the states in which steps start.
        group: [N] codes of the groups.
        batch: [N] codes of the batches.
        step_gamma: discount γ per turn, in [0, 1].
        episode_weight: weight w_e of the outcome of a rollout.
        step_weight: weight w_s of the credit of a turn.
        norm_mean: mean of the `group`, of the `others` of the group, or `none`.
        norm_std: standard deviation of the same scopes.
        norm_eps: ε, added to the standard deviation.
        norm_floor: smallest standard deviation that divides.
        norm_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.
        episodes: a trajectory counts once in its group (`trajectory`), or once per turn (`row`).
        states: equal states are compared within their `group`, or within the whole `batch`.

    Returns:
        [N]. A state that occurs once adds 0 with a norm_mean, and so does the episode score of the
        only trajectory of a group.

    Source: Feng et al., arXiv 2505.10978, eq. 8. ROLL has `episodes="row"` and `states="batch"`.

    >>> zeros, ids = np.zeros(2, np.int64), np.array([0, 1])
    >>> score = np.array([0.0, 2.0])
    >>> gigpo_rewards(score, score, zeros, ids, ids, zeros, zeros, norm_std="none")
    array([-1.,  1.])
    """
    divided_by = {"norm_eps": norm_eps, "norm_floor": norm_floor, "norm_ddof": norm_ddof}

    def score(values: Floats, keys: Integers) -> Floats:
        return z_scores(values, keys, norm_mean=norm_mean, norm_std=norm_std, **divided_by)

    if episodes == "trajectory":
        rows = RolloutOrder.of(joint_codes(group, rollout), rollout_order)
        episode = rows.scores(
            episode_score, group, norm_mean=norm_mean, norm_std=norm_std, **divided_by
        )
    else:
        episode = score(episode_score, group)
    returns = step_returns(step_score, rollout_order, rollout, group, step_gamma=step_gamma)
    inside = group if states == "group" else batch
    step = score(returns, joint_codes(inside, state_id))
    return episode_weight * episode + step_weight * step


def mt_grpo_rewards(
    rewards: Floats,
    turn_reward: Floats,
    turn: Integers,
    rollout: Integers,
    group: Integers,
    rollout_order: Integers,
    *,
    step_gamma: Unit = 1.0,
    episode_weight: Finite = 1.0,
    step_weight: Finite = 1.0,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
    turn_baseline: Literal["return", "reward"] = "return",
) -> Floats:
    """Return the credit of each turn: normalised outcome plus normalised turn rewards, [N].

        Aₖ = w_e·z(outcome over the rollouts of the group) + w_s·Tₖ
        Tₖ = z(Gₖ over the turns k of the group), Gₖ = rₖ + γ·Gₖ₊₁            (`return`)
        Tₖ = Σ γˡ⁻ᵏ·z(rₗ over the turns l of the group), l = k to the last     (`reward`)
        z(x) = (x - mean) / (std + ε)

    Rollouts that reach turn k are compared at turn k. Whether they reach it was decided before, so
    the mean return is a baseline that the policy's choices at k do not change. With `reward`, the
    rollout's own last turn decides how many means are subtracted: without deviations Tₖ is
    Gₖ - Σ mₗ, where mₗ is the mean reward of turn l. So the decision to go on is charged with the
    mean rewards of the turns that follow, which biases the policy gradient.

    Args:
        rewards: [N] outcome of the turn's rollout.
        turn_reward: [N] reward of each turn; NaN: none.
        turn: [N] number of the turn in its rollout.
        rollout: [N] codes of the rollouts, unique within a group.
        group: [N] codes of the groups.
        rollout_order: [N] ranks of the turns within their rollout.
        step_gamma: discount γ per turn, in [0, 1].
        episode_weight: weight w_e of the outcome of a rollout.
        step_weight: weight w_s of the credit of a turn.
        norm_mean: mean of the `group`, of the `others` of the group, or `none`.
        norm_std: standard deviation of the same scopes.
        norm_eps: ε, added to the standard deviation.
        norm_floor: smallest standard deviation that divides.
        norm_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.
        turn_baseline: what is normalised at each turn, the `return` or the `reward`.

    Returns:
        [N]. The only rollout of a group that reaches a turn gets no turn credit there, and the
        only rollout of a group no outcome, with a norm_mean.

    Source: Zeng, Wei et al., arXiv 2505.11821 (`reward`; its code adds outcome and turn advantages,
    mt_grpo_env_trainer.py, `_assign_advantages`); the bias: verl issue 7244.

    >>> zeros, ids, score = np.zeros(2, np.int64), np.array([0, 1]), np.array([0.0, 2.0])
    >>> mt_grpo_rewards(score, score, zeros, ids, zeros, zeros, norm_std="none")
    array([-2.,  2.])
    """
    divided_by = {"norm_eps": norm_eps, "norm_floor": norm_floor, "norm_ddof": norm_ddof}
    scopes = {"norm_mean": norm_mean, "norm_std": norm_std}
    rows = RolloutOrder.of(joint_codes(group, rollout), rollout_order)
    outcome = rows.scores(rewards, group, **scopes, **divided_by)
    number = np.unique(turn, return_inverse=True)[1].reshape(-1)
    places = joint_codes(group, number)

    def score(values: Floats) -> Floats:
        return z_scores(values, places, **scopes, **divided_by)  # type: ignore[arg-type]

    if turn_baseline == "reward":
        turns = rows.returns(score(turn_reward), step_gamma)
    else:
        turns = score(rows.returns(np.nan_to_num(turn_reward), step_gamma))
    return episode_weight * outcome + step_weight * turns


def turn_credit_rewards(
    rewards: Floats,
    turn_reward: Floats,
    rollout_order: Integers,
    rollout: Integers,
    group: Integers,
    tokens: Integers,
    *,
    step_gamma: Unit = 1.0,
    step_weight: Finite = 1.0,
) -> Floats:
    """Return the credit of each turn, from scores of the state after each turn, [N].

        Aₖ = R - mean of R over the rollouts of the group + β·(cₖ - mean of c over tokens)
        R = outcome + last score - first score
        pₖ = score of turn k - score before it, 0 for the first;  cₖ = pₖ / zₖ + γ·cₖ₊₁
        zₖ = 1 + γ + … + γᵏ⁻¹

    The progress p of a turn is divided among it and the turns before it, with weights that sum to
    1. The shift by β sums to 0 over the tokens of a rollout.

    Args:
        rewards: [N] outcome of the turn's rollout.
        turn_reward: [N] score of the state after each turn; NaN: none, so that its progress counts
            for the next turn with a score.
        rollout_order: [N] ranks of the turns within their rollout.
        rollout: [N] codes of the rollouts, unique within a group.
        group: [N] codes of the groups.
        tokens: [N] policy tokens of each turn.
        step_gamma: discount γ per turn, in [0, 1].
        step_weight: weight β of the credit of a turn.

    Returns:
        [N]. A rollout without scores gets its centred outcome; the only one of a group the shift.

    Source: prime-rl pull request 3282, algo/turn_credit.py: `deltas`, `smear`, `_token_advantages`.

    >>> zeros, turn, score = np.zeros(2, np.int64), np.array([0, 1]), np.array([0.0, 2.0])
    >>> turn_credit_rewards(score, score, turn, zeros, zeros, zeros + 1, step_gamma=0.0)
    array([-1.,  1.])
    """
    rows = RolloutOrder.of(joint_codes(group, rollout), rollout_order)
    progress = rows.unsorted(_progress(turn_reward[rows.order], rows.rollout[rows.order]))
    level = rows.scores(rewards + rows.sums(progress), group, norm_std="none")
    place = rows.ordinals() + 1
    divisor = place if step_gamma == 1 else (1 - step_gamma**place) / (1 - step_gamma)
    share: Floats = reverse_scan(progress[rows.order] / divisor, rows.offsets, step_gamma)
    credit = rows.unsorted(share)
    weights = tokens.astype(np.float64)
    mean = rows.sums(credit * weights) / rows.sums(weights).clip(1)
    shifted: Floats = level + step_weight * (credit - mean)
    return shifted


def _progress(scores: Floats, rollout: Integers) -> Floats:
    """Return each score minus the one before it in its rollout; 0 without both, [N].

    Args:
        scores: [N] in the order of rollouts and turns; NaN: none.
        rollout: [N] codes in the same order.
    """
    progress, scored = np.zeros_like(scores), np.flatnonzero(~np.isnan(scores))
    same = rollout[scored[1:]] == rollout[scored[:-1]]
    progress[scored[1:]] = np.where(same, np.diff(scores[scored]), 0.0)
    return progress


ESTIMATORS = (
    # Step returns replace the rewards: they are normalised within their group, then credited like
    # rewards. With γ = 1 and no KL penalty, all policy tokens of a turn get the number of its step.
    Estimator(
        "step_reinforce",
        reinforce,
        "step returns, (G - mean_g) / (std_g + 1e-6), then the return-to-go",
        "ROLL",
        norm_mean="group",
        norm_std="group",
        undiscounted_is_constant=True,
        rewards=step_returns,
    ),
    Estimator(
        "gigpo",
        reinforce,
        "w_e·z_g(episode) + w_s·z_state(step return), then the return-to-go",
        "arXiv:2505.10978",
        undiscounted_is_constant=True,
        rewards=gigpo_rewards,
    ),
    Estimator(
        "mt_grpo",
        reinforce,
        "w_e·z_g(outcome) + w_s·z_turn(return over turns), then the return-to-go",
        "arXiv:2505.11821",
        undiscounted_is_constant=True,
        rewards=mt_grpo_rewards,
    ),
    Estimator(
        "turn_credit",
        reinforce,
        "R - mean_g + β(c - mean of c), c: progress of later turns, then the return-to-go",
        "prime-rl #3282",
        undiscounted_is_constant=True,
        rewards=turn_credit_rewards,
    ),
)
