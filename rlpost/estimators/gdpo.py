"""GDPO: each reward component is normalised in its group before they are added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.rewards import z_scores
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def gdpo(
    components: Tensor,
    offsets: Tensor,
    *,
    component_weights: Sequence[float] = (),
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
) -> Credit:
    """Weighted sum of group-normalised components; the batch normalises it afterwards.

        Aᵢ = Σₖ wₖ·(cᵢₖ - mean of k) / (std of k + ε) over the group

    Args:
        components: [N, K] float64, sorted by group; NaN: not scored, takes no part.
        offsets: [G+1] of the groups.
        component_weights: K weights; none: 1 each.
        norm_mean: mean of the `group`, of the `others` of it, or `none`.
        norm_std: deviation of the same.
        norm_eps: ε.

    Returns:
        Credit of [N] each, one tensor twice. A component that is equal throughout a group, and
        a group of one, adds 0.

    Source: Liu et al., arXiv 2601.05242.

    >>> components = torch.tensor([[0.0, 5.0], [2.0, 5.0]], dtype=torch.float64)
    >>> gdpo(components, torch.tensor([0, 2]), norm_std="none").advantages
    tensor([-1.,  1.], dtype=torch.float64)
    """
    group = spread(torch.arange(offsets.numel() - 1, device=offsets.device), offsets)
    norm = {"norm_mean": norm_mean, "norm_std": norm_std}
    advantages = components.new_zeros(components.shape[0])
    weights = component_weights or [1.0] * components.shape[1]
    for component, weight in zip(components.unbind(1), weights, strict=True):
        advantages = advantages + weight * z_scores(component, group, norm_eps=norm_eps, **norm)
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "gdpo",
    gdpo,
    formula="Σₖ wₖ(cₖ - mean_g) / (std_g + 1e-6), then normalised over the batch",
    source="arXiv 2601.05242",
    normalise_batch=True,
)
