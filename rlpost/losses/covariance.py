"""Clip-Cov and KL-Cov: tokens are selected by the covariance of advantage and log-prob.

The covariance of a token is (A - mean A)·(log π - mean log π), with means over the policy tokens of
its batch. The update of a token of high covariance lowers the entropy of the policy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.losses.base import NONE, SELECTED, Loss
from rlpost.losses.composition import (
    Bounded,
    Composition,
    clipped_along,
    token_ratio,
    unbounded,
)

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


def without_chosen(
    tokens: Tokens, ratio: Array, *, pg_clip_low: float, pg_clip_high: float
) -> Bounded:
    """Return PPO's clip, and 0 for the tokens that are selected.

    The candidates of a batch are the policy tokens that PPO does not clip and whose covariance is
    between the bounds. Of these, ⌊share · policy tokens⌋ are selected at random, at least one.
    """
    bounded = clipped_along(tokens, ratio, pg_clip_low=pg_clip_low, pg_clip_high=pg_clip_high)
    where, chosen = tokens.xp.where, tokens.chosen
    return Bounded(
        where(chosen, 0.0, bounded.weight),
        where(chosen, SELECTED, bounded.clip),
        bounded.stopped | chosen,
    )


def clip_cov_rank(
    tokens: Tokens,
    *,
    pg_clip_low: float,
    pg_clip_high: float,
    cov_low: float,
    cov_high: float,
    ratio_clamp: float,
) -> Array:
    """Return 0 for candidates of `clip_cov` and -inf for other tokens, [T]."""
    covariance, ratio = tokens.covariance, tokens.ratio(ratio_clamp)
    clip = clipped_along(tokens, ratio, pg_clip_low=pg_clip_low, pg_clip_high=pg_clip_high).clip
    inside = (covariance > cov_low) & (covariance < cov_high) & (clip == NONE)
    return tokens.xp.where(inside, 0.0 * covariance, -math.inf)


def marked(tokens: Tokens, ratio: Array) -> Bounded:
    """Return the ratio itself; the tokens that are selected have the state SELECTED."""
    states = tokens.xp.astype(tokens.chosen, tokens.xp.uint8) * SELECTED
    return unbounded(tokens, ratio)._replace(clip=states)


def penalty(tokens: Tokens, *, kl_cov_coef: float) -> tuple[Array, Array]:
    """Return coef·|log r| of the tokens of highest covariance in their batch, and its gradient."""
    xp, chosen = tokens.xp, tokens.chosen
    sign = xp.sign(tokens.constant(tokens.log_ratio))
    return (
        xp.where(chosen, kl_cov_coef * abs(tokens.log_ratio), 0.0),
        xp.where(chosen, kl_cov_coef * sign, 0.0),
    )


def kl_cov_rank(tokens: Tokens) -> Array:
    """Return the covariance, [T]."""
    return tokens.covariance


CLIP_COV = Loss(
    "clip_cov",
    Composition("ratio", without_chosen, token_ratio),
    formula="max(-A·r, -A·clip(r, 1-ε, 1+ε)); 0 if selected, low < cov(A, log π) < high",
    source="arXiv:2505.22617",
    rank=clip_cov_rank,
)
KL_COV = Loss(
    "kl_cov",
    Composition("ratio", marked, token_ratio, penalty),
    formula="-A·r; + β|log r| if cov(A, log π) is among the highest",
    source="arXiv:2505.22617",
    rank=kl_cov_rank,
    after_rank=("kl_cov_coef",),
)
