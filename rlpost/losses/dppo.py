"""DPPO, IPO and their reference KL: tokens are masked by the change of their probability.

`dppo_tv` and `dppo_kl` are those of the paper, a policy gradient with a truncated weight. `dppo`,
`ipo` and `ref_kl` are prime-rl's (trainer.rl.loss), a ratio with a penalty on its square.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from rlpost.losses.base import (
    Bounded,
    Loss,
    Surrogate,
    clip_states,
    importance_weight,
    squared,
    through_log_prob,
    through_ratio,
    token_ratio,
)
from rlpost.recipe.base import Bound, NonNegative, Offsets, Positive, Share

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


_TINY = 1e-8


def _masked(
    tokens: Tokens,
    below: Array,
    above: Array,
    square_coef: float,
    clamp: float,
    advantages: Array | None = None,
) -> Surrogate:
    """Return -A·r + κ(log r)², without -A·r for masked tokens."""
    ratio, masked = token_ratio(tokens, clamp), below | above
    weight = tokens.xp.where(masked, 0.0, ratio.value)
    bounded = Bounded(weight, clip_states(below, above), masked)
    surrogate = through_ratio(tokens, ratio, bounded, advantages)
    return surrogate.plus(*squared(tokens, square_coef))


def dppo(
    tokens: Tokens,
    *,
    prob_mask: Offsets = Offsets(0.2, 0.2),
    square_coef: NonNegative = 1e-3,
    ratio_clamp: Bound = inf,
) -> Surrogate:
    """Masks tokens whose probability moved too far along the advantage.

    Args:
        tokens: T tokens.
        prob_mask: largest fall and rise of π that are not masked.
        square_coef: coefficient κ of the squared log ratio.
        ratio_clamp: bound on |log r|, nats.
    """
    change = tokens.probability_change
    below = tokens.advantage_negative & (change < -prob_mask.low)
    above = tokens.advantage_positive & (change > prob_mask.high)
    return _masked(tokens, below, above, square_coef, ratio_clamp)


def ipo(
    tokens: Tokens,
    *,
    prob_mask: Share = 0.1,
    square_coef: NonNegative = 1e-3,
    ratio_clamp: Bound = inf,
) -> Surrogate:
    """Masks tokens whose probability moved too far in any direction.

    Args:
        tokens: T tokens.
        prob_mask: largest change of π that is not masked.
        square_coef: coefficient κ of the squared log ratio.
        ratio_clamp: bound on |log r|, nats.
    """
    change = tokens.probability_change
    return _masked(tokens, change < -prob_mask, change > prob_mask, square_coef, ratio_clamp)


def reference_ratio(tokens: Tokens) -> Array:
    """Return the log ratio of reference to current, [T], a constant for gradients."""
    assert tokens.ref is not None, "tokens without log-probs of the reference policy"
    return tokens.xp.where(tokens.mask, tokens.constant(tokens.ref - tokens.new), 0.0)


def ref_kl(
    tokens: Tokens,
    *,
    prob_mask: Share = 0.2,
    square_coef: NonNegative = 1e-3,
    ratio_clamp: Bound = inf,
) -> Surrogate:
    """Dppo with the log ratio to the reference as the advantage.

    Args:
        tokens: T tokens.
        prob_mask: largest fall of π that is not masked.
        square_coef: coefficient κ of the squared log ratio.
        ratio_clamp: bound on |log r|, nats.
    """
    below, advantages = tokens.probability_change < -prob_mask, reference_ratio(tokens)
    above = tokens.xp.zeros_like(below)
    return _masked(tokens, below, above, square_coef, ratio_clamp, advantages)


def _truncated(tokens: Tokens, below: Array, above: Array, cap: float, clamp: float) -> Surrogate:
    """Return -min(r, c)·A·log π, 0 for masked tokens; one with a truncated weight is DUAL."""
    ratio, masked = importance_weight(tokens, clamp), below | above
    weight = tokens.xp.where(masked, 0.0, ratio.clip(max=cap))
    clip = clip_states(below, above, ~masked & (ratio > cap))
    return through_log_prob(tokens, ratio, Bounded(weight, clip))


def dppo_tv(
    tokens: Tokens,
    *,
    prob_mask: Offsets = Offsets(0.15, 0.15),
    weight_cap: Positive = 20.0,
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Truncated weights; masks tokens whose π moved too far along A.

    |π - π_old| is the total variation between two choices: this token, or any other.

    Args:
        tokens: T tokens.
        prob_mask: largest fall and rise of π that are not masked.
        weight_cap: highest importance weight c.
        ratio_clamp: bound on |log r|, nats.
    """
    positive, change = tokens.advantage_positive, tokens.probability_change
    below, above = ~positive & (change < -prob_mask.low), positive & (change > prob_mask.high)
    return _truncated(tokens, below, above, weight_cap, ratio_clamp)


def dppo_kl(
    tokens: Tokens,
    *,
    kl_mask: Offsets = Offsets(0.05, 0.05),
    weight_cap: Positive = 20.0,
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Truncated weights; masks tokens whose binary KL is too high, along A.

    KL = π_old·(old - new) + (1 - π_old)·log((1 - π_old + 1e-8)/(1 - π + 1e-8))

    Args:
        tokens: T tokens.
        kl_mask: largest KL, nats, that is not masked if π falls, and if it rises.
        weight_cap: highest importance weight c.
        ratio_clamp: bound on |log r|, nats.
    """
    xp = tokens.xp
    old, new = xp.exp(tokens.old_log_probs), xp.exp(tokens.constant(tokens.masked_log_probs))
    others = xp.log((1 - old + _TINY) / (1 - new + _TINY))
    divergence = (1 - old) * others - old * tokens.constant(tokens.log_ratio)
    positive = tokens.advantage_positive
    below = ~positive & (new < old) & ~(divergence <= kl_mask.low)
    above = positive & (new > old) & ~(divergence <= kl_mask.high)
    return _truncated(tokens, below, above, weight_cap, ratio_clamp)


LOSSES = (
    # prime-rl's default loss.
    Loss("dppo", dppo, "-A·r + κ(log r)²; masked if π moved > δ along A", "prime-rl"),
    Loss("ipo", ipo, "-A·r + κ(log r)²; masked if |Δπ| > δ", "prime-rl"),
    # The reverse KL, token by token; advantages of the input are not read.
    Loss(
        "ref_kl", ref_kl, "-stop(log π_ref - log π)·r + κ(log r)²; masked if Δπ < -δ", "prime-rl",
        needs=("log_probs", "old_log_probs", "ref_log_probs"), advantages=reference_ratio
    ),
    # DPPO-Binary-TV, with its bound.
    Loss(
        "dppo_tv", dppo_tv, "-stop(min(r, c))·A·log π; 0 if π moved > δ along A", "arXiv:2602.04879"
    ),
    # DPPO-Binary-KL, with its bound; 1e-8 as in verl.
    Loss(
        "dppo_kl", dppo_kl, "-stop(min(r, c))·A·log π; 0 if KL(π_old ‖ π) > δ along A",
        "arXiv:2602.04879"
    ),
)  # fmt: skip
