"""Raw: the reward itself, for users who have their own baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats


def raw(rewards: Floats) -> Credit:
    """Return the rewards as advantages.

        Aᵢ = rᵢ

    Args:
        rewards: [N] float64.

    Returns:
        Credit of [N], the same array twice.

    >>> raw(np.array([0.0, 1.0])).advantages
    array([0., 1.])
    """
    return Credit(rewards, rewards)


ESTIMATOR = Estimator("raw", raw, formula="r", source="")
