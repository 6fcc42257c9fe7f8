"""TIS: a policy gradient with truncated importance weights."""

from __future__ import annotations

import math

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states


def tis(
    tokens: Tokens, *, tis_low: float = 0.0, tis_high: float = 1.0, ratio_clamp: float = math.inf
) -> Surrogate:
    """L = -stop(clip(r, low, high))·A·log π.

    Args:
        tokens: T tokens.
        tis_low: lowest weight.
        tis_high: highest weight.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the weight is truncated; the token keeps its gradient.

    Source: Ionides, "Truncated importance sampling", 2008; with [0, 1] as in TOPR, arXiv
    2503.14286.
    """
    ratio = tokens.constant(tokens.ratio(ratio_clamp))
    weight = ratio.clip(tis_low, tis_high)
    zero_gradient = tokens.advantage_zero | (weight == 0)
    values = weight * tokens.negated_advantages * tokens.masked_log_probs
    return Surrogate(values, clip_states(ratio < tis_low, ratio > tis_high), zero_gradient, ratio)


LOSS = Loss(
    "tis",
    tis,
    formula="-stop(clip(r, low, high))·A·log π",
    source="arXiv:2503.14286",
    aggregation="seq-mean-token-mean",
)
