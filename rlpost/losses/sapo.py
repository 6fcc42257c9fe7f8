"""SAPO, soft adaptive policy optimisation: a smooth gate in place of a clip."""

from __future__ import annotations

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states


def sapo(
    tokens: Tokens, *, sapo_tau_pos: float, sapo_tau_neg: float, ratio_clamp: float
) -> Surrogate:
    """L = -A·σ(τ·(r - 1))·4/τ, with one τ if A > 0 and another otherwise.

    At r = 1 its gradient is that of -A·r. Nothing is clipped.
    """
    none, ratio = tokens.xp.zeros_like(tokens.mask), tokens.ratio(ratio_clamp)
    xp, advantages = tokens.xp, tokens.masked_advantages
    tau_pos, tau_neg = (xp.full((), tau, advantages) for tau in (sapo_tau_pos, sapo_tau_neg))
    tau = xp.where(tokens.advantage_positive, tau_pos, tau_neg)
    # torch.sigmoid rounds by a token's position in the tensor, so chunks would change bits.
    decay = xp.exp(tau * (1 - ratio))
    gate = 1 / (1 + decay)
    gradient = tokens.constant(4 * tokens.negated_advantages * (gate * gate * decay) * ratio)
    beyond = tokens.beyond(ratio_clamp)
    if beyond is not False:
        gradient = xp.where(beyond, 0.0, gradient)
    values = tokens.negated_advantages * gate * (4 / tau)
    return Surrogate(values, clip_states(none, none), gradient, ratio)


SAPO = Loss("sapo", sapo, formula="-A·σ(τ(r - 1))·4/τ", source="arXiv:2511.20347")
