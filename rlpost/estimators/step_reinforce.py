"""Step REINFORCE: the discounted return over turns, normalised by group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Estimator
from rlpost.estimators.reinforce import reinforce
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rollouts import RolloutOrder

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def step_returns(
    step_score: Floats,
    rollout_order: Integers,
    rollout: Integers,
    group: Integers,
    *,
    step_gamma: float = 1.0,
) -> Floats:
    """Return the discounted return of each turn over the rest of its trajectory, [N].

        Gₖ = sₖ + γ·Gₖ₊₁ over the turns k of a trajectory

    Args:
        step_score: [N] float64, score s of each turn.
        rollout_order: [N] ranks of the turns within their trajectory.
        rollout: [N] codes of the trajectories, unique within a group.
        group: [N] codes of the groups.
        step_gamma: discount γ per turn, in [0, 1].

    Source: ROLL, compute_discounted_returns.

    >>> one = np.zeros(2, np.int64)
    >>> step_returns(np.array([1.0, 4.0]), np.array([0, 1]), one, one, step_gamma=0.5)
    array([3., 4.])
    """
    rows = RolloutOrder.of(joint_codes(group, rollout), rollout_order)
    return rows.returns(step_score, step_gamma)


# Step returns replace the rewards: they are normalised within their group and then credited like
# rewards. With γ = 1 and no KL penalty, every policy token of a turn gets the number of its step.
ESTIMATOR = Estimator(
    "step_reinforce",
    reinforce,
    formula="step returns, (G - mean_g) / (std_g + 1e-6), then the return-to-go",
    source="ROLL",
    norm_mean="group",
    norm_std="group",
    undiscounted_is_constant=True,
    rewards=step_returns,
)
