"""The policy gradient with a penalty on the squared log ratio: Kimi k1.5, and DRO."""

from __future__ import annotations

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states


def kimi15(tokens: Tokens, *, kimi_tau: float = 0.1) -> Surrogate:
    """L = -A·log π + τ/2·(new - old)².

    Args:
        tokens: T tokens.
        kimi_tau: τ >= 0.

    Returns:
        Surrogate of [T]; nothing is clipped.

    Source: Kimi k1.5, arXiv 2501.12599, token by token as in ROLL.
    """
    return _penalised(tokens, kimi_tau)


def dro(tokens: Tokens, *, dro_beta: float = 0.1) -> Surrogate:
    """L = -A·log π + β/2·(new - old)²: `kimi15` under the name that verl and Tinker use.

    Args:
        tokens: T tokens.
        dro_beta: β >= 0. verl has no default, it needs `policy_loss.dro_beta`.

    Returns:
        Surrogate of [T]; nothing is clipped.

    Source: Richemond et al., arXiv 2405.19107 (DRO), token by token.
    """
    return _penalised(tokens, dro_beta)


def _penalised(tokens: Tokens, tau: float) -> Surrogate:
    advantages, none = tokens.masked_advantages, tokens.xp.zeros_like(tokens.mask)
    penalty = tau / 2 * tokens.log_ratio**2
    values = tokens.negated_advantages * tokens.masked_log_probs + penalty
    zero_gradient = tau * tokens.log_ratio == advantages
    ratio = tokens.xp.ones_like(advantages)
    return Surrogate(values, clip_states(none, none), zero_gradient, ratio)


KIMI15 = Loss(
    "kimi15",
    kimi15,
    formula="-A·log π + τ/2·(log r)²",
    source="arXiv:2501.12599",
    aggregation="seq-mean-token-mean",
)
DRO = Loss(
    "dro",
    dro,
    formula="-A·log π + β/2·(log r)²",
    source="arXiv:2405.19107",
    aggregation="token-mean",
)
