"""MaxRL: centred rewards over the group's mean, so that rare successes weigh more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from torch import Tensor


def max_rl(rewards: Tensor, offsets: Tensor) -> Credit:
    """Reward relative to the group's mean.

        Aᵢ = (rᵢ - mean) / mean of the group

    It is meant for rewards from 0 up, where the mean is the pass rate.

    Args:
        rewards: [N] float64, sorted by group.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N] each, one tensor twice; 0 in a group whose mean is not above 0, in a group
        of one and in one of equal rewards.

    Source: Tajwar et al., arXiv 2602.02710.

    >>> max_rl(torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0, 2])).advantages
    tensor([-1.,  1.], dtype=torch.float64)
    """
    mean = spread(group_moments(rewards, offsets).mean, offsets)
    advantages = torch.where(mean > 0, (rewards - mean) / torch.where(mean > 0, mean, 1.0), 0.0)
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "max_rl",
    max_rl,
    formula="(r - mean_g) / mean_g; 0 where mean_g ≤ 0",
    source="arXiv 2602.02710",
)
