"""Turn GAE: generalised advantage estimation with a step for each turn."""

from __future__ import annotations

from rlpost.estimators.base import Credit, Estimator
from rlpost.estimators.gae import gae
from rlpost.kernels.arrays import Array, all_true, namespace
from rlpost.kernels.segments import (
    policy_segments,
    positions_of,
    segment_sum,
    segments_of_responses,
    spread,
)


def turn_gae(
    token_rewards: Array,
    values: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    turn_value: str = "first",
) -> Credit:
    """Return GAE over the turns of a response, on all tokens of each turn.

        δₖ = Rₖ + γ·Vₖ₊₁ - Vₖ,  V = 0 after the last turn
        Aₖ = δₖ + γλ·Aₖ₊₁
        returns = Aₖ + Vₖ

    A turn is a run of policy tokens without observation tokens in between.

    Args:
        token_rewards: [T] reward of each token; Rₖ is the sum over the turn.
        values: [T] value of the state before each token, in units of reward.
        offsets: [N+1] of the responses.
        mask: [T] bool, true on policy tokens; None if all are.
        gamma: discount γ per turn, in [0, 1].
        lam: λ in [0, 1].
        turn_value: Vₖ is the value at the `first` token of the turn, the state in which it begins,
            or at its `last`.

    Returns:
        Credit of [T] each; 0 on observation tokens.

    Source: Li et al. (Turn-PPO), arXiv 2512.17008; AReaL, ppo/gae.py, `_compute_turn_level_gae`.
    `last` is the outer recursion of VAGEN, arXiv 2510.16907.

    >>> rewards, values = np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.0, 0.25])
    >>> turn_gae(rewards, values, np.array([0, 3]), np.array([True, False, True])).advantages
    array([0.4625, 0.    , 0.75  ])
    """
    mask = all_true(len(token_rewards), token_rewards) if mask is None else mask
    segments, policy = policy_segments(mask, offsets), positions_of(mask)
    at = segments[:-1] if turn_value == "first" else segments[1:] - 1
    rewards, states = segment_sum(token_rewards[policy], segments), values[policy][at]
    credit = gae(rewards, states, segments_of_responses(mask, offsets), gamma=gamma, lam=lam)
    xp = namespace(values)
    return Credit(*(xp.placed(spread(part, segments), policy, len(mask)) for part in credit))


ESTIMATOR = Estimator(
    "turn_gae",
    turn_gae,
    formula="δₖ = Rₖ + γVₖ₊₁ - Vₖ; Aₖ = δₖ + γλAₖ₊₁ over turns",
    source="arXiv:2512.17008",
    returns="own",
)
