"""Hierarchical GRPO: rewards centred by domain, within a group or a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.rewards import z_scores

if TYPE_CHECKING:
    from rlpost.kernels.moments import Floats, Integers


def hierarchical_grpo(rewards: Floats, cohort: Integers) -> Credit:
    """Return rewards minus the mean of their cohort.

        Aᵢ = rᵢ - mean of the cohort

    The cohort of a response is the responses of its domain (role of an agent) in its group, for
    the domains in `episode_domains`, and the responses of its domain in its batch for the others.

    Args:
        rewards: [N] float64.
        cohort: [N] codes of the cohorts.

    Returns:
        Credit of [N], the same array twice. A cohort of one response or of equal rewards gets 0.

    Source: prime-rl, hierarchical_grpo.

    >>> hierarchical_grpo(np.array([0.0, 1.0, 5.0]), np.array([0, 0, 1])).advantages
    array([-0.5,  0.5,  0. ])
    """
    advantages = z_scores(rewards, cohort, norm_std="none")
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "hierarchical_grpo",
    hierarchical_grpo,
    formula="r - mean of (domain, group), or of (domain, batch)",
    source="prime-rl",
)
