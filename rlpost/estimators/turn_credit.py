"""Turn credit: centred outcomes, shifted by each turn's share of the progress of later turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Estimator
from rlpost.estimators.reinforce import reinforce
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rollouts import RolloutOrder
from rlpost.kernels.scans import reverse_scan

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def turn_credit_rewards(
    rewards: Floats,
    turn_reward: Floats,
    rollout_order: Integers,
    rollout: Integers,
    group: Integers,
    tokens: Integers,
    *,
    step_gamma: float = 1.0,
    step_weight: float = 1.0,
) -> Floats:
    """Return the credit of each turn, from scores of the state after each turn, [N].

        Aₖ = R - mean of R over the rollouts of the group + β·(cₖ - mean of c over tokens)
        R = outcome + last score - first score
        pₖ = score of turn k - score before it, 0 for the first;  cₖ = pₖ / zₖ + γ·cₖ₊₁
        zₖ = 1 + γ + … + γᵏ⁻¹

    The progress p of a turn is divided among it and the turns before it, with weights that sum to
    1. The shift by β sums to 0 over the tokens of a rollout.

    Args:
        rewards: [N] float64, outcome of the turn's rollout.
        turn_reward: [N] score of the state after each turn; NaN: none, so that its progress counts
            for the next turn with a score.
        rollout_order: [N] ranks of the turns within their rollout.
        rollout: [N] codes of the rollouts, unique within a group.
        group: [N] codes of the groups.
        tokens: [N] policy tokens of each turn.
        step_gamma: γ per turn, in [0, 1].
        step_weight: β.

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


ESTIMATOR = Estimator(
    "turn_credit",
    reinforce,
    formula="R - mean_g + β(c - mean of c), c: progress of later turns, then the return-to-go",
    source="prime-rl #3282",
    undiscounted_is_constant=True,
    rewards=turn_credit_rewards,
)
