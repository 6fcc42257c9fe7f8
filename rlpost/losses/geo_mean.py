"""Geometric-mean policy optimisation."""

from __future__ import annotations

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, states

OWN = 0.4


def geo_mean(
    tokens: Tokens,
    *,
    pg_clip: float | None = None,
    pg_clip_low: float | None = None,
    pg_clip_high: float | None = None,
) -> Surrogate:
    """One ratio for a response, the geometric mean of its clipped token ratios.

        A > 0: l = min(log r, ε_high)      A < 0: l = max(log r, -ε_low)      A = 0: l = 0
        L = -mean(A)·exp(mean(l)), the means over the response's policy tokens

    Every token has its response's L. The gradient reaches a token through its own log ratio:
    summed over a response that is the gradient of the formula.

    Args:
        tokens: T of them.
        pg_clip: ε of both sides, of the log ratio; 0.4 where nothing is given.
        pg_clip_low: ε below.
        pg_clip_high: ε above.

    Returns:
        Surrogate of [T].

    Source: Zhao et al., arXiv 2507.20673, with its clip range (e^-0.4, e^0.4).
    """
    both = OWN if pg_clip is None else pg_clip
    low = both if pg_clip_low is None else pg_clip_low
    high = both if pg_clip_high is None else pg_clip_high
    gain, log_ratio = tokens.gain, tokens.log_ratio
    mean_gain = tokens.response_mean(gain)
    under, over = (gain < 0) & (log_ratio < -low), (gain > 0) & (log_ratio > high)
    kept = torch.where(gain > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=-low))
    kept = torch.where(gain == 0, 0.0, kept)
    ratio = (tokens.response_mean(kept) + (kept - kept.detach())).exp()
    flat = under | over | (gain == 0) | (mean_gain == 0)
    return Surrogate(-mean_gain * ratio, states(under, over), flat, ratio)


LOSS = Loss(
    "geo_mean",
    geo_mean,
    formula="-A·exp(mean clip(log r, -ε, ε))",
    source="arXiv 2507.20673",
    aggregation="seq-mean-token-mean",
)
