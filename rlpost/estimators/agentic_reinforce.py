"""Agentic REINFORCE: the return-to-go, discounted once for each turn of the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import (
    compact_offsets,
    offsets_of_starts,
    policy_starts,
    segment_sum,
    spread,
)

if TYPE_CHECKING:
    from torch import Tensor


def agentic_reinforce(
    token_rewards: Tensor,
    offsets: Tensor,
    mask: Tensor | None = None,
    *,
    gamma: float = 1.0,
    segment_reward: str = "sum",
) -> Credit:
    """One return for each contiguous segment of policy tokens.

        Gₖ = Rₖ + γ·Gₖ₊₁ over the segments of a response;  A = R = G on all tokens of k

    Args:
        token_rewards: [T] reward of each token.
        offsets: [N+1] of the responses.
        mask: [T] bool, the policy's tokens; None: all are.
        gamma: discount per segment, in [0, 1].
        segment_reward: a segment earns the `sum` of its rewards, or its `last` token's.

    Returns:
        Credit of [T] each, one tensor twice; 0 outside the mask.

    Source: ROLL, agentic pipeline.

    >>> rewards, mask = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([True, False, True])
    >>> agentic_reinforce(rewards, torch.tensor([0, 3]), mask, gamma=0.5).returns
    tensor([2., 0., 2.])
    """
    policy = torch.ones_like(token_rewards, dtype=torch.bool) if mask is None else mask
    starts = policy_starts(policy, offsets)
    bounds = offsets_of_starts(starts[policy])
    rewards = token_rewards[policy]
    earned = segment_sum(rewards, bounds) if segment_reward == "sum" else rewards[bounds[1:] - 1]
    returns = reverse_scan(earned, compact_offsets(starts, offsets), gamma)
    out = torch.zeros_like(token_rewards)
    out[policy] = spread(returns, bounds)
    return Credit(out, out)


ESTIMATOR = Estimator(
    "agentic_reinforce",
    agentic_reinforce,
    formula="Gₖ = Rₖ + γGₖ₊₁ over segments of policy tokens",
    source="ROLL",
    undiscounted_is_constant=True,
)
