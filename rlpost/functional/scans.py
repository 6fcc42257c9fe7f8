"""Advantages and returns of tokens, and the way between numbers of responses and of tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from rlpost.estimators import Credit
from rlpost.estimators.gae import gae as _gae
from rlpost.functional.arguments import floats, on_policy_tokens, per_response, ragged
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import add_at, last_true, lengths

if TYPE_CHECKING:
    from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    offsets: Tensor,
    mask: Tensor | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    lambda_policy: float | None = None,
    lambda_value: float | None = None,
    length_adaptive_alpha: float = 0.0,
) -> Credit:
    """Generalised advantage estimation over the policy's tokens.

        δₜ = rₜ + γ·Vₜ₊₁ - Vₜ      V = 0 behind the last policy token
        Aₜ = δₜ + γλ·Aₜ₊₁
        Rₜ = Aₜ + Vₜ

    Observations are passed over: t+1 is the response's next policy token.

    Args:
        rewards: [T] reward of each token; `place_rewards` makes them of rewards of responses.
        values: [T] value of the state before each token.
        offsets: [N+1] where responses begin; the last is T.
        mask: [T], 0 on tokens that are not the policy's; None for none.
        gamma: discount, in [0, 1].
        lam: λ in [0, 1].
        lambda_policy: λ of the advantages, where it differs.
        lambda_value: λ of the returns, where it differs.
        length_adaptive_alpha: α > 0 makes λ of a response's advantages 1 - 1/(α·n), n its policy
            tokens (VAPO).

    Returns:
        Advantages and returns, [T] each, 0 where the mask is 0. Differentiable in both inputs.

    Raises:
        UsageError: shapes or types do not fit.

    Source: Schulman et al., arXiv 1506.02438, eq. 16; VAPO, arXiv 2504.05118, eq. 9.

    >>> rewards, values = torch.tensor([0.0, 9.0, 1.0]), torch.tensor([0.5, 9.0, 0.5])
    >>> mask, offsets = torch.tensor([1, 0, 1]), torch.tensor([0, 3])
    >>> gae(rewards, values, offsets, mask, lam=1.0).advantages
    tensor([0.5000, 0.0000, 0.5000])
    """
    rewards, values = floats(rewards=rewards, values=values)
    function = partial(
        _gae,
        gamma=gamma,
        lam=lam,
        lambda_policy=lambda_policy,
        lambda_value=lambda_value,
        length_adaptive_alpha=length_adaptive_alpha,
    )
    where = ragged(offsets, mask, rewards)
    advantages, returns = on_policy_tokens(function, where, rewards, values)
    return Credit(advantages, returns)


def discounted_returns(
    rewards: Tensor, offsets: Tensor, mask: Tensor | None = None, *, gamma: float = 1.0
) -> Tensor:
    """Discounted return-to-go over the policy's tokens: Gₜ = rₜ + γ·Gₜ₊₁.

    Whitened over a batch these are the advantages of REINFORCE++; less the reward of the greedy
    response, those of ReMax.

    Args:
        rewards: [T] reward of each token.
        offsets: [N+1] where responses begin.
        mask: [T], 0 on tokens that are not the policy's; None for none.
        gamma: discount per policy token, in [0, 1].

    Returns:
        [T], 0 where the mask is 0; differentiable.

    Raises:
        UsageError: shapes or types do not fit.

    >>> rewards, offsets = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 2, 3])
    >>> discounted_returns(rewards, offsets, gamma=0.5)
    tensor([0.5000, 1.0000, 2.0000])
    """
    (rewards,) = floats(rewards=rewards)

    def scan(chosen: Tensor, compact: Tensor) -> tuple[Tensor]:
        return (reverse_scan(chosen, compact, gamma),)

    return on_policy_tokens(scan, ragged(offsets, mask, rewards), rewards)[0]


def place_rewards(rewards: Tensor, offsets: Tensor, mask: Tensor | None = None) -> Tensor:
    """The reward of each response on its last policy token, 0 elsewhere.

    Args:
        rewards: [N] reward of each response.
        offsets: [N+1] where responses begin; the last is T.
        mask: [T], 0 on tokens that are not the policy's; None for none.

    Returns:
        [T]. A response without a policy token has its reward nowhere.

    Raises:
        UsageError: shapes or types do not fit.

    >>> place_rewards(torch.tensor([1.0]), torch.tensor([0, 3]), torch.tensor([1, 1, 0]))
    tensor([0., 1., 0.])
    """
    (rewards,) = floats(rewards=rewards)
    tokens = rewards.new_zeros(int(offsets[-1]) if offsets.numel() else 0)
    where = ragged(offsets, mask, tokens)
    per_response("rewards", rewards, where.offsets.numel() - 1)
    return add_at(tokens, last_true(where.mask, where.offsets), rewards)


def to_tokens(numbers: Tensor, offsets: Tensor, mask: Tensor | None = None) -> Tensor:
    """The number of each response on all its policy tokens, 0 on observations.

    Args:
        numbers: [N], as the advantages of `grpo`.
        offsets: [N+1] where responses begin; the last is T.
        mask: [T], 0 on tokens that are not the policy's; None for none.

    Returns:
        [T]; differentiable.

    Raises:
        UsageError: shapes or types do not fit.

    >>> to_tokens(torch.tensor([1.0, 2.0]), torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1]))
    tensor([1., 0., 2.])
    """
    (numbers,) = floats(numbers=numbers)
    tokens = numbers.new_zeros(int(offsets[-1]) if offsets.numel() else 0)
    where = ragged(offsets, mask, tokens)
    count = where.offsets.numel() - 1
    per_response("numbers", numbers, count)
    owners = torch.repeat_interleave(lengths(where.offsets), output_size=tokens.numel())
    return torch.where(where.mask, numbers[owners], 0.0)
