"""Scans of tokens: returns, GAE and V-trace, with a step for each token or for each turn."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rlpost.estimators import Credit
from rlpost.estimators.returns import agentic_reinforce as _agentic_reinforce
from rlpost.estimators.returns import gae as _gae
from rlpost.estimators.returns import turn_gae as _turn_gae
from rlpost.estimators.returns import vtrace as _vtrace
from rlpost.functional.arguments import (
    finite_tokens,
    floats,
    numbers,
    of_any_library,
    on_policy_tokens,
    one_of,
    ragged,
    shares,
)
from rlpost.kernels.arrays import namespace
from rlpost.kernels.scans import reverse_scan

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


@of_any_library
def gae(
    rewards: Array,
    values: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    lambda_policy: float | None = None,
    lambda_value: float | None = None,
    length_adaptive_alpha: float = 0.0,
) -> Credit:
    """Return generalised advantage estimates and returns of the policy tokens.

        δₜ = rₜ + γ·Vₜ₊₁ - Vₜ,  V = 0 after the last policy token
        Aₜ = δₜ + γλ·Aₜ₊₁
        Rₜ = Aₜ + Vₜ

    t+1 is the next policy token of the response: observation tokens are skipped.

    Args:
        rewards: [T] reward of each token; `place_rewards` makes it from rewards of responses.
        values: [T] value of the state before each token, in units of reward.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        gamma: discount γ per policy token, in [0, 1].
        lam: λ in [0, 1]; 0 gives one-step TD errors, 1 the return minus the value.
        lambda_policy: λ of the advantages; None for `lam`.
        lambda_value: λ of the returns; None for `lam`.
        length_adaptive_alpha: with α > 0, λ of the advantages is max(0, 1 - 1/(α·n)) for a response
            of n policy tokens (VAPO).

    Returns:
        Credit of advantages and returns, [T] each; 0 on observation tokens. Differentiable in
        rewards and values. A response without policy tokens has no credit.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    Source: Schulman et al., arXiv 1506.02438, eq. 16; VAPO, arXiv 2504.05118, eq. 9. ROLL,
    OpenRLHF and slime apply γλ at observation tokens too (`observations` of `rlpost.Numerics`).

    >>> rewards, values = torch.tensor([0.0, 9.0, 1.0]), torch.tensor([0.5, 9.0, 0.5])
    >>> mask, offsets = torch.tensor([1, 0, 1]), torch.tensor([0, 3])
    >>> gae(rewards, values, offsets, mask, lam=1.0).advantages
    tensor([0.5000, 0.0000, 0.5000])
    """
    shares(gamma=gamma, lam=lam, lambda_policy=lambda_policy, lambda_value=lambda_value)
    numbers(length_adaptive_alpha=length_adaptive_alpha)
    rewards, values = floats(rewards=rewards, values=values)
    function = partial(
        _gae,
        gamma=gamma,
        lam=lam,
        lambda_policy=lambda_policy,
        lambda_value=lambda_value,
        length_adaptive_alpha=length_adaptive_alpha,
    )
    responses = ragged(offsets, mask, rewards)
    advantages, returns = on_policy_tokens(function, responses, rewards, values)
    return Credit(advantages, returns)


@of_any_library
def discounted_returns(
    rewards: Array, offsets: Array, mask: Array | None = None, *, gamma: float = 1.0
) -> Array:
    """Return the discounted return-to-go of the policy tokens.

        Gₜ = rₜ + γ·Gₜ₊₁,  G = 0 after the last policy token

    t+1 is the next policy token of the response. Whitened over a batch these are the advantages of
    REINFORCE++; minus the reward of the greedy response, those of ReMax.

    Args:
        rewards: [T] reward of each token.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        gamma: discount γ per policy token, in [0, 1].

    Returns:
        [T]; 0 on observation tokens. Differentiable.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    Source: Williams, Machine Learning 8, 1992.

    >>> rewards, offsets = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 2, 3])
    >>> discounted_returns(rewards, offsets, gamma=0.5)
    tensor([0.5000, 1.0000, 2.0000])
    """
    shares(gamma=gamma)
    (rewards,) = floats(rewards=rewards)

    def scan(chosen: Array, compact: Array) -> tuple[Array]:
        return (reverse_scan(chosen, compact, gamma),)

    return on_policy_tokens(scan, ragged(offsets, mask, rewards), rewards)[0]


@of_any_library
def turn_gae(
    rewards: Array,
    values: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    turn_value: str = "first",
) -> Credit:
    """Return generalised advantage estimates over the turns of each response.

        δₖ = Rₖ + γ·Vₖ₊₁ - Vₖ,  V = 0 after the last turn
        Aₖ = δₖ + γλ·Aₖ₊₁;  returns = Aₖ + Vₖ

    A turn is a run of policy tokens without observation tokens in between. `over_rollouts` goes on
    in the next row of a rollout.

    Args:
        rewards: [T] reward of each token; Rₖ is the sum over the turn.
        values: [T] value of the state before each token, in units of reward.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        gamma: discount γ per turn, in [0, 1].
        lam: λ in [0, 1].
        turn_value: Vₖ is the value at the `first` token of the turn, or at its `last`.

    Returns:
        Credit of advantages and returns, [T] each; 0 on observation tokens. Differentiable.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    Source: Turn-PPO, arXiv 2512.17008; `last`: VAGEN, arXiv 2510.16907.

    >>> rewards, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.0, 0.25])
    >>> turn_gae(rewards, values, torch.tensor([0, 3]), torch.tensor([1, 0, 1])).advantages
    tensor([0.4625, 0.0000, 0.7500])
    """
    shares(gamma=gamma, lam=lam)
    one_of("turn_value", turn_value, ("first", "last"))
    rewards, values = floats(rewards=rewards, values=values)
    structure = ragged(offsets, mask, rewards)
    return _turn_gae(rewards, values, *structure, gamma=gamma, lam=lam, turn_value=turn_value)


@of_any_library
def agentic_reinforce(
    rewards: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    segment_reward: str = "sum",
) -> Array:
    """Return the return-to-go of each turn of a response, discounted once a turn.

        Gₖ = Rₖ + γ·Gₖ₊₁ over the turns k of a response

    A turn is a run of policy tokens without observation tokens in between. `over_rollouts` goes on
    in the next row of a rollout.

    Args:
        rewards: [T] reward of each token.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        gamma: discount γ per turn, in [0, 1].
        segment_reward: Rₖ is the `sum` of the turn's rewards, or that of its `last` token.

    Returns:
        [T]; 0 on observation tokens. Differentiable.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.

    Source: ROLL, compute_agentic_reinforce_return, which reads the last token's reward only.

    >>> rewards, mask = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1, 0, 1])
    >>> agentic_reinforce(rewards, torch.tensor([0, 3]), mask, gamma=0.5)
    tensor([2., 0., 2.])
    """
    shares(gamma=gamma)
    one_of("segment_reward", segment_reward, ("sum", "last"))
    (rewards,) = floats(rewards=rewards)
    structure = ragged(offsets, mask, rewards)
    credit = _agentic_reinforce(rewards, *structure, gamma=gamma, segment_reward=segment_reward)
    return credit.returns


@of_any_library
def vtrace(
    rewards: Array,
    values: Array,
    old_log_probs: Array,
    infer_log_probs: Array,
    offsets: Array,
    mask: Array | None = None,
    *,
    gamma: float = 1.0,
    vtrace_rho_cap: float = 1.0,
    vtrace_c_cap: float = 1.0,
) -> Credit:
    """Return V-trace advantages and values of the policy tokens.

        ρₜ = min(πₜ/μₜ, ρ̄),  cₜ = min(πₜ/μₜ, c̄)
        vₜ = Vₜ + ρₜ·(rₜ + γ·Vₜ₊₁ - Vₜ) + γ·cₜ·(vₜ₊₁ - Vₜ₊₁),  V = v = 0 after the last token
        Aₜ = ρₜ·(rₜ + γ·vₜ₊₁ - Vₜ);  returns = v

    t+1 is the next policy token of the response.

    Args:
        rewards: [T] reward of each token.
        values: [T] value of the state before each token, in units of reward.
        old_log_probs: [T] log π, of the trainer's policy before the update.
        infer_log_probs: [T] log μ, of the rollout engine's policy.
        offsets: [N+1] first token of each response; the last element is T.
        mask: [T], 0 on observation tokens; None if there are none.
        gamma: discount γ per policy token, in [0, 1].
        vtrace_rho_cap: ρ̄ > 0.
        vtrace_c_cap: c̄ > 0.

    Returns:
        Credit of advantages and returns, [T] each; 0 on observation tokens. Differentiable in
        rewards and values; the ratios are constants.

    Raises:
        UsageError: a shape or a dtype is wrong, or an option is out of its range.
        DataError: a log-prob is NaN or infinite where the mask is not 0.

    Source: Espeholt et al., arXiv 1802.01561; torchrl, vtrace_advantage_estimate.

    >>> rewards, values, old = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]), torch.zeros(2)
    >>> vtrace(rewards, values, old, old, torch.tensor([0, 2])).advantages
    tensor([0.5000, 0.5000])
    """
    shares(gamma=gamma)
    numbers(vtrace_rho_cap=vtrace_rho_cap, vtrace_c_cap=vtrace_c_cap)
    logs = {"old_log_probs": old_log_probs, "infer_log_probs": infer_log_probs}
    columns = floats(rewards=rewards, values=values, **logs)
    responses = ragged(offsets, mask, columns[0])
    finite_tokens(responses.mask, responses.offsets, **logs)
    options = {"gamma": gamma, "vtrace_rho_cap": vtrace_rho_cap, "vtrace_c_cap": vtrace_c_cap}
    constants = (namespace(x).constant(x) for x in columns[2:])
    function = partial(_vtrace, **options)
    return Credit(*on_policy_tokens(function, responses, *columns[:2], *constants))
