"""Agentic REINFORCE: the return-to-go, discounted per policy segment."""

from __future__ import annotations

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays import Array, all_true, namespace
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import (
    policy_segments,
    positions_of,
    segment_sum,
    segments_of_responses,
    spread,
)


def agentic_reinforce(
    token_rewards: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    segment_reward: str = "sum",
) -> Credit:
    """Return the discounted return-to-go of each policy segment, on all its tokens.

        Gₖ = Rₖ + γ·Gₖ₊₁ over the policy segments k of a response;  A = R = G

    A policy segment is a run of policy tokens without observation tokens in between.

    Args:
        token_rewards: [T] reward of each token.
        offsets: [N+1] of the responses.
        mask: [T] bool, true on policy tokens; None if all are.
        gamma: discount γ per segment, in [0, 1].
        segment_reward: Rₖ is the `sum` of the segment's rewards, or that of its `last` token.

    Returns:
        Credit of [T], the same array twice; 0 on observation tokens.

    Source: ROLL, compute_agentic_reinforce_return, which reads the last token's reward only.

    >>> rewards, mask = np.array([1.0, 0.0, 2.0]), np.array([True, False, True])
    >>> agentic_reinforce(rewards, np.array([0, 3]), mask, gamma=0.5).returns
    array([2., 0., 2.])
    """
    mask = all_true(len(token_rewards), token_rewards) if mask is None else mask
    segments, policy = policy_segments(mask, offsets), positions_of(mask)
    rewards = token_rewards[policy]
    last = segments[1:] - 1
    segment = segment_sum(rewards, segments) if segment_reward == "sum" else rewards[last]
    returns = reverse_scan(segment, segments_of_responses(mask, offsets), gamma)
    credit = spread(returns, segments)
    advantages = namespace(credit).placed(credit, policy, len(mask))
    return Credit(advantages, advantages)


ESTIMATOR = Estimator(
    "agentic_reinforce",
    agentic_reinforce,
    formula="Gₖ = Rₖ + γGₖ₊₁ over segments of policy tokens",
    source="ROLL",
    undiscounted_is_constant=True,
)
