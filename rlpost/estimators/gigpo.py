"""GiGPO: episode scores normalised by group, plus step returns normalised by state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Estimator
from rlpost.estimators.reinforce import reinforce
from rlpost.estimators.step_reinforce import step_returns
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rewards import z_scores
from rlpost.kernels.rollouts import RolloutOrder

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def gigpo_rewards(
    step_score: Floats,
    episode_score: Floats,
    rollout_order: Integers,
    rollout: Integers,
    state_id: Integers,
    group: Integers,
    batch: Integers,
    *,
    step_gamma: float = 1.0,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
    episodes: str = "trajectory",
    states: str = "group",
) -> Floats:
    """Return the reward of each step: a weighted sum of episode score and step return, [N].

        rᵢ = w_e·z(episode score over the group) + w_s·z(step return over the steps of a state)
        z(x) = (x - mean) / (std + ε)

    Args:
        step_score: [N] float64, score of each turn.
        episode_score: [N] score of the turn's trajectory.
        rollout_order: [N] ranks of the turns within their trajectory.
        rollout: [N] codes of the trajectories.
        state_id: [N] codes of the states in which steps start.
        group: [N] codes of the groups.
        batch: [N] codes of the batches.
        step_gamma: discount per turn, in [0, 1].
        episode_weight: w_e.
        step_weight: w_s.
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


ESTIMATOR = Estimator(
    "gigpo",
    reinforce,
    formula="w_e·z_g(episode) + w_s·z_state(step return), then the return-to-go",
    source="arXiv:2505.10978",
    undiscounted_is_constant=True,
    rewards=gigpo_rewards,
)
