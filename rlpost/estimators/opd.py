"""On-policy distillation: the negative KL from teachers as the advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


def opd(distillation: Array) -> Credit:
    """Return the negative weighted KL from the teachers at each token.

        Aₜ = -Σₖ wₖ·KL(π ‖ teacher k)ₜ

    With another estimator and `teachers`, this is added to its advantages.

    Args:
        distillation: [T] Σₖ wₖ·KLₖ of each token, in nats.

    Returns:
        Credit of [T], the same array twice.

    Source: MiMo-V2-Flash, arXiv 2601.02780.

    >>> opd(np.array([0.5, -1.0])).advantages
    array([-0.5,  1. ])
    """
    return Credit(-distillation, -distillation)


ESTIMATOR = Estimator("opd", opd, formula="-Σₖ wₖ·KL from teacher k", source="arXiv:2601.02780")
