"""Masks by how far a token's probability moved, in place of a clip on ratios."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, states

if TYPE_CHECKING:
    from torch import Tensor


def dppo(
    tokens: Tokens,
    *,
    prob_mask: float = 0.2,
    prob_mask_low: float | None = None,
    prob_mask_high: float | None = None,
    square_coef: float = 1e-3,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """L = -A·r + κ·(log r)², without -A·r where the probability went far in A's direction.

        A > 0: masked where π - π_old > high      A < 0: masked where π - π_old < -low

    Args:
        tokens: T of them.
        prob_mask: the bound of both sides.
        prob_mask_low: of falling probabilities.
        prob_mask_high: of rising ones.
        square_coef: κ >= 0.
        ratio_clamp: bound on |log r| in the ratio, nats.

    Returns:
        Surrogate of [T]. LOW and HIGH are where tokens are masked; what is left there is κ's term.

    Source: prime-rl, trainer.rl.loss (default loss).
    """
    low = prob_mask if prob_mask_low is None else prob_mask_low
    high = prob_mask if prob_mask_high is None else prob_mask_high
    moved = tokens.moved
    under, over = (tokens.gain < 0) & (moved < -low), (tokens.gain > 0) & (moved > high)
    return _masked(tokens, tokens.gain, under, over, square_coef, ratio_clamp)


def ipo(
    tokens: Tokens,
    *,
    prob_mask: float = 0.1,
    square_coef: float = 1e-3,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """As `dppo`, masked where |π - π_old| is above the bound, whatever the advantage.

    Args:
        tokens: T of them.
        prob_mask: the bound.
        square_coef: κ >= 0.
        ratio_clamp: bound on |log r| in the ratio, nats.

    Source: prime-rl, trainer.rl.loss (ipo).
    """
    moved = tokens.moved
    under, over = moved < -prob_mask, moved > prob_mask
    return _masked(tokens, tokens.gain, under, over, square_coef, ratio_clamp)


def ref_kl(
    tokens: Tokens,
    *,
    prob_mask: float = 0.2,
    prob_mask_low: float | None = None,
    square_coef: float = 1e-3,
    ratio_clamp: float = math.inf,
) -> Surrogate:
    """As `dppo`, with stop(ref - new) as the advantage: the reverse KL, token by token.

    Advantages of the input are not read. Only falling probabilities are masked, for prime-rl
    asks the (absent) advantage for its sign.

    Args:
        tokens: T of them, with `ref`.
        prob_mask: the bound.
        prob_mask_low: the same, before it.
        square_coef: κ >= 0.
        ratio_clamp: bound on |log r| in the ratio, nats.

    Source: prime-rl, trainer.rl.loss (ref_kl).
    """
    low = prob_mask if prob_mask_low is None else prob_mask_low
    under = tokens.moved < -low
    none = torch.zeros_like(under)
    return _masked(tokens, _to_reference(tokens), under, none, square_coef, ratio_clamp)


def _to_reference(tokens: Tokens) -> Tensor:
    """The log ratio of reference to current, a constant for gradients, [T]."""
    assert tokens.ref is not None, "tokens without log-probs of the reference policy"
    return torch.where(tokens.mask, (tokens.ref - tokens.new).detach(), 0.0)


def _masked(
    tokens: Tokens,
    gain: Tensor,
    under: Tensor,
    over: Tensor,
    square_coef: float,
    ratio_clamp: float,
) -> Surrogate:
    out, ratio = under | over, tokens.ratio(ratio_clamp)
    square = square_coef * tokens.log_ratio.square()
    values = torch.where(out, 0.0, -gain * ratio) + square
    inside = out | (gain == 0) | (tokens.log_ratio.abs() > ratio_clamp)
    # where both parts pull, they might cancel exactly
    slope = torch.where(inside, 0.0, -gain * ratio) + 2 * square_coef * tokens.log_ratio
    return Surrogate(values, states(under, over), slope.detach() == 0, ratio)


DPPO = Loss(
    "dppo",
    dppo,
    formula="-A·r + κ(log r)²; masked where π moved > δ along A",
    source="prime-rl",
    aggregation="token-mean",
)
IPO = Loss(
    "ipo",
    ipo,
    formula="-A·r + κ(log r)²; masked where |Δπ| > δ",
    source="prime-rl",
    aggregation="token-mean",
)
REF_KL = Loss(
    "ref_kl",
    ref_kl,
    formula="-stop(log π_ref - log π)·r + κ(log r)²; masked where Δπ < -δ",
    source="prime-rl",
    aggregation="token-mean",
    own_gain=_to_reference,
)
