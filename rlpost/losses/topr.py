"""TOPR, tapered off-policy REINFORCE: truncated weights for responses without reward."""

from __future__ import annotations

import math

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states


def topr(
    tokens: Tokens,
    *,
    tis_low: float = 0.0,
    tis_high: float = 1.0,
    topr_positive: float = 1.0,
    topr_negative: float = 1.0,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """The plain gradient for positive responses, a truncated weight for the others.

        reward > 0:  L = -A·log π
        otherwise:   L = -stop(clip(r, low, high))·A·log π

    Args:
        tokens: T tokens. Without rewards, the sign of the advantage is used.
        tis_low: lowest weight of a token if reward <= 0.
        tis_high: highest weight.
        topr_positive: factor if reward > 0.
        topr_negative: factor otherwise.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the weight is truncated; the token keeps its gradient.

    Source: Le Roux et al., arXiv 2503.14286 (token by token, as in ROLL).
    """
    positive, ratio = tokens.reward_positive, tokens.constant(tokens.ratio(ratio_clamp))
    weight = topr_negative * ratio.clip(tis_low, tis_high)
    weight = tokens.xp.where(positive, topr_positive, weight)
    clip = clip_states(~positive & (ratio < tis_low), ~positive & (ratio > tis_high))
    values = weight * tokens.negated_advantages * tokens.masked_log_probs
    return Surrogate(values, clip, tokens.advantage_zero | (weight == 0), ratio)


LOSS = Loss(
    "topr",
    topr,
    formula="-A·log π; reward ≤ 0: -stop(clip(r, low, high))·A·log π",
    source="arXiv:2503.14286",
    aggregation="seq-mean-token-mean",
)
