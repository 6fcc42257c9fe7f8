"""The plain policy gradient, alone and with a penalty on the squared log ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.losses.base import Loss
from rlpost.losses.composition import Composition, no_ratio, unbounded

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


def squared(tokens: Tokens, coefficient: float) -> tuple[Array, Array]:
    """Return coefficient·(new - old)² and its gradient."""
    slope = 2 * coefficient * tokens.constant(tokens.log_ratio)
    return coefficient * tokens.log_ratio**2, slope


def _squared_tau(tokens: Tokens, *, kimi_tau: float) -> tuple[Array, Array]:
    return squared(tokens, kimi_tau / 2)


def _squared_beta(tokens: Tokens, *, dro_beta: float) -> tuple[Array, Array]:
    return squared(tokens, dro_beta / 2)


NEEDS = ("advantages", "log_probs")
PG = Loss(
    "pg",
    Composition("log_prob", unbounded, no_ratio),
    formula="-A·log π",
    source="Williams 1992",
    needs=NEEDS,
)
GPG = Loss("gpg", PG.function, formula=PG.formula, source="arXiv:2504.02546", needs=NEEDS)
"""GPG differs in its advantages, the estimator gpg, and in its aggregation."""
KIMI15 = Loss(
    "kimi15",
    Composition("log_prob", unbounded, no_ratio, _squared_tau),
    formula="-A·log π + τ/2·(log r)²",
    source="arXiv:2501.12599",
)
"""Token by token, as in ROLL."""
DRO = Loss(
    "dro",
    Composition("log_prob", unbounded, no_ratio, _squared_beta),
    formula="-A·log π + β/2·(log r)²",
    source="arXiv:2405.19107",
)
"""kimi15 under the name that verl and Tinker use; verl needs `policy_loss.dro_beta`."""
