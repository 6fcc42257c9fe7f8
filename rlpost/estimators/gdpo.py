"""GDPO: the sum of reward components that are normalised within their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.rewards import z_scores
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.kernels.moments import Floats, Integers


def gdpo(
    components: Floats,
    offsets: Integers,
    *,
    component_weights: Sequence[float] = (),
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    norm_floor: float = 0.0,
    norm_ddof: int = 1,
) -> Credit:
    """Return the weighted sum of group-normalised components; a later stage normalises the batch.

        Aᵢ = Σₖ wₖ·(cᵢₖ - meanₖ) / (stdₖ + ε) over the group

    Args:
        components: [N, K] float64, sorted by group; NaN: not scored, left out.
        offsets: [G+1] of the groups.
        component_weights: K weights; empty: 1 each.
        norm_mean: mean of the `group`, of the `others` of the group (leave-one-out), or `none`.
        norm_std: standard deviation of the same scopes.
        norm_eps: ε, added to the standard deviation.
        norm_floor: smallest standard deviation that divides.
        norm_ddof: 1 divides the variance by n - 1 (Bessel's correction), 0 by n.

    Returns:
        Credit of [N], the same array twice. A component whose values are equal in the group adds
        0, and so does every component of a single-response group.

    Source: Liu et al., arXiv 2601.05242. NeMo-RL uses `others`; TRL has ε = 1e-4.

    >>> components = np.array([[0.0, 5.0], [2.0, 5.0]])
    >>> gdpo(components, np.array([0, 2]), norm_std="none").advantages
    array([-1.,  1.])
    """
    parts = weighted_scores(
        components,
        offsets,
        component_weights=component_weights,
        norm_mean=norm_mean,
        norm_std=norm_std,
        norm_eps=norm_eps,
        norm_floor=norm_floor,
        norm_ddof=norm_ddof,
    )
    advantages = np.zeros(len(components), components.dtype)
    for part in parts.T:
        advantages = advantages + part
    return Credit(advantages, advantages)


def weighted_scores(
    components: Floats,
    offsets: Integers,
    *,
    component_weights: Sequence[float] = (),
    norm_mean: str = "group",
    norm_std: str = "group",
    **divided_by: float,
) -> Floats:
    """Return wₖ·(cᵢₖ - meanₖ) / (stdₖ + ε) of each component, [N, K]; arguments of `gdpo`."""
    group = spread(np.arange(len(offsets) - 1), offsets)
    weights = component_weights or [1.0] * components.shape[1]
    parts = [
        weight * z_scores(component, group, norm_mean=norm_mean, norm_std=norm_std, **divided_by)
        for component, weight in zip(components.T, weights, strict=True)
    ]
    return np.stack(parts, axis=1)


ESTIMATOR = Estimator(
    "gdpo",
    gdpo,
    formula="Σₖ wₖ(cₖ - mean_g) / (std_g + 1e-6), then normalised over the batch",
    source="arXiv:2601.05242",
    normalise_batch=True,
)
