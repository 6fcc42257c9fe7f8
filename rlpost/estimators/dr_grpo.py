"""Dr. GRPO: rewards minus the mean of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def dr_grpo(rewards: Floats, offsets: Integers) -> Credit:
    """Return rewards minus the mean of their group.

        Aᵢ = rᵢ - mean of the group

    Args:
        rewards: [N] float64, sorted by group.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N], the same array twice. A single-response group and a group of equal rewards
        get 0.

    Source: Liu et al., arXiv 2503.20783.

    >>> dr_grpo(np.array([0.0, 1.0]), np.array([0, 2])).advantages
    array([-0.5,  0.5])
    """
    advantages = rewards - spread(group_moments(rewards, offsets).mean, offsets)
    return Credit(advantages, advantages)


ESTIMATOR = Estimator("dr_grpo", dr_grpo, formula="r - mean_g", source="arXiv:2503.20783")
