"""REINFORCE: the discounted return-to-go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.scans import reverse_scan

if TYPE_CHECKING:
    from torch import Tensor


def reinforce(token_rewards: Tensor, offsets: Tensor, *, gamma: float = 1.0) -> Credit:
    """Return the discounted return-to-go of the token rewards.

        Gₜ = rₜ + γ·Gₜ₊₁,  G = 0 after the last token;  A = R = G

    Args:
        token_rewards: [T] reward of each token.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].

    Returns:
        Credit of [T], the same tensor twice.

    Source: Williams, Machine Learning 8, 1992.

    >>> reinforce(torch.tensor([0.0, 1.0]), torch.tensor([0, 2]), gamma=0.5).returns
    tensor([0.5000, 1.0000])
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
