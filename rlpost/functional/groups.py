"""Functions of rewards and groups: one advantage per response.

Rewards are [N], float32 or float64, in any order. Groups are N ids: an array of integers or any
sequence, such as of strings. They are computed by numpy in float64, which waits for a GPU once;
results have the library, type and device of the rewards and are constants: no gradient flows
through them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rlpost.estimators.groups import dr_grpo as _dr_grpo
from rlpost.estimators.groups import gdpo as _gdpo
from rlpost.estimators.groups import gpg as _gpg
from rlpost.estimators.groups import grpo_passk as _grpo_passk
from rlpost.estimators.groups import max_rl as _max_rl
from rlpost.estimators.groups import opo as _opo
from rlpost.estimators.groups import rloo as _rloo
from rlpost.functional.arguments import (
    codes_of,
    finite,
    floats,
    numbers,
    of_any_library,
    per_response,
)
from rlpost.kernels.arrays import like, namespace, on_host
from rlpost.kernels.arrays.numpy_arrays import canonical_order, placed
from rlpost.kernels.moments import group_offsets, keyed_moments
from rlpost.kernels.rewards import standardise, z_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from rlpost.estimators import Credit
    from rlpost.kernels.arrays import Array

    Groups = Array | Sequence[Hashable]


@of_any_library
def grpo(
    rewards: Array,
    groups: Groups,
    *,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
) -> Array:
    """Return rewards normalised within their group.

        Aᵢ = (rᵢ - mean) / (std + ε)

    Args:
        rewards: [N] reward of each response.
        groups: N group ids.
        norm_mean: mean of the `group`, of the `others` of the group (leave-one-out), or `none`.
        norm_std: standard deviation of the same scopes, with Bessel's correction (ddof 1).
        norm_eps: ε, added to the standard deviation.

    Returns:
        [N]. With a norm_std, a single-response group and a group of equal rewards get 0. With
        `others`, a response whose others have equal rewards is not divided.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: GRPO, arXiv 2402.03300. TRL has ε = 1e-4; open-instruct divides by n (ddof 0); NeMo-RL
    uses `others` for both.

    >>> grpo(torch.tensor([0.0, 1.0, 5.0]), ["a", "a", "b"])
    tensor([-0.7071,  0.7071,  0.0000])
    """
    numbers(norm_eps=norm_eps)
    codes, _ = codes_of(groups, rewards)
    (rewards,) = floats(rewards=rewards)
    values = finite("rewards", rewards)
    scores = z_scores(values, codes, norm_mean=norm_mean, norm_std=norm_std, norm_eps=norm_eps)
    return like_rewards(scores, rewards)


@of_any_library
def dr_grpo(rewards: Array, groups: Groups) -> Array:
    """Return rewards minus the mean of their group.

        Aᵢ = rᵢ - mean

    Args:
        rewards: [N] reward of each response.
        groups: N group ids.

    Returns:
        [N]. A single-response group and a group of equal rewards get 0.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: Dr. GRPO, arXiv 2503.20783.

    >>> dr_grpo(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-0.5000,  0.5000])
    """
    return in_groups(_dr_grpo, groups, rewards)


@of_any_library
def rloo(rewards: Array, groups: Groups) -> Array:
    """Return rewards minus the mean of the other rewards of their group.

        Aᵢ = rᵢ - Σⱼ≠ᵢ rⱼ / (n - 1)

    Args:
        rewards: [N] reward of each response.
        groups: N group ids.

    Returns:
        [N]. A single-response group and a group of equal rewards get 0.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: RLOO, arXiv 2402.14740. verl's `rloo` gives a single-response group its raw reward.

    >>> rloo(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-1.,  1.])
    """
    return in_groups(_rloo, groups, rewards)


@of_any_library
def opo(rewards: Array, tokens: Array, groups: Groups) -> Array:
    """Return rewards minus the mean of their group, weighted by length.

        Aᵢ = rᵢ - Σⱼ nⱼ·rⱼ / Σⱼ nⱼ

    Args:
        rewards: [N] reward of each response.
        tokens: [N] number of policy tokens of each response, n.
        groups: N group ids.

    Returns:
        [N]. A single-response group and a group of equal rewards get 0. In a group without policy
        tokens the baseline is 0.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: OPO, arXiv 2505.23585. verl gives a single-response group its raw reward.

    >>> opo(torch.tensor([0.0, 1.0]), torch.tensor([3, 1]), torch.tensor([7, 7]))
    tensor([-0.2500,  0.7500])
    """
    return in_groups(_opo, groups, rewards, per_response("tokens", tokens, len(rewards)))


@of_any_library
def gpg(
    rewards: Array, groups: Groups, batch: Groups | None = None, *, f_norm: float = 1.0
) -> Array:
    """Return centred rewards, divided by the share of non-zero rewards in the batch.

        Aᵢ = α·(rᵢ - mean) / f,  α = responses of the batch / responses with r ≠ 0

    Args:
        rewards: [N] reward of each response.
        groups: N group ids.
        batch: N batch ids; None for one batch.
        f_norm: f, above 0.

    Returns:
        [N]. A single-response group, a group of equal rewards and a batch without non-zero rewards
        get 0.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: GPG, arXiv 2504.02546, eq. 7.

    >>> gpg(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-1.,  1.])
    """
    numbers(f_norm=f_norm)
    batches = np.zeros(len(rewards), np.int64) if batch is None else codes_of(batch, rewards)[0]
    return in_groups(partial(_gpg, f_norm=f_norm), groups, rewards, batches)


@of_any_library
def grpo_passk(
    rewards: Array, groups: Groups, *, norm_std: str = "group", norm_eps: float = 1e-6
) -> Array:
    """Return the lead of the best response of each group over the second best, 0 for the others.

        A_best = (r_best - r_second) / (std + ε)

    Args:
        rewards: [N] reward of each response.
        groups: N group ids.
        norm_std: `none` does not divide.
        norm_eps: ε, added to the standard deviation (Bessel's correction, ddof 1).

    Returns:
        [N]. A group whose best reward is a tie, and a single-response group, get 0.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: Pass@k GRPO, arXiv 2503.19595. verl raises an error for a single-response group.

    >>> grpo_passk(torch.tensor([3.0, 0.0, 1.0]), torch.tensor([7, 7, 7]), norm_std="none")
    tensor([2., 0., 0.])
    """
    numbers(norm_eps=norm_eps)
    return in_groups(partial(_grpo_passk, norm_std=norm_std, norm_eps=norm_eps), groups, rewards)


@of_any_library
def max_rl(rewards: Array, groups: Groups) -> Array:
    """Return rewards relative to the mean of their group.

        Aᵢ = (rᵢ - mean) / mean

    Args:
        rewards: [N] reward of each response, 0 or more.
        groups: N group ids.

    Returns:
        [N]. A group whose mean is 0 or less, a single-response group and a group of equal rewards
        get 0.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a reward is NaN or infinite.

    Source: MaxRL, arXiv 2602.02710.

    >>> max_rl(torch.tensor([0.0, 1.0]), torch.tensor([7, 7]))
    tensor([-1.,  1.])
    """
    return in_groups(_max_rl, groups, rewards)


@of_any_library
def gdpo(
    components: Array,
    groups: Groups,
    *,
    component_weights: Sequence[float] = (),
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
    batch_eps: float = 1e-6,
) -> Array:
    """Return the weighted sum of group-normalised reward components, normalised over the batch.

        sᵢ = Σₖ wₖ·(cᵢₖ - meanₖ) / (stdₖ + ε) over the group
        Aᵢ = (sᵢ - mean) / (std + ε_batch) over all N

    Args:
        components: [N, K] reward components.
        groups: N group ids.
        component_weights: K weights; empty: 1 each.
        norm_mean: mean of the `group`, of the `others` of the group (leave-one-out), or `none`.
        norm_std: standard deviation of the same scopes, with Bessel's correction (ddof 1).
        norm_eps: ε, added to the standard deviation of the group.
        batch_eps: ε_batch, added to the standard deviation of the batch.

    Returns:
        [N]; all 0 if all sums are equal.

    Raises:
        UsageError: a shape or a dtype is wrong.
        DataError: a component is NaN or infinite.

    Source: GDPO, arXiv 2601.05242. NeMo-RL has ε_batch = 0, TRL 1e-4.

    >>> gdpo(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), torch.tensor([7, 7]))
    tensor([-0.7071,  0.7071])
    """
    numbers(norm_eps=norm_eps, batch_eps=batch_eps, component_weights=component_weights)
    (components,) = floats(components=components)
    values = finite("components", components)
    codes, count = codes_of(groups, components[:, 0])
    order = canonical_order(codes, *values.T)
    sums = _gdpo(
        values[order],
        group_offsets(codes, count),
        component_weights=component_weights,
        norm_mean=norm_mean,
        norm_std=norm_std,
        norm_eps=norm_eps,
    ).advantages
    one_batch = np.zeros(len(sums), np.int64)
    moments = keyed_moments(sums, one_batch, 1).at(one_batch)
    scores = standardise(sums, moments, eps=batch_eps)
    return like_rewards(placed(scores, order, len(scores)), components)


def in_groups(
    function: Callable[..., Credit], groups: Groups, rewards: Array, *columns: Array
) -> Array:
    """Return the advantages of an estimator, [N] in the order and type of the rewards."""
    codes, count = codes_of(groups, rewards)
    (rewards,) = floats(rewards=rewards)
    others = (on_host(column).astype(np.float64) for column in columns)
    values = [finite("rewards", rewards), *others]
    order = canonical_order(codes, *values)
    credit = function(*(x[order] for x in values), group_offsets(codes, count)).advantages
    return like_rewards(placed(credit, order, len(credit)), rewards)


def like_rewards(values: NDArray[np.float64], rewards: Array) -> Array:
    """Return numbers in the library and type, and on the device, of the rewards."""
    return namespace(rewards).astype(like(values, rewards), rewards.dtype)
