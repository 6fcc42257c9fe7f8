"""Raw: the reward itself, for users who have their own baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator

if TYPE_CHECKING:
    from torch import Tensor


def raw(rewards: Tensor) -> Credit:
    """Return the rewards as advantages.

        Aᵢ = rᵢ

    Args:
        rewards: [N] float64.

    Returns:
        Credit of [N], the same tensor twice.

    >>> raw(torch.tensor([0.0, 1.0])).advantages
    tensor([0., 1.])
    """
    return Credit(rewards, rewards)


ESTIMATOR = Estimator("raw", raw, formula="r", source="")
