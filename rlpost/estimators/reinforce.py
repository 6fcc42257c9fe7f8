"""REINFORCE: the discounted return-to-go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.scans import reverse_scan

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


def reinforce(token_rewards: Array, offsets: Array, *, gamma: float = 1.0) -> Credit:
    """Return the discounted return-to-go of the token rewards.

        Gₜ = rₜ + γ·Gₜ₊₁,  G = 0 after the last token;  A = R = G

    Args:
        token_rewards: [T] reward of each token.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].

    Returns:
        Credit of [T], the same array twice.

    Source: Williams, Machine Learning 8, 1992.

    >>> reinforce(np.array([0.0, 1.0]), np.array([0, 2]), gamma=0.5).returns
    array([0.5, 1. ])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    return Credit(returns, returns)


ESTIMATOR = Estimator(
    "reinforce",
    reinforce,
    formula="Gₜ = rₜ + γGₜ₊₁",
    source="Williams 1992",
    undiscounted_is_constant=True,
    outcome=True,
)
