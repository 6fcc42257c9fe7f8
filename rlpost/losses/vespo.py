"""VESPO: a smooth weight of whole responses, from the sum of their log ratios."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.kernels.corrections import at_level
from rlpost.losses.base import Loss
from rlpost.losses.composition import Bounded, Composition, unbounded

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


_CLAMP, _LOWEST = 20.0, 1e-8


def response_product(tokens: Tokens) -> tuple[Array, bool]:
    """Return w, the product of a response's ratios, for each of its tokens, in [1e-8, e^20].

    Log ratios of tokens are clamped to ±20. Importance weights are factors of w, in its range each.
    """
    log_ratio = tokens.constant(tokens.log_ratio).clip(-_CLAMP, _CLAMP)
    if tokens.weights is not None:
        weights = tokens.xp.where(tokens.mask, tokens.weights, 1.0)
        log_ratio = log_ratio + tokens.xp.log(weights.clip(_LOWEST, math.exp(_CLAMP)))
    total = at_level(log_ratio, tokens.mask, tokens.offsets, level="sequence")
    return tokens.xp.exp(total.clip(math.log(_LOWEST), _CLAMP)), False


def gamma_weighted(
    tokens: Tokens,
    ratio: Array,
    *,
    vespo_k_pos: float,
    vespo_lambda_pos: float,
    vespo_k_neg: float,
    vespo_lambda_neg: float,
) -> Bounded:
    """Return φ(w) = exp(λ + k·log w - λ·w), with k and λ by the sign of the advantage; φ(1) = 1."""
    log_ratio = tokens.xp.log(ratio)

    def weight(power: float, decay: float) -> Array:
        return tokens.xp.exp(decay + power * log_ratio - decay * ratio)

    positive, negative = (
        weight(vespo_k_pos, vespo_lambda_pos),
        weight(vespo_k_neg, vespo_lambda_neg),
    )
    weights = tokens.xp.where(tokens.advantage_negative, negative, positive)
    return unbounded(tokens, ratio)._replace(weight=weights)


def _no_weights(tokens: Tokens) -> Array:
    """Return 1: the importance weights are factors of the ratio."""
    return tokens.xp.ones_like(tokens.masked_advantages)


VESPO = Loss(
    "vespo",
    Composition("log_prob", gamma_weighted, response_product),
    formula="-stop(exp(λ + k·log w - λw))·A·log π, w = exp(Σ log r)",
    source="arXiv:2602.10693",
    of_responses=True,
    response_weights=_no_weights,
)
"""As in TRL 1.16.0 (trl/trainer/grpo_trainer.py, get_gamma_weights)."""
