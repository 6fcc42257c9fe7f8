"""Clip-Cov and KL-Cov: tokens are selected by the covariance of advantage and log-prob.

The covariance of a token is (A - mean A)·(log π - mean log π), with means over the policy tokens of
its batch. The update of a token of high covariance lowers the entropy of the policy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.losses.base import NONE, SELECTED, Loss, Surrogate, Tokens, ratio_limits
from rlpost.losses.ppo import DEFAULT_CLIP, clipped_surrogate

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array

SHARE = 2e-4


def clip_cov(
    tokens: Tokens,
    *,
    pg_clip: float | None = None,
    pg_clip_low: float | None = None,
    pg_clip_high: float | None = None,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    cov_share: float = SHARE,
    cov_seed: int = 0,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """PPO's surrogate, without the tokens that are selected: their loss and gradient are 0.

    The candidates of a batch are the policy tokens that PPO does not clip and whose covariance is
    between the bounds. Of these, ⌊share · policy tokens⌋ are selected at random, at least one.

    Args:
        tokens: T tokens.
        pg_clip: ε of both bounds of PPO; 0.2 by default.
        pg_clip_low: ε below 1.
        pg_clip_high: ε above 1.
        cov_low: candidates have a higher covariance.
        cov_high: candidates have a lower covariance.
        cov_share: share in (0, 1] of the batch's policy tokens.
        cov_seed: of the random choice, which is a hash of seed, response and position.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the clipped surrogate is the maximum; SELECTED: the loss is
        0.

    Source: Cui et al., arXiv 2505.22617 (Clip-Cov), with its numbers.
    """
    del cov_low, cov_high, cov_share, cov_seed  # of the rank and of the selection
    chosen, surrogate = tokens.chosen, _ppo(tokens, pg_clip, pg_clip_low, pg_clip_high, ratio_clamp)
    return surrogate._replace(
        values=tokens.xp.where(chosen, 0.0, surrogate.values),
        clip=tokens.xp.where(chosen, SELECTED, surrogate.clip),
        zero_gradient=surrogate.zero_gradient | chosen | tokens.beyond(ratio_clamp),
    )


def clip_cov_rank(
    tokens: Tokens,
    *,
    pg_clip: float | None,
    pg_clip_low: float | None,
    pg_clip_high: float | None,
    cov_low: float,
    cov_high: float,
    ratio_clamp: float,
) -> Array:
    """Return 0 for candidates of `clip_cov` and -inf for other tokens, [T]."""
    covariance = tokens.covariance
    clip = _ppo(tokens, pg_clip, pg_clip_low, pg_clip_high, ratio_clamp).clip
    inside = (covariance > cov_low) & (covariance < cov_high) & (clip == NONE)
    return tokens.xp.where(inside, 0.0 * covariance, -math.inf)


def _ppo(
    tokens: Tokens,
    pg_clip: float | None,
    pg_clip_low: float | None,
    pg_clip_high: float | None,
    ratio_clamp: float,
) -> Surrogate:
    bounds = ratio_limits(pg_clip_low, pg_clip_high, pg_clip, (DEFAULT_CLIP, DEFAULT_CLIP))
    return clipped_surrogate(tokens, tokens.ratio(ratio_clamp), bounds)


def kl_cov(
    tokens: Tokens,
    *,
    kl_cov_coef: float = 1.0,
    cov_share: float = SHARE,
    cov_seed: int = 0,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """L = -A·r, plus coef·|log r| for the tokens of highest covariance in their batch.

    Of a batch, ⌊share · policy tokens⌋ are selected, at least one.

    Args:
        tokens: T tokens.
        kl_cov_coef: coefficient of |log r|.
        cov_share: share in (0, 1] of the batch's policy tokens.
        cov_seed: of the choice among tokens of equal covariance.
        ratio_clamp: bound on |log r| in the ratio, nats.

    Returns:
        Surrogate of [T]. SELECTED: the token has the penalty.

    Source: Cui et al., arXiv 2505.22617 (KL-Cov), with its numbers.
    """
    del cov_share, cov_seed  # of the selection
    xp, chosen, ratio = tokens.xp, tokens.chosen, tokens.ratio(ratio_clamp)
    penalty = xp.where(chosen, kl_cov_coef * abs(tokens.log_ratio), 0.0)
    values = tokens.negated_advantages * ratio + penalty
    # The gradients of both terms might cancel exactly.
    clamped = abs(tokens.log_ratio) > ratio_clamp
    slope = xp.where(clamped, 0.0, tokens.negated_advantages * ratio)
    slope = slope + xp.where(chosen, kl_cov_coef * xp.sign(tokens.log_ratio), 0.0)
    clip = xp.astype(chosen, xp.uint8) * SELECTED
    return Surrogate(values, clip, tokens.constant(slope) == 0, ratio)


def kl_cov_rank(tokens: Tokens) -> Array:
    """Return the covariance, [T]."""
    return tokens.covariance


CLIP_COV = Loss(
    "clip_cov",
    clip_cov,
    formula="max(-A·r, -A·clip(r, 1-ε, 1+ε)); 0 if selected, low < cov(A, log π) < high",
    source="arXiv:2505.22617",
    aggregation="token-mean",
    rank=clip_cov_rank,
)
KL_COV = Loss(
    "kl_cov",
    kl_cov,
    formula="-A·r; + β|log r| if cov(A, log π) is among the highest",
    source="arXiv:2505.22617",
    aggregation="token-mean",
    rank=kl_cov_rank,
    after_rank=("kl_cov_coef",),
)
