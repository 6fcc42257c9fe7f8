"""ReMax: the return-to-go minus the reward of the greedy response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from torch import Tensor


def remax(
    token_rewards: Tensor, reward_baseline: Tensor, offsets: Tensor, *, gamma: float = 1.0
) -> Credit:
    """Return the return-to-go minus the baseline of the response.

        Gₜ = rₜ + γ·Gₜ₊₁,  G = 0 after the last token;  Aₜ = Gₜ - b;  R = G

    Args:
        token_rewards: [T] reward of each token.
        reward_baseline: [N] reward b of the greedy response to the same prompt.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].

    Returns:
        Credit of [T] each; a response without tokens has no credit.

    Source: Li et al., arXiv 2310.10505, algorithm 1.

    >>> rewards, baseline = torch.tensor([0.0, 1.0]), torch.tensor([0.75])
    >>> remax(rewards, baseline, torch.tensor([0, 2])).advantages
    tensor([0.2500, 0.2500])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    baseline = spread(reward_baseline, offsets).to(returns.dtype)
    return Credit(returns - baseline, returns)


ESTIMATOR = Estimator("remax", remax, formula="Gₜ - b", source="arXiv:2310.10505", returns="own")
