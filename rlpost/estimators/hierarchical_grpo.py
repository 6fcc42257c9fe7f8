"""Hierarchical GRPO: each role centred among its like, inside an episode or over a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.rewards import z_scores

if TYPE_CHECKING:
    from torch import Tensor


def hierarchical_grpo(rewards: Tensor, cohort: Tensor) -> Credit:
    """Reward less the mean of the response's cohort.

        Aᵢ = rᵢ - mean(r of the cohort)

    A cohort is what shares a domain (a role) and a group, for the domains that are named as
    `episode_domains`; for the others it is what shares a domain and a batch.

    Args:
        rewards: [N] float64.
        cohort: [N] codes.

    Returns:
        Credit of [N] each, one tensor twice. A cohort of one, and one of equal rewards, gets 0.

    Source: prime-rl, hierarchical_grpo.

    >>> hierarchical_grpo(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0, 0, 1])).advantages
    tensor([-0.5000,  0.5000,  0.0000])
    """
    advantages = z_scores(rewards, cohort, norm_std="none")
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "hierarchical_grpo",
    hierarchical_grpo,
    formula="r - mean of (domain, group), or of (domain, batch)",
    source="prime-rl",
)
