"""Tapered off-policy REINFORCE."""

from __future__ import annotations

import math

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, states


def topr(
    tokens: Tokens,
    *,
    tis_low: float = 0.0,
    tis_high: float = 1.0,
    topr_positive: float = 1.0,
    topr_negative: float = 1.0,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """The plain gradient for good responses, a truncated weight for the others.

        reward > 0:  L = -A·log π
        otherwise:   L = -stop(clip(r, low, high))·A·log π

    Args:
        tokens: T of them. Without rewards, the sign of the advantage tells good from bad.
        tis_low: least weight of a bad response's tokens.
        tis_high: greatest weight.
        topr_positive: factor of good responses.
        topr_negative: factor of bad ones.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH are where a weight is truncated; gradients remain.

    Source: Le Roux et al., arXiv 2503.14286 (token by token, as in ROLL).
    """
    good, ratio = tokens.positive, tokens.ratio(ratio_clamp).detach()
    weight = torch.where(good, topr_positive, topr_negative * ratio.clamp(tis_low, tis_high))
    flat = (tokens.gain == 0) | (weight == 0)
    clip = states(~good & (ratio < tis_low), ~good & (ratio > tis_high))
    return Surrogate(weight * -tokens.gain * tokens.log_prob, clip, flat, ratio)


LOSS = Loss(
    "topr",
    topr,
    formula="-A·log π; reward ≤ 0: -stop(clip(r, low, high))·A·log π",
    source="arXiv 2503.14286",
    aggregation="seq-mean-token-mean",
)
