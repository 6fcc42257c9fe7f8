"""GSPO: PPO's surrogate with one ratio for a whole response."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.losses.base import Loss, Surrogate, Tokens, ratio_limits
from rlpost.losses.ppo import DEFAULT_CLIP, clipped_surrogate, dual_bound

if TYPE_CHECKING:
    from rlpost.recipe.loss import DualClip


OWN = (3e-4, 4e-4)


def gspo(
    tokens: Tokens,
    *,
    pg_clip: float | None = None,
    pg_clip_low: float | None = None,
    pg_clip_high: float | None = None,
    dual_clip: DualClip | None = None,
    ratio_clamp: float = 20.0,
    ratio_cap: float = math.inf,
) -> Surrogate:
    """PPO's surrogate of s = exp(mean over the response of new - old), at each of its tokens.

    The gradient reaches a token through its own log-prob alone (GSPO-token): s·∇new. If all
    advantages of a response are equal, as in the paper, that is the gradient of the mean.
    Importance weights w of tokens count as advantages do: the gradient of a token is w·A·s·∇new
    with its own w and A, where that of s itself has the response's mean of w·A at each token.

    Args:
        tokens: T tokens.
        pg_clip: ε of both bounds; by default 3e-4 below and 4e-4 above.
        pg_clip_low: ε below 1.
        pg_clip_high: ε above 1.
        dual_clip: c > 1, or "twice" for 1 + 2·pg_clip (0.2 if that is None); None for none.
        ratio_clamp: bound on |log s|, nats.
        ratio_cap: bound on log s from above, nats.

    Returns:
        Surrogate of [T].

    Source: Zheng et al., arXiv 2507.18071 (GSPO-token), with the clip range of its experiments.
    """
    bounds = ratio_limits(pg_clip_low, pg_clip_high, pg_clip, OWN)
    dual = dual_bound(dual_clip, DEFAULT_CLIP if pg_clip is None else pg_clip)
    mean = tokens.mean_log_ratio
    high = min(ratio_clamp, ratio_cap)
    log_probs = tokens.masked_log_probs
    own_gradient = log_probs - tokens.constant(log_probs)  # its value is 0
    ratio = tokens.xp.exp((mean + own_gradient).clip(-ratio_clamp, high))
    surrogate = clipped_surrogate(tokens, ratio, bounds, dual)
    clamped = (mean < -ratio_clamp) | (mean > high)
    return surrogate._replace(zero_gradient=surrogate.zero_gradient | clamped)


LOSS = Loss(
    "gspo",
    gspo,
    formula="max(-A·s, -A·clip(s, 1-ε, 1+ε)), s = exp(mean log r)",
    source="arXiv:2507.18071",
    aggregation="seq-mean-token-mean",
)
