"""CISPO: a policy gradient with clipped importance weights, which keeps all gradients."""

from __future__ import annotations

import math
from typing import Literal

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states, ratio_limits

OWN = (math.inf, 4.0)


def cispo(
    tokens: Tokens,
    *,
    pg_clip: float | None = None,
    pg_clip_low: float | None = None,
    pg_clip_high: float | None = None,
    cispo_bounds: Literal["offset", "ratio"] = "offset",
    cispo_mask: bool = False,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """L = -stop(clip(r, 1 - ε_low, 1 + ε_high))·A·log π.

    The weight is a constant for gradients, so a clipped token keeps its gradient.

    Args:
        tokens: T tokens.
        pg_clip: ε of both bounds. By default there is no lower bound, and the upper one is a ratio
            of 5, as in "The Art of Scaling RL Compute for LLMs" (arXiv 2510.13786).
        pg_clip_low: ε below 1; inf for no bound.
        pg_clip_high: ε above 1.
        cispo_bounds: the numbers are an `offset` from 1, or the `ratio` itself.
        cispo_mask: a token has zero gradient if ppo with these bounds would clip it.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the ratio is outside the bounds, for any advantage.

    Source: MiniMax-M1, arXiv 2506.13585.
    """
    low, high = ratio_limits(pg_clip_low, pg_clip_high, pg_clip, OWN, cispo_bounds)
    ratio = tokens.constant(tokens.ratio(ratio_clamp))
    below, above = ratio < low, ratio > high
    values = ratio.clip(low, high) * tokens.negated_advantages * tokens.masked_log_probs
    zero_gradient = tokens.advantage_zero
    if cispo_mask:
        masked = (above & tokens.advantage_positive) | (below & tokens.advantage_negative)
        values, zero_gradient = tokens.xp.where(masked, 0.0, values), zero_gradient | masked
    return Surrogate(values, clip_states(below, above), zero_gradient, ratio)


LOSS = Loss(
    "cispo",
    cispo,
    formula="-stop(clip(r, 1-ε, 1+ε))·A·log π",
    source="arXiv:2506.13585",
    aggregation="token-mean",
)
