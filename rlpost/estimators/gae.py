"""GAE: generalised advantage estimation."""

from __future__ import annotations

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.scans import reverse_scan, reverse_scan_each
from rlpost.kernels.segments import ends_of, lengths, spread


def gae(
    token_rewards: Array,
    values: Array,
    offsets: Array,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    lambda_policy: float | None = None,
    lambda_value: float | None = None,
    length_adaptive_alpha: float = 0.0,
) -> Credit:
    """Return exponentially weighted sums of temporal-difference errors, and their returns.

        δₜ = rₜ + γ·Vₜ₊₁ - Vₜ,  V = 0 after the last token
        Aₜ = δₜ + γλ·Aₜ₊₁
        Rₜ = Aₜ + Vₜ

    Args:
        token_rewards: [T] reward of each token.
        values: [T] value of the state before each token, in units of reward.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].
        lam: λ in [0, 1]; 0 gives one-step TD errors, 1 the return minus the value.
        lambda_policy: λ of the advantages; None for `lam`.
        lambda_value: λ of the returns; None for `lam`.
        length_adaptive_alpha: with α > 0, λ of the advantages is max(0, 1 - 1/(α·n)) for a response
            of n tokens (VAPO).

    Returns:
        Credit of [T] each; a response without tokens has no credit.

    Source: Schulman et al., arXiv 1506.02438, eq. 16; VAPO, arXiv 2504.05118, eq. 9. verl also
    whitens the advantages.

    >>> offsets = np.array([0, 2])
    >>> gae(np.array([0.0, 1.0]), np.array([0.5, 0.5]), offsets, lam=1.0).advantages
    array([0.5, 0.5])
    """
    xp = namespace(values)
    following = xp.filled(xp.concat([values[1:], values[:1]]), ends_of(offsets), 0.0)
    deltas = token_rewards - values + gamma * following
    traced = reverse_scan(deltas, offsets, gamma * (lam if lambda_value is None else lambda_value))
    advantages = traced
    if length_adaptive_alpha > 0:
        tokens = xp.astype(lengths(offsets), values.dtype)
        weighted = (length_adaptive_alpha * tokens).clip(1.0)
        advantages = reverse_scan_each(deltas, offsets, spread(gamma * (1 - 1 / weighted), offsets))
    elif lambda_policy is not None or lambda_value is not None:
        policy = lam if lambda_policy is None else lambda_policy
        advantages = reverse_scan(deltas, offsets, gamma * policy)
    return Credit(advantages, traced + values)


ESTIMATOR = Estimator(
    "gae",
    gae,
    formula="δₜ = rₜ + γVₜ₊₁ - Vₜ; Aₜ = δₜ + γλAₜ₊₁",
    source="arXiv:1506.02438",
    returns="own",
)
