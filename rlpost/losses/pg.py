"""The plain policy gradient, and group policy gradient (GPG), which aggregates it otherwise."""

from __future__ import annotations

from rlpost.losses.base import Loss, Surrogate, Tokens, clip_states


def pg(tokens: Tokens) -> Surrogate:
    """L = -A·log π, without a ratio to an older policy, so nothing is clipped.

    Args:
        tokens: T tokens; `old` is not read.

    Returns:
        Surrogate of [T].

    Source: Williams, "Simple statistical gradient-following algorithms", 1992.
    """
    none, ratio = tokens.xp.zeros_like(tokens.mask), tokens.xp.ones_like(tokens.masked_advantages)
    values = tokens.negated_advantages * tokens.masked_log_probs
    return Surrogate(values, clip_states(none, none), tokens.advantage_zero, ratio)


NEEDS = ("advantages", "log_probs")
PG = Loss(
    "pg",
    pg,
    formula="-A·log π",
    source="Williams 1992",
    aggregation="seq-mean-token-sum",
    needs=NEEDS,
)
GPG = Loss(
    "gpg",
    pg,
    formula="-A·log π",
    source="arXiv:2504.02546",
    aggregation="token-mean",
    needs=NEEDS,
)
"""GPG differs in its advantages, the estimator gpg."""
