"""GMPO: PPO's surrogate of the geometric mean of a response's clipped ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


OWN = 0.4
_TINY = 1e-10


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

    Every token has its response's L. The gradient reaches a token through its own log ratio; the
    sum over a response is the gradient of the formula. Importance weights between rollout engine
    and trainer multiply L by their geometric mean over the response (of weights plus 1e-10).

    Args:
        tokens: T tokens.
        pg_clip: ε of both bounds on the log ratio; 0.4 by default.
        pg_clip_low: ε below.
        pg_clip_high: ε above.

    Returns:
        Surrogate of [T].

    Source: Zhao et al., arXiv 2507.20673, with its clip range (e^-0.4, e^0.4).
    """
    both = OWN if pg_clip is None else pg_clip
    low = both if pg_clip_low is None else pg_clip_low
    high = both if pg_clip_high is None else pg_clip_high
    log_ratio = tokens.log_ratio
    positive, zero = tokens.advantage_positive, tokens.advantage_zero
    mean_advantage = tokens.response_mean(tokens.masked_advantages)
    below = tokens.advantage_negative & (log_ratio < -low)
    above = positive & (log_ratio > high)
    clipped = tokens.xp.where(positive, log_ratio.clip(max=high), log_ratio.clip(-low))
    clipped = tokens.xp.where(zero, 0.0, clipped)
    own_gradient = clipped - tokens.constant(clipped)  # its value is 0
    ratio = tokens.xp.exp(tokens.response_mean(clipped) + own_gradient)
    zero_gradient = below | above | zero | (mean_advantage == 0)
    return Surrogate(-mean_advantage * ratio, clip_states(below, above), zero_gradient, ratio)


def _weights(tokens: Tokens) -> Array:
    """Return the geometric mean of the importance weights of each token's response, [T]."""
    assert tokens.weights is not None, "tokens without importance weights"
    return tokens.xp.exp(tokens.response_mean(tokens.xp.log(tokens.weights + _TINY)))


LOSS = Loss(
    "geo_mean",
    geo_mean,
    formula="-A·exp(mean clip(log r, -ε, ε))",
    source="arXiv:2507.20673",
    aggregation="seq-mean-token-mean",
    response_weights=_weights,
)
