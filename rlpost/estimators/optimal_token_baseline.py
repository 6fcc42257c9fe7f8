"""Optimal token baseline: the return-to-go minus a weighted mean by group and position."""

from __future__ import annotations

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import backwards


def optimal_token_baseline(
    token_rewards: Array, position_baseline: Array, offsets: Array, *, gamma: float = 1.0
) -> Credit:
    """Return the return-to-go minus the baseline of the token's group and position.

        Gₜ = rₜ + γ·Gₜ₊₁;  Aₜ = Gₜ - Bₜ;  R = G
        Bₜ = Σ G·W / (Σ W + ε) over the group's policy tokens at position t

    Args:
        token_rewards: [T] reward of each token.
        position_baseline: [T] baseline B of each token.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].

    Returns:
        Credit of [T] each. If no other response of the group has a token at the position, the
        advantage is 0 up to ε.

    Source: verl, compute_optimal_token_baseline_advantage.

    >>> rewards, baseline = np.array([0.0, 1.0]), np.array([0.5, 0.25])
    >>> optimal_token_baseline(rewards, baseline, np.array([0, 2])).advantages
    array([0.5 , 0.75])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    return Credit(returns - position_baseline, returns)


def token_weights(
    old_log_probs: Array,
    sum_pi_squared: Array,
    offsets: Array,
    infer_log_probs: Array | None = None,
    *,
    otb_is_cap: float | None = None,
) -> Array:
    """Return the cumulative squared norm of the score function up to each token, [T].

        Wₜ = Σₛ≤ₜ (1 - 2πₛ + Σπₛ²)·ρₛ²

    Args:
        old_log_probs: [T] log π of the sampled tokens.
        sum_pi_squared: [T] Σπ² over the vocabulary, in [0, 1].
        offsets: [N+1] of the responses.
        infer_log_probs: [T] log-probs of the rollout engine; None for ρ = 1.
        otb_is_cap: cap of ρ = min(π/π_infer, cap); None for ρ = 1.

    >>> import math
    >>> half = np.full(2, math.log(0.5))
    >>> token_weights(half, np.array([0.5, 0.5]), np.array([0, 2]))
    array([0.5, 1. ])
    """
    xp = namespace(old_log_probs)
    energy = 1 - 2 * xp.exp(old_log_probs) + sum_pi_squared
    if infer_log_probs is not None and otb_is_cap is not None:
        ratio = xp.exp((old_log_probs - infer_log_probs).clip(-20, 20)).clip(max=otb_is_cap)
        energy = energy * ratio**2
    return xp.flip(reverse_scan(xp.flip(energy), backwards(offsets), 1.0))


ESTIMATOR = Estimator(
    "optimal_token_baseline",
    optimal_token_baseline,
    formula="Gₜ - Σ GW / Σ W over g at position t, W = cumulative (1 - 2π + Σπ²)",
    source="verl",
    returns="own",
    token_weights=token_weights,
)
