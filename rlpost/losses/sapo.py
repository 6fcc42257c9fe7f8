"""SAPO, soft adaptive policy optimisation: a smooth gate in place of a clip."""

from __future__ import annotations

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states


def sapo(
    tokens: Tokens,
    *,
    sapo_tau_pos: float = 1.0,
    sapo_tau_neg: float = 1.05,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """L = -A·σ(τ·(r - 1))·4/τ, with one τ if A > 0 and another otherwise.

    At r = 1 its gradient is that of -A·r.

    Args:
        tokens: T tokens.
        sapo_tau_pos: τ if A > 0.
        sapo_tau_neg: τ otherwise; larger, so that gradients decay faster.
        ratio_clamp: bound on |log r|, nats.

    Returns:
        Surrogate of [T]; nothing is clipped.

    Source: Gao et al., arXiv 2511.20347.
    """
    none, ratio = tokens.xp.zeros_like(tokens.mask), tokens.ratio(ratio_clamp)
    xp, advantages = tokens.xp, tokens.masked_advantages
    tau_pos, tau_neg = (xp.full((), tau, advantages) for tau in (sapo_tau_pos, sapo_tau_neg))
    tau = xp.where(tokens.advantage_positive, tau_pos, tau_neg)
    # torch.sigmoid rounds by a token's position in the tensor, so chunks would change bits.
    decay = xp.exp(tau * (1 - ratio))
    gate = 1 / (1 + decay)
    zero_gradient = tokens.advantage_zero | (decay == 0) | tokens.beyond(ratio_clamp)
    values = tokens.negated_advantages * gate * (4 / tau)
    return Surrogate(values, clip_states(none, none), zero_gradient, ratio)


LOSS = Loss(
    "sapo",
    sapo,
    formula="-A·σ(τ(r - 1))·4/τ",
    source="arXiv:2511.20347",
    aggregation="seq-mean-token-mean",
)
