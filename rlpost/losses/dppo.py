"""DPPO, IPO and their reference KL: tokens are masked by the change of their probability.

`dppo_tv` and `dppo_kl` are those of the paper, a policy gradient with a truncated weight. `dppo`,
`ipo` and `ref_kl` are prime-rl's, a ratio with a penalty on its square.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


TRUNCATION = 20.0
_TINY = 1e-8


def dppo(
    tokens: Tokens,
    *,
    prob_mask: float = 0.2,
    prob_mask_low: float | None = None,
    prob_mask_high: float | None = None,
    square_coef: float = 1e-3,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """L = -A·r + κ·(log r)², without -A·r if the probability moved too far in the direction of A.

        A > 0: masked if π - π_old > high      A < 0: masked if π - π_old < -low

    Args:
        tokens: T tokens.
        prob_mask: both bounds.
        prob_mask_low: the bound of falling probabilities.
        prob_mask_high: the bound of rising ones.
        square_coef: κ >= 0.
        ratio_clamp: bound on |log r| in the ratio, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the token is masked and keeps the term of κ.

    Source: prime-rl, trainer.rl.loss (default loss).
    """
    low = prob_mask if prob_mask_low is None else prob_mask_low
    high = prob_mask if prob_mask_high is None else prob_mask_high
    change = tokens.probability_change
    below = tokens.advantage_negative & (change < -low)
    above = tokens.advantage_positive & (change > high)
    return _masked(tokens, tokens.masked_advantages, below, above, square_coef, ratio_clamp)


def dppo_tv(
    tokens: Tokens,
    *,
    prob_mask: float = 0.15,
    prob_mask_low: float | None = None,
    prob_mask_high: float | None = None,
    tis_high: float = TRUNCATION,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """L = -stop(min(r, c))·A·log π, 0 if the probability moved too far in the direction of A.

    |π - π_old| is the total variation between two choices: this token, or any other.

        A > 0: masked if π - π_old > high      A <= 0: masked if π - π_old < -low

    Args:
        tokens: T tokens.
        prob_mask: both bounds.
        prob_mask_low: the bound of falling probabilities.
        prob_mask_high: the bound of rising ones.
        tis_high: c, the highest weight.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the token is masked; DUAL: its weight is truncated.

    Source: arXiv 2602.04879 (DPPO-Binary-TV), with its bound.
    """
    low = prob_mask if prob_mask_low is None else prob_mask_low
    high = prob_mask if prob_mask_high is None else prob_mask_high
    positive, change = tokens.advantage_positive, tokens.probability_change
    below, above = ~positive & (change < -low), positive & (change > high)
    return _truncated(tokens, below, above, tis_high, ratio_clamp)


def dppo_kl(
    tokens: Tokens,
    *,
    kl_mask: float = 0.05,
    kl_mask_low: float | None = None,
    kl_mask_high: float | None = None,
    tis_high: float = TRUNCATION,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """As `dppo_tv`, but masked if KL(π_old ‖ π) of the two choices is above the bound.

        KL = π_old·(old - new) + (1 - π_old)·log((1 - π_old + 1e-8)/(1 - π + 1e-8))

    Args:
        tokens: T tokens.
        kl_mask: both bounds, nats.
        kl_mask_low: the bound of falling probabilities.
        kl_mask_high: the bound of rising ones.
        tis_high: c, the highest weight.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH: the token is masked; DUAL: its weight is truncated.

    Source: arXiv 2602.04879 (DPPO-Binary-KL), with its bound; 1e-8 as in verl.
    """
    low = kl_mask if kl_mask_low is None else kl_mask_low
    high = kl_mask if kl_mask_high is None else kl_mask_high
    xp = tokens.xp
    old, new = xp.exp(tokens.old_log_probs), xp.exp(tokens.constant(tokens.masked_log_probs))
    others = xp.log((1 - old + _TINY) / (1 - new + _TINY))
    divergence = (1 - old) * others - old * tokens.constant(tokens.log_ratio)
    positive = tokens.advantage_positive
    below = ~positive & (new < old) & ~(divergence <= low)
    above = positive & (new > old) & ~(divergence <= high)
    return _truncated(tokens, below, above, tis_high, ratio_clamp)


def _truncated(
    tokens: Tokens, below: Array, above: Array, most: float, ratio_clamp: float
) -> Surrogate:
    masked, ratio = below | above, tokens.constant(tokens.ratio(ratio_clamp))
    weight = tokens.xp.where(masked, 0.0, ratio.clip(max=most))
    values = weight * tokens.negated_advantages * tokens.masked_log_probs
    clip = clip_states(below, above, ~masked & (ratio > most))
    return Surrogate(values, clip, tokens.advantage_zero | (weight == 0), ratio)


def ipo(
    tokens: Tokens,
    *,
    prob_mask: float = 0.1,
    square_coef: float = 1e-3,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """As `dppo`, but masked if |π - π_old| is above the bound, for any advantage.

    Args:
        tokens: T tokens.
        prob_mask: the bound.
        square_coef: κ >= 0.
        ratio_clamp: bound on |log r| in the ratio, nats.

    Source: prime-rl, trainer.rl.loss (ipo).
    """
    change = tokens.probability_change
    below, above = change < -prob_mask, change > prob_mask
    return _masked(tokens, tokens.masked_advantages, below, above, square_coef, ratio_clamp)


def ref_kl(
    tokens: Tokens,
    *,
    prob_mask: float = 0.2,
    prob_mask_low: float | None = None,
    square_coef: float = 1e-3,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """As `dppo`, with stop(ref - new) as the advantage: the reverse KL, token by token.

    Advantages of the input are not read. Only falling probabilities are masked, since prime-rl
    uses the sign of the advantage, which is absent.

    Args:
        tokens: T tokens, with `ref`.
        prob_mask: the bound.
        prob_mask_low: the bound, in place of `prob_mask`.
        square_coef: κ >= 0.
        ratio_clamp: bound on |log r| in the ratio, nats.

    Source: prime-rl, trainer.rl.loss (ref_kl).
    """
    low = prob_mask if prob_mask_low is None else prob_mask_low
    below = tokens.probability_change < -low
    none = tokens.xp.zeros_like(below)
    return _masked(tokens, _reference_ratio(tokens), below, none, square_coef, ratio_clamp)


def _reference_ratio(tokens: Tokens) -> Array:
    """Return the log ratio of reference to current, [T], a constant for gradients."""
    assert tokens.ref is not None, "tokens without log-probs of the reference policy"
    return tokens.xp.where(tokens.mask, tokens.constant(tokens.ref - tokens.new), 0.0)


def _masked(
    tokens: Tokens,
    advantages: Array,
    below: Array,
    above: Array,
    square_coef: float,
    ratio_clamp: float,
) -> Surrogate:
    masked, ratio = below | above, tokens.ratio(ratio_clamp)
    where, square = tokens.xp.where, square_coef * tokens.log_ratio**2
    values = where(masked, 0.0, -advantages * ratio) + square
    constant = masked | (advantages == 0) | (abs(tokens.log_ratio) > ratio_clamp)
    # The gradients of both terms might cancel exactly.
    gradient = where(constant, 0.0, -advantages * ratio) + 2 * square_coef * tokens.log_ratio
    return Surrogate(values, clip_states(below, above), tokens.constant(gradient) == 0, ratio)


DPPO = Loss(
    "dppo",
    dppo,
    formula="-A·r + κ(log r)²; masked if π moved > δ along A",
    source="prime-rl",
    aggregation="token-mean",
)
DPPO_TV = Loss(
    "dppo_tv",
    dppo_tv,
    formula="-stop(min(r, c))·A·log π; 0 if π moved > δ along A",
    source="arXiv:2602.04879",
    aggregation="token-mean",
)
DPPO_KL = Loss(
    "dppo_kl",
    dppo_kl,
    formula="-stop(min(r, c))·A·log π; 0 if KL(π_old ‖ π) > δ along A",
    source="arXiv:2602.04879",
    aggregation="token-mean",
)
IPO = Loss(
    "ipo",
    ipo,
    formula="-A·r + κ(log r)²; masked if |Δπ| > δ",
    source="prime-rl",
    aggregation="token-mean",
)
REF_KL = Loss(
    "ref_kl",
    ref_kl,
    formula="-stop(log π_ref - log π)·r + κ(log r)²; masked if Δπ < -δ",
    source="prime-rl",
    aggregation="token-mean",
    own_advantages=_reference_ratio,
    needs=("log_probs", "old_log_probs", "ref_log_probs"),
)
