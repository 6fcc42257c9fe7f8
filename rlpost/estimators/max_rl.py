"""MaxRL: rewards relative to the mean of their group, so that rare successes weigh more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def max_rl(rewards: Floats, offsets: Integers) -> Credit:
    """Return rewards relative to the mean of their group.

        Aᵢ = (rᵢ - mean) / mean of the group

    With rewards of 0 and 1 the mean is the pass rate.

    Args:
        rewards: [N] float64, sorted by group; 0 or more.
        offsets: [G+1] of the groups.

    Returns:
        Credit of [N], the same array twice. A group whose mean is 0 or less, a single-response
        group and a group of equal rewards get 0.

    Source: Tajwar et al., arXiv 2602.02710.

    >>> max_rl(np.array([0.0, 1.0]), np.array([0, 2])).advantages
    array([-1.,  1.])
    """
    mean = spread(group_moments(rewards, offsets).mean, offsets)
    advantages = np.where(mean > 0, (rewards - mean) / np.where(mean > 0, mean, 1.0), 0.0)
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "max_rl",
    max_rl,
    formula="(r - mean_g) / mean_g; 0 where mean_g ≤ 0",
    source="arXiv:2602.02710",
)
