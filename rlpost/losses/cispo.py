"""A policy gradient whose importance weights are clipped, and whose tokens all learn."""

from __future__ import annotations

import math
from typing import Literal

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, limits, states

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

    The weight is a constant, so a clipped token keeps its gradient.

    Args:
        tokens: T of them.
        pg_clip: ε of both sides; where nothing is given, no bound below and a ratio of 5 above,
            as in "The Art of Scaling RL Compute for LLMs" (arXiv 2510.13786).
        pg_clip_low: ε below 1; inf for no bound.
        pg_clip_high: ε above 1.
        cispo_bounds: the numbers are an `offset` from 1, or the `ratio` itself.
        cispo_mask: tokens that ppo with these bounds would give no gradient get none.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH are where the ratio is outside, whatever the advantage.

    Source: MiniMax-M1, arXiv 2506.13585.
    """
    low, high = limits(pg_clip_low, pg_clip_high, pg_clip, OWN, cispo_bounds)
    ratio = tokens.ratio(ratio_clamp).detach()
    under, over = ratio < low, ratio > high
    values = ratio.clamp(low, high) * -tokens.gain * tokens.log_prob
    flat = tokens.gain == 0
    if cispo_mask:
        out = (over & (tokens.gain > 0)) | (under & (tokens.gain < 0))
        values, flat = torch.where(out, 0.0, values), flat | out
    return Surrogate(values, states(under, over), flat, ratio)


LOSS = Loss(
    "cispo",
    cispo,
    formula="-stop(clip(r, 1-ε, 1+ε))·A·log π",
    source="arXiv 2506.13585",
    aggregation="token-mean",
)
