"""MT-GRPO: outcomes normalised within groups, plus turns normalised among those of one number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Estimator
from rlpost.estimators.reinforce import reinforce
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rewards import z_scores
from rlpost.kernels.rollouts import RolloutOrder

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def mt_grpo_rewards(
    rewards: Floats,
    turn_reward: Floats,
    turn: Integers,
    rollout: Integers,
    group: Integers,
    rollout_order: Integers,
    *,
    step_gamma: float = 1.0,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
    turn_baseline: str = "return",
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
        rewards: [N] float64, outcome of the turn's rollout.
        turn_reward: [N] reward of each turn; NaN: none.
        turn: [N] number of the turn in its rollout.
        rollout: [N] codes of the rollouts, unique within a group.
        group: [N] codes of the groups.
        rollout_order: [N] ranks of the turns within their rollout.
        step_gamma: discount γ per turn, in [0, 1].
        episode_weight: w_e.
        step_weight: w_s.
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


ESTIMATOR = Estimator(
    "mt_grpo",
    reinforce,
    formula="w_e·z_g(outcome) + w_s·z_turn(return over turns), then the return-to-go",
    source="arXiv:2505.11821",
    undiscounted_is_constant=True,
    rewards=mt_grpo_rewards,
)
