"""The policy gradient of Kimi k1.5."""

from __future__ import annotations

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, states


def kimi15(tokens: Tokens, *, kimi_tau: float = 0.1) -> Surrogate:
    """L = -A·log π + τ/2·(new - old)²: the squared log ratio holds the policy back.

    Args:
        tokens: T of them.
        kimi_tau: τ >= 0.

    Returns:
        Surrogate of [T]; nothing is clipped.

    Source: Kimi k1.5, arXiv 2501.12599, token by token as in ROLL.
    """
    none = torch.zeros_like(tokens.mask)
    values = -tokens.gain * tokens.log_prob + kimi_tau / 2 * tokens.log_ratio.square()
    flat = kimi_tau * tokens.log_ratio == tokens.gain
    return Surrogate(values, states(none, none), flat, torch.ones_like(tokens.gain))


LOSS = Loss(
    "kimi15",
    kimi15,
    formula="-A·log π + τ/2·(log r)²",
    source="arXiv 2501.12599",
    aggregation="seq-mean-token-mean",
)
