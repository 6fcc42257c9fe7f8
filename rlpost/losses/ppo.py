"""PPO's clipped surrogate, with separate bounds and dual clip."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states, ratio_limits

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.recipe.loss import DualClip


DEFAULT_CLIP = 0.2


def ppo(
    tokens: Tokens,
    *,
    pg_clip: float | None = None,
    pg_clip_low: float | None = None,
    pg_clip_high: float | None = None,
    dual_clip: DualClip | None = None,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """The maximum of the plain and the clipped surrogate.

        r = exp(new - old)
        L = max(-A·r, -A·clip(r, 1 - ε_low, 1 + ε_high))
        A < 0, dual clip c: L = min(L, -A·c)

    Args:
        tokens: T tokens.
        pg_clip: ε of both bounds, > 0; 0.2 by default.
        pg_clip_low: ε below 1.
        pg_clip_high: ε above 1 (clip-higher, DAPO, arXiv 2503.14476).
        dual_clip: c > 1, or "twice" for 1 + 2·pg_clip; None for none.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the clipped surrogate is the maximum; DUAL: the dual clip
        is active.

    Source: Schulman et al., arXiv 1707.06347, eq. 7; dual clip: Ye et al., arXiv 1912.09729.

    >>> one, ends = np.ones(3, np.bool_), np.array([0, 3])
    >>> new, old, advantages = np.array([0.5, 0.1, 2.0]), np.zeros(3), np.array([1.0, 1.0, -1.0])
    >>> ppo(Tokens(new, old, advantages, one, ends), dual_clip=3.0).values.round(4)
    array([-1.2   , -1.1052,  3.    ])
    """
    bounds = ratio_limits(pg_clip_low, pg_clip_high, pg_clip, (DEFAULT_CLIP, DEFAULT_CLIP))
    dual = dual_bound(dual_clip, DEFAULT_CLIP if pg_clip is None else pg_clip)
    surrogate = clipped_surrogate(tokens, tokens.ratio(ratio_clamp), bounds, dual)
    clamped = tokens.beyond(ratio_clamp)
    return surrogate._replace(zero_gradient=surrogate.zero_gradient | clamped)


def dual_bound(dual_clip: DualClip | None, pg_clip: float) -> float:
    """Return the highest ratio that is not clipped if the advantage is negative; inf for none."""
    if dual_clip is None:
        return math.inf
    return 1 + 2 * pg_clip if dual_clip == "twice" else float(dual_clip)


def clipped_surrogate(
    tokens: Tokens, ratio: Array, bounds: tuple[float, float], dual: float = math.inf
) -> Surrogate:
    """Return PPO's surrogate for any ratio.

    Args:
        tokens: T tokens.
        ratio: [T].
        bounds: the lowest and the highest ratio that is not clipped.
        dual: the highest ratio that is not clipped if A < 0.
    """
    positive, negative = tokens.advantage_positive, tokens.advantage_negative
    low, high = negative & (ratio < bounds[0]), positive & (ratio > bounds[1])
    zero_gradient, by_dual = low | high | tokens.advantage_zero, None
    if not math.isinf(dual):
        by_dual = negative & (ratio > dual)
        zero_gradient = zero_gradient | by_dual
    clipped = tokens.xp.where(positive, ratio.clip(max=bounds[1]), ratio.clip(bounds[0], dual))
    values = clipped * tokens.negated_advantages
    return Surrogate(values, clip_states(low, high, by_dual), zero_gradient, ratio)


LOSS = Loss(
    "ppo",
    ppo,
    formula="max(-A·r, -A·clip(r, 1-ε, 1+ε))",
    source="arXiv:1707.06347",
    aggregation="token-mean",
)
