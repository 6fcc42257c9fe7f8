"""On-policy distillation: the negative KL from teachers as the advantage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator

if TYPE_CHECKING:
    from torch import Tensor


def opd(distillation: Tensor) -> Credit:
    """Return the negative weighted KL from the teachers at each token.

        Aₜ = -Σₖ wₖ·KL(π ‖ teacher k)ₜ

    With another estimator and `teachers`, this is added to its advantages.

    Args:
        distillation: [T] Σₖ wₖ·KLₖ of each token, in nats.

    Returns:
        Credit of [T], the same tensor twice.

    Source: MiMo-V2-Flash, arXiv 2601.02780.

    >>> opd(torch.tensor([0.5, -1.0])).advantages
    tensor([-0.5000,  1.0000])
    """
    return Credit(-distillation, -distillation)


ESTIMATOR = Estimator("opd", opd, formula="-Σₖ wₖ·KL from teacher k", source="arXiv:2601.02780")
