"""Soft adaptive policy optimisation: a gate in place of a clip."""

from __future__ import annotations

import torch

from rlpost.losses.base import Loss, Surrogate, Tokens, beyond, states


def sapo(
    tokens: Tokens,
    *,
    sapo_tau_pos: float = 1.0,
    sapo_tau_neg: float = 1.05,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """L = -A·σ(τ·(r - 1))·4/τ, with one τ for A > 0 and another elsewhere.

    At r = 1 its gradient is that of -A·r.

    Args:
        tokens: T of them.
        sapo_tau_pos: τ where A > 0.
        sapo_tau_neg: τ elsewhere; larger, so that gradients fade sooner there.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]; nothing is clipped.

    Source: Gao et al., arXiv 2511.20347.
    """
    none, ratio = torch.zeros_like(tokens.mask), tokens.ratio(ratio_clamp)
    steep, steeper = tokens.gain.new_tensor((sapo_tau_pos, sapo_tau_neg))
    tau = torch.where(tokens.gain > 0, steep, steeper)
    # torch.sigmoid rounds by a token's place in the tensor, so pieces would change bits
    fade = (tau * (1 - ratio)).exp()
    gate = 1 / (1 + fade)
    flat = (tokens.gain == 0) | (fade == 0) | beyond(tokens, ratio_clamp)
    values = -tokens.gain * gate * (4 / tau)
    return Surrogate(values, states(none, none), flat, ratio)


LOSS = Loss(
    "sapo",
    sapo,
    formula="-A·σ(τ(r - 1))·4/τ",
    source="arXiv 2511.20347",
    aggregation="seq-mean-token-mean",
)
