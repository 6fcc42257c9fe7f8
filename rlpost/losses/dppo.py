"""DPPO, IPO and their reference KL: tokens are masked by the change of their probability.

`dppo_tv` and `dppo_kl` are those of the paper, a policy gradient with a truncated weight. `dppo`,
`ipo` and `ref_kl` are prime-rl's (trainer.rl.loss), a ratio with a penalty on its square.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.losses.base import Loss, clip_states
from rlpost.losses.composition import Bounded, Composition, token_ratio
from rlpost.losses.pg import squared

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


_TINY = 1e-8


def _masked(tokens: Tokens, ratio: Array, below: Array, above: Array) -> Bounded:
    masked = below | above
    return Bounded(tokens.xp.where(masked, 0.0, ratio), clip_states(below, above), masked)


def moved_along(
    tokens: Tokens, ratio: Array, *, prob_mask_low: float, prob_mask_high: float
) -> Bounded:
    """Mask if A > 0 and π - π_old > high, or A < 0 and π - π_old < -low."""
    change = tokens.probability_change
    below = tokens.advantage_negative & (change < -prob_mask_low)
    return _masked(tokens, ratio, below, tokens.advantage_positive & (change > prob_mask_high))


def moved(tokens: Tokens, ratio: Array, *, prob_mask: float) -> Bounded:
    """Mask if |π - π_old| is above the bound, for any advantage."""
    change = tokens.probability_change
    return _masked(tokens, ratio, change < -prob_mask, change > prob_mask)


def fell(tokens: Tokens, ratio: Array, *, prob_mask_low: float) -> Bounded:
    """Mask falling probabilities only: prime-rl uses the sign of the advantage, which is absent."""
    below = tokens.probability_change < -prob_mask_low
    return _masked(tokens, ratio, below, tokens.xp.zeros_like(below))


def _truncated(
    tokens: Tokens, ratio: Array, below: Array, above: Array, tis_high: float
) -> Bounded:
    masked = below | above
    weight = tokens.xp.where(masked, 0.0, ratio.clip(max=tis_high))
    return Bounded(weight, clip_states(below, above, ~masked & (ratio > tis_high)))


def total_variation(
    tokens: Tokens,
    ratio: Array,
    *,
    prob_mask_low: float,
    prob_mask_high: float,
    tis_high: float,
) -> Bounded:
    """Return min(r, c), 0 if A > 0 and π - π_old > high, or A <= 0 and π - π_old < -low.

    |π - π_old| is the total variation between two choices: this token, or any other. A masked
    token is LOW or HIGH, one with a truncated weight DUAL.
    """
    positive, change = tokens.advantage_positive, tokens.probability_change
    below, above = ~positive & (change < -prob_mask_low), positive & (change > prob_mask_high)
    return _truncated(tokens, ratio, below, above, tis_high)


def binary_kl(
    tokens: Tokens, ratio: Array, *, kl_mask_low: float, kl_mask_high: float, tis_high: float
) -> Bounded:
    """As `total_variation`, but masked if KL(π_old ‖ π) of the two choices is above the bound.

    KL = π_old·(old - new) + (1 - π_old)·log((1 - π_old + 1e-8)/(1 - π + 1e-8))
    """
    xp = tokens.xp
    old, new = xp.exp(tokens.old_log_probs), xp.exp(tokens.constant(tokens.masked_log_probs))
    others = xp.log((1 - old + _TINY) / (1 - new + _TINY))
    divergence = (1 - old) * others - old * tokens.constant(tokens.log_ratio)
    positive = tokens.advantage_positive
    below = ~positive & (new < old) & ~(divergence <= kl_mask_low)
    above = positive & (new > old) & ~(divergence <= kl_mask_high)
    return _truncated(tokens, ratio, below, above, tis_high)


def _square(tokens: Tokens, *, square_coef: float) -> tuple[Array, Array]:
    return squared(tokens, square_coef)


def _reference_ratio(tokens: Tokens) -> Array:
    """Return the log ratio of reference to current, [T], a constant for gradients."""
    assert tokens.ref is not None, "tokens without log-probs of the reference policy"
    return tokens.xp.where(tokens.mask, tokens.constant(tokens.ref - tokens.new), 0.0)


DPPO = Loss(
    "dppo",
    Composition("ratio", moved_along, token_ratio, _square),
    formula="-A·r + κ(log r)²; masked if π moved > δ along A",
    source="prime-rl",
)
"""prime-rl's default loss."""
IPO = Loss(
    "ipo",
    Composition("ratio", moved, token_ratio, _square),
    formula="-A·r + κ(log r)²; masked if |Δπ| > δ",
    source="prime-rl",
)
REF_KL = Loss(
    "ref_kl",
    Composition("ratio", fell, token_ratio, _square, advantages=_reference_ratio),
    formula="-stop(log π_ref - log π)·r + κ(log r)²; masked if Δπ < -δ",
    source="prime-rl",
    needs=("log_probs", "old_log_probs", "ref_log_probs"),
)
"""The reverse KL, token by token; advantages of the input are not read."""
DPPO_TV = Loss(
    "dppo_tv",
    Composition("log_prob", total_variation, token_ratio),
    formula="-stop(min(r, c))·A·log π; 0 if π moved > δ along A",
    source="arXiv:2602.04879",
)
"""DPPO-Binary-TV, with its bound."""
DPPO_KL = Loss(
    "dppo_kl",
    Composition("log_prob", binary_kl, token_ratio),
    formula="-stop(min(r, c))·A·log π; 0 if KL(π_old ‖ π) > δ along A",
    source="arXiv:2602.04879",
)
"""DPPO-Binary-KL, with its bound; 1e-8 as in verl."""
