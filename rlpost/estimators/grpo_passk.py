"""Pass@k GRPO: the lead of the best response of a group over the second best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays.numpy_arrays import placed
from rlpost.kernels.moments import group_moments
from rlpost.kernels.rewards import divisor
from rlpost.kernels.segments import lengths

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def grpo_passk(
    rewards: Floats,
    offsets: Integers,
    *,
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
) -> Credit:
    """Return the lead of the best response of each group over the second best.

        Aᵢ = (rᵢ - second best reward) / (std + ε) for the best of the group, 0 for the others

    Args:
        rewards: [N] float64, ascending within each group.
        offsets: [G+1] of the groups.
        norm_std: `none` does not divide.
        norm_eps: ε, added to the standard deviation.
        norm_floor: smallest standard deviation that divides.
        norm_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.

    Returns:
        Credit of [N], the same array twice. A group whose best reward is a tie and a
        single-response group get 0.

    Source: Walder and Karkhanis, arXiv 2503.19595. verl raises an error for a single response.

    >>> rewards = np.array([0.0, 1.0, 3.0])
    >>> grpo_passk(rewards, np.array([0, 3]), norm_std="none").advantages
    array([0., 0., 2.])
    """
    several = lengths(offsets) > 1
    best = (offsets[1:] - 1)[several]
    lead = rewards[best] - rewards[best - 1]
    if norm_std != "none":
        divided_by = {"norm_eps": norm_eps, "norm_floor": norm_floor, "norm_ddof": norm_ddof}
        lead = lead / divisor(group_moments(rewards, offsets), "group", **divided_by)[several]
    advantages = placed(lead, best, len(rewards))
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "grpo_passk",
    grpo_passk,
    formula="best of g: (r_max - r_second) / (std_g + 1e-6); others 0",
    source="arXiv:2503.19595",
)
