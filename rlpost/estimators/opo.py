"""OPO: rewards minus the length-weighted mean of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import first_values
from rlpost.kernels.segments import segment_sum, spread

if TYPE_CHECKING:
    from torch import Tensor


def opo(rewards: Tensor, tokens: Tensor, offsets: Tensor) -> Credit:
    """Return rewards minus the optimal baseline if gradients grow with length.

        Aᵢ = rᵢ - Σⱼ nⱼ·rⱼ / Σⱼ nⱼ over the group

    Args:
        rewards: [N] float64, sorted by group.
        tokens: [N] number of policy tokens of each response, n.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N], the same tensor twice. A single-response group and a group of equal rewards
        get 0. In a group without policy tokens the baseline is 0.

    Source: Hao et al., arXiv 2505.23585. verl gives a single-response group its raw reward.

    >>> rewards = torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> opo(rewards, torch.tensor([3, 1]), torch.tensor([0, 2])).advantages
    tensor([-0.2500,  0.7500], dtype=torch.float64)
    """
    weights = tokens.to(rewards.dtype)
    # Relative to one reward of the group, so that equal rewards give exactly 0.
    first = spread(first_values(rewards, offsets), offsets)
    total = segment_sum(weights, offsets).clamp(min=1)
    shift = segment_sum(weights * (rewards - first), offsets) / total
    empty = spread(segment_sum(weights, offsets) == 0, offsets)
    baseline = torch.where(empty, 0.0, first + spread(shift, offsets))
    advantages = rewards - baseline
    return Credit(advantages, advantages)


ESTIMATOR = Estimator("opo", opo, formula="r - Σ n·r / Σ n over g", source="arXiv:2505.23585")
