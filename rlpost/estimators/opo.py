"""OPO: rewards minus the length-weighted mean of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import first_values
from rlpost.kernels.segments import segment_sum, spread

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def opo(rewards: Floats, tokens: Integers, offsets: Integers) -> Credit:
    """Return rewards minus the optimal baseline if gradients grow with length.

        Aᵢ = rᵢ - Σⱼ nⱼ·rⱼ / Σⱼ nⱼ over the group

    Args:
        rewards: [N] float64, sorted by group.
        tokens: [N] number of policy tokens of each response, n.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N], the same array twice. A single-response group and a group of equal rewards
        get 0. In a group without policy tokens the baseline is 0.

    Source: Hao et al., arXiv 2505.23585. verl gives a single-response group its raw reward.

    >>> rewards = np.array([0.0, 1.0])
    >>> opo(rewards, np.array([3, 1]), np.array([0, 2])).advantages
    array([-0.25,  0.75])
    """
    weights = tokens.astype(rewards.dtype)
    # Relative to one reward of the group, so that equal rewards give exactly 0.
    first = spread(first_values(rewards, offsets), offsets)
    total = segment_sum(weights, offsets).clip(1)
    shift = segment_sum(weights * (rewards - first), offsets) / total
    empty = spread(segment_sum(weights, offsets) == 0, offsets)
    baseline = np.where(empty, 0.0, first + spread(shift, offsets))
    advantages = rewards - baseline
    return Credit(advantages, advantages)


ESTIMATOR = Estimator("opo", opo, formula="r - Σ n·r / Σ n over g", source="arXiv:2505.23585")
