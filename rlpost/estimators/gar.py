"""GAR: centred rewards whose positive part a ranking of the group redistributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.moments import group_moments
from rlpost.kernels.segments import segment_min, segment_sum, spread

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers, Mask


def gar(
    rewards: Floats,
    win_rate: Floats,
    offsets: Integers,
    hack: Mask | None = None,
    *,
    gar_floor: float = 0.5,
    gar_cap: float = 2.0,
) -> Credit:
    """Return centred rewards; those above the mean are scaled by the response's rank.

        Aᵢ = rᵢ - mean of the group
        Aᵢ ← λ·fᵢ·Aᵢ where Aᵢ > 0,  λ = min(λ_max, Σ A₊ / Σ f·A₊),  fᵢ = f_min + (1 - f_min)·wᵢ
        A ← A - mean of A, which is 0 unless λ_max bounds λ

    A response that is a hack has the smallest reward of its group, from the start.

    Args:
        rewards: [N] float64, sorted by group.
        win_rate: [N] w, share of the other ranked responses of its group that a grader ranks
            below it, in [0, 1]; NaN, without a rank, counts as 0.5.
        offsets: [G+1] of the groups.
        hack: [N] bool, true for responses that a grader found to be hacks; None if none is.
        gar_floor: f_min, in (0, 1].
        gar_cap: λ_max, at least 1.

    Returns:
        Credit of [N], the same array twice. A group of equal rewards gets 0.

    Source: MiMo-V2.6 §4.3.2, eq. 3; prime-rl, algo/gar.py, `redistribute`, `apply`.

    >>> rewards, rates = np.array([0.0, 1.0, 1.0]), np.array([np.nan, 0.0, 1.0])
    >>> gar(rewards, rates, np.array([0, 3])).advantages.round(4)
    array([-0.6667,  0.2222,  0.4444])
    """
    if hack is not None:
        rewards = np.where(hack, spread(segment_min(rewards, offsets), offsets), rewards)
    advantages = rewards - spread(group_moments(rewards, offsets).mean, offsets)
    quality = gar_floor + (1 - gar_floor) * np.where(np.isnan(win_rate), 0.5, win_rate)
    above = np.where(advantages > 0, advantages, 0.0)
    scaled = segment_sum(quality * above, offsets)
    total = segment_sum(above, offsets)
    scale = np.where(scaled > 0, total / np.where(scaled > 0, scaled, 1.0), 1.0).clip(None, gar_cap)
    advantages = np.where(above > 0, spread(scale, offsets) * quality * above, advantages)
    advantages = advantages - spread(group_moments(advantages, offsets).mean, offsets)
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "gar",
    gar,
    formula="r - mean_g; above 0 times λ·f, f from the rank in the group; centred again",
    source="MiMo-V2.6; prime-rl",
)
