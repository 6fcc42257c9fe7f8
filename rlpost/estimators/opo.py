"""OPO: rewards less the group's mean, weighted by length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import first_values
from rlpost.kernels.segments import segment_sum, spread

if TYPE_CHECKING:
    from torch import Tensor


def opo(rewards: Tensor, tokens: Tensor, offsets: Tensor) -> Credit:
    """Reward less the optimal baseline of policies whose gradient grows with length.

        Aᵢ = rᵢ - Σⱼ nⱼ·rⱼ / Σⱼ nⱼ over the group, n the policy tokens of a response

    Args:
        rewards: [N] float64, sorted by group.
        tokens: [N] policy tokens of each response.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N] each, one tensor twice. A group of one, and one of equal rewards, gets 0;
        in a group without any policy token nothing is taken off.

    Source: Hao et al., arXiv 2505.23585. verl gives a group of one its plain reward.

    >>> rewards = torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> opo(rewards, torch.tensor([3, 1]), torch.tensor([0, 2])).advantages
    tensor([-0.2500,  0.7500], dtype=torch.float64)
    """
    weights = tokens.to(rewards.dtype)
    # Distances from a reward of the group: equal rewards then come out as exactly 0.
    first = spread(first_values(rewards, offsets), offsets)
    total = segment_sum(weights, offsets).clamp(min=1)
    shift = segment_sum(weights * (rewards - first), offsets) / total
    empty = spread(segment_sum(weights, offsets) == 0, offsets)
    baseline = torch.where(empty, 0.0, first + spread(shift, offsets))
    advantages = rewards - baseline
    return Credit(advantages, advantages)


ESTIMATOR = Estimator("opo", opo, formula="r - Σ n·r / Σ n over g", source="arXiv 2505.23585")
