"""Advantages of whole responses from their rewards and groups, one number each.

Rewards are [N], float32 or float64, in any order; groups are N ids, a tensor of whole numbers or
any sequence (of strings, say). Sums are taken in float64 and the result has the type of the
rewards. Nothing here is differentiable: advantages are constants of a policy gradient.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from rlpost.estimators.dr_grpo import dr_grpo as _dr_grpo
from rlpost.estimators.gdpo import gdpo as _gdpo
from rlpost.estimators.gpg import gpg as _gpg
from rlpost.estimators.grpo_passk import grpo_passk as _grpo_passk
from rlpost.estimators.max_rl import max_rl as _max_rl
from rlpost.estimators.opo import opo as _opo
from rlpost.estimators.rloo import rloo as _rloo
from rlpost.functional.arguments import codes_of, finite, floats, per_response
from rlpost.kernels.moments import canonical_order, group_offsets, keyed_moments
from rlpost.kernels.rewards import z_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor

    from rlpost.estimators import Credit

    Groups = Tensor | Sequence[Hashable]


def grpo(
    rewards: Tensor,
    groups: Groups,
    *,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
) -> Tensor:
    """(r - mean) / (std + ε) within each group; Bessel's correction (GRPO, arXiv 2402.03300).

    Args:
        rewards: [N].
        groups: N ids.
        norm_mean: mean of the `group`, of the `others` of it, or `none`.
        norm_std: deviation of the same.
        norm_eps: ε.

    Returns:
        [N]. A group of one, and one of equal rewards, gets 0 where anything is divided.

    Raises:
        UsageError: shapes or types do not fit.
        DataError: a reward is NaN or infinite.

    >>> grpo(torch.tensor([0.0, 1.0, 5.0]), ["a", "a", "b"])
    tensor([-0.7071,  0.7071,  0.0000])
    """
    codes, _ = codes_of(groups, rewards)
    norm = {"norm_mean": norm_mean, "norm_std": norm_std}
    (given,) = floats(rewards=rewards)
    found = z_scores(finite("rewards", given), codes, norm_eps=norm_eps, **norm)
    return found.to(given.dtype)


def dr_grpo(rewards: Tensor, groups: Groups) -> Tensor:
    """Reward less the mean of the group, [N] (Dr. GRPO, arXiv 2503.20783); raises as `grpo`.

    >>> dr_grpo(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-0.5000,  0.5000])
    """
    return _grouped(_dr_grpo, groups, rewards)


def rloo(rewards: Tensor, groups: Groups) -> Tensor:
    """Reward less the mean of the others of the group, [N] (RLOO, arXiv 2402.14740).

    A group of one gets 0. Raises as `grpo`.

    >>> rloo(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-1.,  1.])
    """
    return _grouped(_rloo, groups, rewards)


def opo(rewards: Tensor, tokens: Tensor, groups: Groups) -> Tensor:
    """Reward less Σ n·r / Σ n over the group, [N] (OPO, arXiv 2505.23585).

    Args:
        rewards: [N].
        tokens: [N] policy tokens of each response, n.
        groups: N ids.

    Raises as `grpo`.

    >>> opo(torch.tensor([0.0, 1.0]), torch.tensor([3, 1]), torch.tensor([7, 7]))
    tensor([-0.2500,  0.7500])
    """
    return _grouped(_opo, groups, rewards, per_response("tokens", tokens, rewards.numel()))


def gpg(
    rewards: Tensor, groups: Groups, batch: Groups | None = None, *, f_norm: float = 1.0
) -> Tensor:
    """α·(r - mean of the group) / f, α = responses of the batch / those with r ≠ 0, [N].

    Args:
        rewards: [N].
        groups: N ids.
        batch: N ids of batches; None for one batch.
        f_norm: f.

    Raises as `grpo`. Source: GPG, arXiv 2504.02546.

    >>> gpg(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-1.,  1.])
    """
    batches = torch.zeros_like(rewards) if batch is None else codes_of(batch, rewards)[0]
    return _grouped(partial(_gpg, f_norm=f_norm), groups, rewards, batches)


def grpo_passk(
    rewards: Tensor, groups: Groups, *, norm_std: str = "group", norm_eps: float = 1e-6
) -> Tensor:
    """The best of a group: (r - second best) / (std + ε); the others 0, [N] (arXiv 2503.19595).

    Args:
        rewards: [N].
        groups: N ids.
        norm_std: `none` divides by nothing.
        norm_eps: ε.

    Raises as `grpo`.

    >>> grpo_passk(torch.tensor([3.0, 0.0, 1.0]), torch.tensor([7, 7, 7]), norm_std="none")
    tensor([2., 0., 0.])
    """
    return _grouped(partial(_grpo_passk, norm_std=norm_std, norm_eps=norm_eps), groups, rewards)


def max_rl(rewards: Tensor, groups: Groups) -> Tensor:
    """(r - mean) / mean of the group, 0 where the mean is not above 0, [N] (arXiv 2602.02710).

    Raises as `grpo`.

    >>> max_rl(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-1.,  1.])
    """
    return _grouped(_max_rl, groups, rewards)


def gdpo(
    components: Tensor,
    groups: Groups,
    *,
    component_weights: Sequence[float] = (),
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    batch_eps: float = 1e-6,
) -> Tensor:
    """Σₖ wₖ·(cₖ - mean) / (std + ε) over the group, then normalised over all N.

    Args:
        components: [N, K] rewards of several kinds.
        groups: N ids.
        component_weights: K weights; none: 1 each.
        norm_mean: mean of the `group`, of the `others` of it, or `none`.
        norm_std: deviation of the same.
        norm_eps: ε within groups.
        batch_eps: ε over all of them.

    Returns:
        [N]; 0 throughout where all sums are equal.

    Raises as `grpo`. Source: GDPO, arXiv 2601.05242.

    >>> gdpo(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), torch.tensor([7, 7]))
    tensor([-0.7071,  0.7071])
    """
    (given,) = floats(components=components)
    columns = finite("components", given).unbind(1)
    codes, count = codes_of(groups, given[:, 0])
    order = canonical_order(codes, *columns)
    credit = _gdpo(
        torch.stack(columns, dim=1)[order],
        group_offsets(codes, count),
        component_weights=component_weights,
        norm_mean=norm_mean,
        norm_std=norm_std,
        norm_eps=norm_eps,
    ).advantages
    moments = keyed_moments(credit.cpu(), torch.zeros(len(credit), dtype=torch.int64), 1)
    mean, std = float(moments.mean), float(moments.std)
    found = (credit - mean) / (std + batch_eps) if std > 0 else torch.zeros_like(credit)
    return torch.empty_like(found).index_copy(0, order, found).to(given.dtype)


def _grouped(
    function: Callable[..., Credit], groups: Groups, rewards: Tensor, *columns: Tensor
) -> Tensor:
    """Run an estimator of groups on rows in any order, [N] in the order and type of the rewards."""
    codes, count = codes_of(groups, rewards)
    (given,) = floats(rewards=rewards)
    values = [finite("rewards", given), *(x.to(given.device, torch.float64) for x in columns)]
    order = canonical_order(codes, *values)
    credit = function(*(x[order] for x in values), group_offsets(codes, count)).advantages
    return torch.empty_like(credit).index_copy(0, order, credit).to(given.dtype)
