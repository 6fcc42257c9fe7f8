"""RLOO: rewards minus the leave-one-out mean of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def rloo(rewards: Floats, offsets: Integers) -> Credit:
    """Return rewards minus the mean of the other rewards of their group.

        Aᵢ = rᵢ - Σⱼ≠ᵢ rⱼ / (n - 1) = (rᵢ - mean) · n / (n - 1)

    Args:
        rewards: [N] float64, sorted by group.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N], the same array twice. A single-response group and a group of equal rewards
        get 0.

    Source: Ahmadian et al., arXiv 2402.14740. verl's `rloo` gives a single-response group its raw
    reward.

    >>> rloo(np.array([0.0, 1.0]), np.array([0, 2])).advantages
    array([-1.,  1.])
    """
    count, mean, _ = group_moments(rewards, offsets)
    factor = count / (count - 1).clip(1)
    advantages = (rewards - spread(mean, offsets)) * spread(factor, offsets)
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "rloo", rloo, formula="r - mean of the others of g", source="arXiv:2402.14740"
)
