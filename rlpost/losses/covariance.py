"""Clip-Cov and KL-Cov: tokens are selected by the covariance of advantage and log-prob.

The covariance of a token is (A - mean A)·(log π - mean log π), with means over the policy tokens of
its batch. The update of a token of high covariance lowers the entropy of the policy.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from rlpost.losses.base import (
    NONE,
    SELECTED,
    Bounded,
    Loss,
    Surrogate,
    clipped_along,
    through_ratio,
    token_ratio,
    unbounded,
)
from rlpost.losses.clipped import CLIP
from rlpost.losses.tokens import Selection, Tokens
from rlpost.recipe.base import Bound, NonNegative, Offsets, Range, Share

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


def clip_cov(
    tokens: Tokens,
    *,
    pg_clip: Offsets = CLIP,
    ratio_clamp: Bound = math.inf,
) -> Surrogate:
    """PPO's clipped surrogate; 0 for the tokens that are selected.

    The candidates of a batch are the policy tokens that PPO does not clip and whose covariance is
    between the bounds. Of these, ⌊share · policy tokens⌋ are selected at random, at least one.

    Args:
        tokens: T tokens.
        pg_clip: offsets of the ratio from 1.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio, where, chosen = token_ratio(tokens, ratio_clamp), tokens.xp.where, tokens.chosen
    bounded = clipped_along(tokens, ratio.value, pg_clip)
    weight = where(chosen, 0.0, bounded.weight)
    clip = where(chosen, SELECTED, bounded.clip)
    return through_ratio(tokens, ratio, Bounded(weight, clip, bounded.stopped | chosen))


def kl_cov(tokens: Tokens, *, coef: NonNegative = 1.0, ratio_clamp: Bound = math.inf) -> Surrogate:
    """The surrogate of the ratio; a penalty β·|log r| on the tokens of highest covariance.

    Args:
        tokens: T tokens.
        coef: coefficient β of the penalty.
        ratio_clamp: bound on |log r|, nats.
    """
    xp, chosen, ratio = tokens.xp, tokens.chosen, token_ratio(tokens, ratio_clamp)
    states = xp.astype(chosen, xp.uint8) * SELECTED
    bounded = unbounded(tokens, ratio.value)._replace(clip=states)
    sign = xp.sign(tokens.constant(tokens.log_ratio))
    penalty = xp.where(chosen, coef * abs(tokens.log_ratio), 0.0)
    return through_ratio(tokens, ratio, bounded).plus(penalty, xp.where(chosen, coef * sign, 0.0))


def inside_covariance(
    behaviour: str,
    *,
    pg_clip: Offsets,
    ratio_clamp: float,
    cov: Range = Range(1.0, 5.0),
    share: Share = 2e-4,
    seed: int = 0,
) -> Selection:
    """Select candidates of `clip_cov` at random.

    Args:
        behaviour: the policy that the ratio divides by.
        pg_clip: as of `clip_cov`.
        ratio_clamp: likewise.
        cov: tokens of a covariance between these are candidates.
        share: share of a batch's policy tokens that are selected.
        seed: of the random choice.
    """
    name = f"clip_cov {behaviour} {pg_clip} {cov} {ratio_clamp} {share} {seed}"
    rank = partial(_candidates, pg_clip=pg_clip, cov=cov, ratio_clamp=ratio_clamp)
    return Selection(name, rank, share, seed, behaviour)


def _candidates(tokens: Tokens, *, pg_clip: Offsets, cov: Range, ratio_clamp: float) -> Array:
    """Return 0 for candidates of `clip_cov` and -inf for other tokens, [T]."""
    covariance = tokens.covariance
    clip = clipped_along(tokens, tokens.ratio(ratio_clamp), pg_clip).clip
    inside = (covariance > cov.low) & (covariance < cov.high) & (clip == NONE)
    return tokens.xp.where(inside, 0.0 * covariance, -math.inf)


def highest_covariance(behaviour: str, *, share: Share = 2e-4, seed: int = 0) -> Selection:
    """Select the tokens of highest covariance.

    Args:
        behaviour: the policy that the ratio divides by.
        share: share of a batch's policy tokens that are selected.
        seed: of the choice among equal covariances.
    """
    return Selection(f"kl_cov {behaviour} {share} {seed}", _covariance, share, seed, behaviour)


def _covariance(tokens: Tokens) -> Array:
    return tokens.covariance


CLIP_COV = Loss(
    "clip_cov",
    clip_cov,
    formula="max(-A·r, -A·clip(r, 1-ε, 1+ε)); 0 if selected, low < cov(A, log π) < high",
    source="arXiv:2505.22617",
    selects=inside_covariance,
)
KL_COV = Loss(
    "kl_cov",
    kl_cov,
    formula="-A·r; + β|log r| if cov(A, log π) is among the highest",
    source="arXiv:2505.22617",
    selects=highest_covariance,
)
