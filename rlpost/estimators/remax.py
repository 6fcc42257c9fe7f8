"""ReMax: the return-to-go minus the reward of the greedy response."""

from __future__ import annotations

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import spread


def remax(
    token_rewards: Array, reward_baseline: Array, offsets: Array, *, gamma: float = 1.0
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

    >>> rewards, baseline = np.array([0.0, 1.0]), np.array([0.75])
    >>> remax(rewards, baseline, np.array([0, 2])).advantages
    array([0.25, 0.25])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    baseline = spread(reward_baseline, offsets)
    return Credit(returns - namespace(returns).astype(baseline, returns.dtype), returns)


ESTIMATOR = Estimator("remax", remax, formula="Gₜ - b", source="arXiv:2310.10505", returns="own")
