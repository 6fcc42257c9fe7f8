"""Estimators of tokens: returns-to-go, temporal-difference errors, baselines of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlpost.estimators.base import Credit, Estimator
from rlpost.kernels.arrays import all_true, namespace
from rlpost.kernels.scans import reverse_scan, reverse_scan_each
from rlpost.kernels.segments import (
    backwards,
    compact_offsets,
    ends_of,
    lengths,
    policy_segments,
    positions_of,
    segment_sum,
    segments_of_responses,
    spread,
)
from rlpost.recipe.base import NonNegative, Positive, Unit

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array

_MOST_NATS = 80.0
"""Bound on the log ratio of vtrace, whose exponential stays finite."""


def reinforce(token_rewards: Array, offsets: Array, *, gamma: float = 1.0) -> Credit:
    """Return the discounted return-to-go of the token rewards.

        Gₜ = rₜ + γ·Gₜ₊₁,  G = 0 after the last token;  A = R = G

    Args:
        token_rewards: [T] reward of each token.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].

    Returns:
        Credit of [T], the same array twice.

    Source: Williams, Machine Learning 8, 1992.

    >>> reinforce(np.array([0.0, 1.0]), np.array([0, 2]), gamma=0.5).returns
    array([0.5, 1. ])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    return Credit(returns, returns)


def remax(
    token_rewards: Array, reward_baseline: Array, offsets: Array, *, gamma: float = 1.0
) -> Credit:
    """Return the return-to-go minus the baseline of the response.

        Gₜ = rₜ + γ·Gₜ₊₁,  G = 0 after the last token;  Aₜ = Gₜ - b;  R = G

    Args:
        token_rewards: [T] reward of each token.
        reward_baseline: [N] reward b of the greedy response to the same prompt.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].

    Returns:
        Credit of [T] each; a response without tokens has no credit.

    Source: Li et al., arXiv 2310.10505, algorithm 1.

    >>> rewards, baseline = np.array([0.0, 1.0]), np.array([0.75])
    >>> remax(rewards, baseline, np.array([0, 2])).advantages
    array([0.25, 0.25])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    baseline = spread(reward_baseline, offsets)
    return Credit(returns - namespace(returns).astype(baseline, returns.dtype), returns)


def gae(
    token_rewards: Array,
    values: Array,
    offsets: Array,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    lambda_policy: Unit | None = None,
    lambda_value: Unit | None = None,
    length_adaptive_alpha: NonNegative = 0.0,
) -> Credit:
    """Return exponentially weighted sums of temporal-difference errors, and their returns.

        δₜ = rₜ + γ·Vₜ₊₁ - Vₜ,  V = 0 after the last token
        Aₜ = δₜ + γλ·Aₜ₊₁
        Rₜ = Aₜ + Vₜ

    Args:
        token_rewards: [T] reward of each token.
        values: [T] value of the state before each token, in units of reward.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].
        lam: λ in [0, 1]; 0 gives one-step TD errors, 1 the return minus the value.
        lambda_policy: λ of the advantages; None for `lam`.
        lambda_value: λ of the returns; None for `lam`.
        length_adaptive_alpha: with α > 0, λ of the advantages is max(0, 1 - 1/(α·n)) for a response
            of n tokens (VAPO).

    Returns:
        Credit of [T] each; a response without tokens has no credit.

    Source: Schulman et al., arXiv 1506.02438, eq. 16; VAPO, arXiv 2504.05118, eq. 9. verl also
    whitens the advantages.

    >>> offsets = np.array([0, 2])
    >>> gae(np.array([0.0, 1.0]), np.array([0.5, 0.5]), offsets, lam=1.0).advantages
    array([0.5, 0.5])
    """
    xp = namespace(values)
    following = xp.filled(xp.concat([values[1:], values[:1]]), ends_of(offsets), 0.0)
    deltas = token_rewards - values + gamma * following
    traced = reverse_scan(deltas, offsets, gamma * (lam if lambda_value is None else lambda_value))
    advantages = traced
    if length_adaptive_alpha > 0:
        tokens = xp.astype(lengths(offsets), values.dtype)
        weighted = (length_adaptive_alpha * tokens).clip(1.0)
        advantages = reverse_scan_each(deltas, offsets, spread(gamma * (1 - 1 / weighted), offsets))
    elif lambda_policy is not None or lambda_value is not None:
        policy = lam if lambda_policy is None else lambda_policy
        advantages = reverse_scan(deltas, offsets, gamma * policy)
    return Credit(advantages, traced + values)


def vtrace(
    token_rewards: Array,
    values: Array,
    old_log_probs: Array,
    infer_log_probs: Array,
    offsets: Array,
    *,
    gamma: float = 1.0,
    rho_cap: Positive = 1.0,
    c_cap: Positive = 1.0,
) -> Credit:
    """Return TD errors weighted by capped ratios of the trainer's to the engine's probabilities.

        ρₜ = min(πₜ/μₜ, ρ̄),  cₜ = min(πₜ/μₜ, c̄)
        vₜ = Vₜ + ρₜ·(rₜ + γ·Vₜ₊₁ - Vₜ) + γ·cₜ·(vₜ₊₁ - Vₜ₊₁),  V = v = 0 after the last token
        Aₜ = ρₜ·(rₜ + γ·vₜ₊₁ - Vₜ);  R = v

    With π = μ and caps from 1 it is gae with λ = 1.

    Args:
        token_rewards: [T] reward of each token.
        values: [T] value of the state before each token, in units of reward.
        old_log_probs: [T] log π, of the trainer's policy before the update.
        infer_log_probs: [T] log μ, of the rollout engine's policy.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].
        rho_cap: cap ρ̄ > 0 of the ratios that weigh TD errors; with a finite one, v are the values
            of a policy between μ and π.
        c_cap: cap c̄ > 0 of the ratios that carry TD errors back; it trades variance for speed, and
            does not change that policy.

    Returns:
        Credit of [T] each; a response without tokens has no credit.

    Source: Espeholt et al., arXiv 1802.01561, eq. 1 and section 4.2; torchrl 0.14,
    objectives/value/functional.py:1298, vtrace_advantage_estimate.

    >>> rewards, values, offsets = np.array([0.0, 1.0]), np.array([0.5, 0.5]), np.array([0, 2])
    >>> vtrace(rewards, values, np.log([0.2, 0.5]), np.log([0.4, 0.5]), offsets).advantages
    array([0.25, 0.5 ])
    """
    xp = namespace(values)
    ratio = xp.exp((old_log_probs - infer_log_probs).clip(max=_MOST_NATS))
    rho, decay = ratio.clip(max=rho_cap), gamma * ratio.clip(max=c_cap)

    def following(numbers: Array) -> Array:
        return xp.filled(xp.concat([numbers[1:], numbers[:1]]), ends_of(offsets), 0.0)

    errors = rho * (token_rewards - values + gamma * following(values))
    targets = values + reverse_scan_each(errors, offsets, decay)
    return Credit(rho * (token_rewards - values + gamma * following(targets)), targets)


def agentic_reinforce(
    token_rewards: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    segment_reward: Literal["sum", "last"] = "sum",
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


def turn_gae(
    token_rewards: Array,
    values: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    turn_value: Literal["first", "last"] = "first",
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


def optimal_token_baseline(
    token_rewards: Array, position_baseline: Array, offsets: Array, *, gamma: float = 1.0
) -> Credit:
    """Return the return-to-go minus the baseline of the token's group and position.

        Gₜ = rₜ + γ·Gₜ₊₁;  Aₜ = Gₜ - Bₜ;  R = G
        Bₜ = Σ G·W / (Σ W + ε) over the group's policy tokens at position t

    Args:
        token_rewards: [T] reward of each token.
        position_baseline: [T] baseline B of each token.
        offsets: [N+1] of the responses.
        gamma: discount γ per token, in [0, 1].

    Returns:
        Credit of [T] each. If no other response of the group has a token at the position, the
        advantage is 0 up to ε.

    Source: verl, compute_optimal_token_baseline_advantage.

    >>> rewards, baseline = np.array([0.0, 1.0]), np.array([0.5, 0.25])
    >>> optimal_token_baseline(rewards, baseline, np.array([0, 2])).advantages
    array([0.5 , 0.75])
    """
    returns = reverse_scan(token_rewards, offsets, gamma)
    return Credit(returns - position_baseline, returns)


def token_weights(
    old_log_probs: Array,
    sum_pi_squared: Array,
    offsets: Array,
    infer_log_probs: Array | None = None,
    *,
    ratio_cap: Positive | None = None,
) -> Array:
    """Return the cumulative squared norm of the score function up to each token, [T].

        Wₜ = Σₛ≤ₜ (1 - 2πₛ + Σπₛ²)·ρₛ²

    Args:
        old_log_probs: [T] log π of the sampled tokens.
        sum_pi_squared: [T] Σπ² over the vocabulary, in [0, 1].
        offsets: [N+1] of the responses.
        infer_log_probs: [T] log-probs of the rollout engine; None for ρ = 1.
        ratio_cap: cap of ρ = min(π/π_infer, cap); None for ρ = 1.

    >>> import math
    >>> half = np.full(2, math.log(0.5))
    >>> token_weights(half, np.array([0.5, 0.5]), np.array([0, 2]))
    array([0.5, 1. ])
    """
    xp = namespace(old_log_probs)
    energy = 1 - 2 * xp.exp(old_log_probs) + sum_pi_squared
    if infer_log_probs is not None and ratio_cap is not None:
        ratio = xp.exp((old_log_probs - infer_log_probs).clip(-20, 20)).clip(max=ratio_cap)
        energy = energy * ratio**2
    return xp.flip(reverse_scan(xp.flip(energy), backwards(offsets), 1.0))


def token_positions(
    mask: Array, offsets: Array, *, position: Literal["token", "policy_token"] = "token"
) -> Array:
    """Return the position of each token in its response, [T].

    Args:
        mask: [T] bool, true on policy tokens.
        offsets: [N+1] of the responses.
        position: of a token among all tokens of its response (`token`), or among its policy
            tokens; that of an observation token then has no meaning.

    >>> mask, offsets = np.array([True, False, True]), np.array([0, 3])
    >>> token_positions(mask, offsets), token_positions(mask, offsets, position="policy_token")
    (array([0, 1, 2]), array([0, 0, 1]))
    """
    if position == "token":
        return namespace(mask).arange(len(mask), mask) - spread(offsets[:-1], offsets)
    return mask.cumsum(0) - 1 - spread(compact_offsets(mask, offsets)[:-1], offsets)


def position_baselines(
    above: Array,
    below: Array,
    number: Array,
    *,
    lone: Literal["baseline", "none"] = "baseline",
    eps: NonNegative = 1e-8,
) -> Array:
    """Return the baselines B of positions, Σ G·W / (Σ W + ε), [P].

    Args:
        above: [P] Σ G·W over the group's policy tokens at a position.
        below: [P] Σ W.
        number: [P] number of these tokens.
        lone: baseline at a position that one response of the group reaches: its own return
            (`baseline`), or 0 (`none`).
        eps: ε, added to the sum of weights.

    >>> sums, weights, number = np.array([1.0, 3.0]), np.array([2.0, 1.0]), np.array([2.0, 1.0])
    >>> position_baselines(sums, weights, number, lone="none", eps=0.0)
    array([0.5, 0. ])
    """
    baselines = above / (below + eps)
    return namespace(baselines).where(number > 1, baselines, 0.0) if lone == "none" else baselines


def opd(distillation: Array) -> Credit:
    """Return the negative weighted KL from the teachers at each token.

        Aₜ = -Σₖ wₖ·KL(π ‖ teacher k)ₜ

    With another estimator and `teachers`, this is added to its advantages.

    Args:
        distillation: [T] Σₖ wₖ·KLₖ of each token, in nats.

    Returns:
        Credit of [T], the same array twice.

    Source: MiMo-V2-Flash, arXiv 2601.02780.

    >>> opd(np.array([0.5, -1.0])).advantages
    array([-0.5,  1. ])
    """
    return Credit(-distillation, -distillation)


ESTIMATORS = (
    Estimator(
        "reinforce",
        reinforce,
        "Gₜ = rₜ + γGₜ₊₁",
        "Williams 1992",
        undiscounted_is_constant=True,
        outcome=True,
    ),
    Estimator(
        "reinforce_pp",
        reinforce,
        "Gₜ = rₜ + γGₜ₊₁, then (G - mean) / √(var + 1e-8) over the batch's tokens",
        "arXiv:2501.03262",
        whiten_advantages=True,
        undiscounted_is_constant=True,
        outcome=True,
    ),
    Estimator("remax", remax, "Gₜ - b", "arXiv:2310.10505", returns="own"),
    Estimator(
        "gae", gae, "δₜ = rₜ + γVₜ₊₁ - Vₜ; Aₜ = δₜ + γλAₜ₊₁", "arXiv:1506.02438", returns="own"
    ),
    Estimator(
        "vtrace",
        vtrace,
        "ρₜ(rₜ + γvₜ₊₁ - Vₜ), v = V + Σ γᵏ Πc ρδ, ρ and c capped ratios old / engine",
        "arXiv:1802.01561",
        returns="own",
    ),
    Estimator(
        "agentic_reinforce",
        agentic_reinforce,
        "Gₖ = Rₖ + γGₖ₊₁ over segments of policy tokens",
        "ROLL",
        undiscounted_is_constant=True,
    ),
    Estimator(
        "turn_gae",
        turn_gae,
        "δₖ = Rₖ + γVₖ₊₁ - Vₖ; Aₖ = δₖ + γλAₖ₊₁ over turns",
        "arXiv:2512.17008",
        returns="own",
    ),
    Estimator(
        "optimal_token_baseline",
        optimal_token_baseline,
        "Gₜ - Σ GW / Σ W over g at position t, W = cumulative (1 - 2π + Σπ²)",
        "verl",
        returns="own",
        token_weights=token_weights,
        token_positions=token_positions,
        position_baselines=position_baselines,
    ),
    Estimator("opd", opd, "-Σₖ wₖ·KL from teacher k", "arXiv:2601.02780"),
)
