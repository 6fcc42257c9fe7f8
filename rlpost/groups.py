"""Statistics over groups and batches of responses, in an order that no input order changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.kernels.moments import (
    Moments,
    canonical_order,
    group_moments,
    group_offsets,
    is_constant,
)
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.batch import Responses


def per_group(
    responses: Responses,
    columns: dict[str, Tensor],
    function: Callable[[dict[str, Tensor], Tensor], Tensor],
    *,
    rows: Tensor | None = None,
) -> Tensor:
    """Run a function once over all groups, and bring its numbers back to the rows.

    Args:
        responses: for the codes of groups and rollouts.
        columns: [N] float64 each; the first is the reward.
        function: takes the columns sorted by group, [M], and group offsets [G+1]; gives [M] or
            [M, k].
        rows: [N] bool, the rows that take part; the others get 0. None: all.

    Returns:
        [N] or [N, k] float64.

    Rows of one rollout (where `rollout` is a column) enter once, with the mean of their values,
    and get the same number.
    """
    chosen = torch.arange(len(responses)) if rows is None else rows.nonzero().squeeze(1)
    codes = responses["group"][chosen]
    values = {name: column[chosen] for name, column in columns.items()}
    unit: Tensor | None = None
    if "rollout" in responses:
        codes, values, unit = _by_rollout(codes, responses["rollout"][chosen], values)
    order = canonical_order(codes, *values.values())
    offsets = group_offsets(codes, responses.count("group"))
    results = function({name: column[order] for name, column in values.items()}, offsets)
    found = torch.empty_like(results)
    found[order] = results
    out = results.new_zeros(len(responses), *results.shape[1:])
    out[chosen] = found if unit is None else found[unit]
    return out


def _by_rollout(
    codes: Tensor, rollout: Tensor, values: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """One row per (group, rollout): group codes, mean values, and each input row's new row."""
    both, unit = torch.unique(torch.stack([codes, rollout]), dim=1, return_inverse=True)
    count = both.shape[1]
    offsets = group_offsets(unit, count)
    means = {}
    for name, column in values.items():
        order = canonical_order(unit, column)
        means[name] = group_moments(column[order], offsets).mean
    return both[0], means, unit


def group_statistics(
    responses: Responses, values: Tensor, *, rows: Tensor | None = None
) -> tuple[Moments, Tensor]:
    """Size, mean and deviation of each row's group, and whether its values are all equal, [N]."""

    def statistics(columns: dict[str, Tensor], offsets: Tensor) -> Tensor:
        found = group_moments(columns["values"], offsets)
        equal = is_constant(columns["values"], offsets).to(torch.float64)
        return torch.stack([spread(part, offsets) for part in (*found, equal)], dim=1)

    size, mean, std, equal = per_group(responses, {"values": values}, statistics, rows=rows).unbind(
        1
    )
    return Moments(size, mean, std), equal > 0
