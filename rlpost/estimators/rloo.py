"""RLOO: each response against the mean of the others of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from torch import Tensor


def rloo(rewards: Tensor, offsets: Tensor) -> Credit:
    """Reward less the mean of the group's other rewards.

        Aᵢ = rᵢ - Σⱼ≠ᵢ rⱼ / (n - 1) = (rᵢ - mean) · n / (n - 1)

    Args:
        rewards: [N] float64, sorted by group.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N] each, one tensor twice. A group of one has no others and gets 0.

    Source: Ahmadian et al., arXiv 2402.14740. verl's loop gives a group of one its plain reward.

    >>> rloo(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0, 2])).advantages
    tensor([-1.,  1.], dtype=torch.float64)
    """
    count, mean, _ = group_moments(rewards, offsets)
    factor = count / (count - 1).clamp(min=1)
    advantages = (rewards - spread(mean, offsets)) * spread(factor, offsets)
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "rloo", rloo, formula="r - mean of the others of g", source="arXiv 2402.14740"
)
