"""On-policy distillation: the advantage is how far the teachers would rather be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator

if TYPE_CHECKING:
    from torch import Tensor


def opd(distillation: Tensor) -> Credit:
    """Negative KL from the teachers at each token.

        Aₜ = -Σₖ wₖ·KL(π ‖ teacher k)ₜ

    With another estimator, recipes that name teachers add this to its advantages.

    Args:
        distillation: [T] Σ w·KL of each token.

    Returns:
        Credit of [T] each, one tensor twice.

    Source: MiMo-V2-Flash, arXiv 2601.02780.

    >>> opd(torch.tensor([0.5, -1.0])).advantages
    tensor([-0.5000,  1.0000])
    """
    return Credit(-distillation, -distillation)


ESTIMATOR = Estimator("opd", opd, formula="-Σₖ wₖ·KL from teacher k", source="arXiv 2601.02780")
