"""The policy gradient of Kimi k1.5, with a penalty on the squared log ratio."""

from __future__ import annotations

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states


def kimi15(tokens: Tokens, *, kimi_tau: float = 0.1) -> Surrogate:
    """L = -A·log π + τ/2·(new - old)².

    Args:
        tokens: T tokens.
        kimi_tau: τ >= 0.

    Returns:
        Surrogate of [T]; nothing is clipped.

    Source: Kimi k1.5, arXiv 2501.12599, token by token as in ROLL.
    """
    advantages, none = tokens.masked_advantages, torch.zeros_like(tokens.mask)
    penalty = kimi_tau / 2 * tokens.log_ratio.square()
    values = tokens.negated_advantages * tokens.masked_log_probs + penalty
    zero_gradient = kimi_tau * tokens.log_ratio == advantages
    return Surrogate(values, clip_states(none, none), zero_gradient, torch.ones_like(advantages))


LOSS = Loss(
    "kimi15",
    kimi15,
    formula="-A·log π + τ/2·(log r)²",
    source="arXiv 2501.12599",
    aggregation="seq-mean-token-mean",
)
