"""GMPO: PPO's surrogate of the geometric mean of a response's clipped ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


_TINY = 1e-10


def geo_mean(tokens: Tokens, *, pg_clip_low: float, pg_clip_high: float) -> Surrogate:
    """One ratio for a response, the geometric mean of its clipped token ratios.

        A > 0: l = min(log r, ε_high)      A < 0: l = max(log r, -ε_low)      A = 0: l = 0
        L = -mean(A)·exp(mean(l)), the means over the response's policy tokens

    Every token has its response's L. The gradient reaches a token through its own log ratio; the
    sum over a response is the gradient of the formula. Importance weights between rollout engine
    and trainer multiply L by their geometric mean over the response (of weights plus 1e-10).
    """
    log_ratio, where = tokens.log_ratio, tokens.xp.where
    positive, zero = tokens.advantage_positive, tokens.advantage_zero
    mean_advantage = tokens.response_mean(tokens.masked_advantages)
    below = tokens.advantage_negative & (log_ratio < -pg_clip_low)
    above = positive & (log_ratio > pg_clip_high)
    clipped = where(positive, log_ratio.clip(max=pg_clip_high), log_ratio.clip(-pg_clip_low))
    clipped = where(zero, 0.0, clipped)
    own_gradient = clipped - tokens.constant(clipped)  # its value is 0
    ratio = tokens.xp.exp(tokens.response_mean(clipped) + own_gradient)
    values = -mean_advantage * ratio
    gradient = where(below | above | zero, 0.0, tokens.constant(values))
    return Surrogate(values, clip_states(below, above), gradient, ratio)


def _weights(tokens: Tokens) -> Array:
    """Return the geometric mean of the importance weights of each token's response, [T]."""
    assert tokens.weights is not None, "tokens without importance weights"
    return tokens.xp.exp(tokens.response_mean(tokens.xp.log(tokens.weights + _TINY)))


GEO_MEAN = Loss(
    "geo_mean",
    geo_mean,
    formula="-A·exp(mean clip(log r, -ε, ε))",
    source="arXiv:2507.20673",
    of_responses=True,
    response_weights=_weights,
)
