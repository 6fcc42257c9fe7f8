"""Truncated importance sampling."""

from __future__ import annotations

import math

from rlpost.losses.base import Loss, Surrogate, Tokens, states


def tis(
    tokens: Tokens, *, tis_low: float = 0.0, tis_high: float = 1.0, ratio_clamp: float = math.inf
) -> Surrogate:
    """L = -stop(clip(r, low, high))·A·log π.

    Args:
        tokens: T of them.
        tis_low: least weight.
        tis_high: greatest weight.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH are where the weight is truncated; gradients remain.

    Source: Ionides, "Truncated importance sampling", 2008; with [0, 1] as in TOPR, arXiv
    2503.14286.
    """
    ratio = tokens.ratio(ratio_clamp).detach()
    weight = ratio.clamp(tis_low, tis_high)
    flat = (tokens.gain == 0) | (weight == 0)
    values = weight * -tokens.gain * tokens.log_prob
    return Surrogate(values, states(ratio < tis_low, ratio > tis_high), flat, ratio)


LOSS = Loss(
    "tis",
    tis,
    formula="-stop(clip(r, low, high))·A·log π",
    source="arXiv 2503.14286",
    aggregation="seq-mean-token-mean",
)
