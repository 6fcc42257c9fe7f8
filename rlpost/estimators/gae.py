"""Generalised advantage estimation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.scans import reverse_scan

if TYPE_CHECKING:
    from torch import Tensor


def gae(
    token_rewards: Tensor, values: Tensor, offsets: Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> Credit:
    """Exponentially weighted advantages over a learned value function.

        δₜ = rₜ + γ·Vₜ₊₁ - Vₜ      V = 0 behind the last token
        Aₜ = δₜ + γλ·Aₜ₊₁
        Rₜ = Aₜ + Vₜ

    Args:
        token_rewards: [T] reward of each token.
        values: [T] value of the state before each token.
        offsets: [N+1] of the responses.
        gamma: discount, in [0, 1].
        lam: λ in [0, 1]; 0 is one-step TD, 1 the return less the value.

    Returns:
        Credit of [T] each; an empty response has none.

    Source: Schulman et al., arXiv 1506.02438, eq. 16.

    >>> offsets = torch.tensor([0, 2])
    >>> gae(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]), offsets, lam=1.0).advantages
    tensor([0.5000, 0.5000])
    """
    following = torch.cat([values[1:], values.new_zeros(1)])
    ends = offsets[1:][offsets[1:] > offsets[:-1]] - 1
    following[ends] = 0.0
    deltas = token_rewards + gamma * following[: values.numel()] - values
    advantages = reverse_scan(deltas, offsets, gamma * lam)
    return Credit(advantages, advantages + values)


ESTIMATOR = Estimator(
    "gae",
    gae,
    formula="δₜ = rₜ + γVₜ₊₁ - Vₜ; Aₜ = δₜ + γλAₜ₊₁",
    source="arXiv 1506.02438",
)
