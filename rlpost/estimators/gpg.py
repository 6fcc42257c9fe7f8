"""GPG: centred rewards, divided by the share of non-zero rewards in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import lengths, spread

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def gpg(
    rewards: Floats,
    batch: Integers,
    offsets: Integers,
    *,
    f_norm: float = 1.0,
    single: str = "zero",
) -> Credit:
    """Return centred rewards, divided by the share of non-zero rewards in the batch.

        Aᵢ = α·(rᵢ - mean of the group) / f,  α = responses of the batch / responses with r ≠ 0

    Args:
        rewards: [N] float64, sorted by group.
        batch: [N] codes of the batches.
        offsets: [G+1] of the groups.
        f_norm: f, above 0.
        single: `raw` does not centre a single-response group, which otherwise gets 0.

    Returns:
        Credit of [N], the same array twice. A group of equal rewards and a batch whose rewards are
        all 0 get 0.

    Source: Chu et al., arXiv 2504.02546, eq. 7.

    >>> rewards = np.array([0.0, 1.0])
    >>> gpg(rewards, np.array([0, 0]), np.array([0, 2])).advantages
    array([-1.,  1.])
    """
    codes = batch.astype(np.int64)
    responses = np.bincount(codes)
    rewarded = np.bincount(codes[rewards != 0], minlength=len(responses))
    alpha = (responses / rewarded.clip(1)).astype(rewards.dtype)
    mean = spread(group_moments(rewards, offsets).mean, offsets)
    if single == "raw":
        mean = np.where(spread(lengths(offsets) == 1, offsets), 0.0, mean)
    advantages = alpha[codes] * (rewards - mean) / f_norm
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "gpg",
    gpg,
    formula="α(r - mean_g), α = responses of the batch / those with r ≠ 0",
    source="arXiv:2504.02546",
)
