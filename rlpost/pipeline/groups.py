"""Statistics over groups and batches of responses, in an order that no input order changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlpost.kernels.moments import (
    Moments,
    canonical_order,
    first_values,
    group_moments,
    group_offsets,
    last_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.pipeline.data import Responses


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
        means[name] = group_moments(column[order].to(torch.float64), offsets).mean
    return both[0], means, unit


def group_statistics(
    responses: Responses, values: Tensor, *, rows: Tensor | None = None
) -> tuple[Moments, Tensor]:
    """Size, mean and deviation of each row's group, and whether its values are all equal, [N]."""
    own = _from_zero(responses["group"])
    groups, equal = _by_group(own, responses, values, rows)
    moments = groups.at(own)
    if rows is None or bool(rows.all()):
        return moments, equal[own]
    return Moments(*(torch.where(rows, part, 0.0) for part in moments)), equal[own] & rows


def _from_zero(codes: Tensor) -> Tensor:
    """The codes less the least: those of one file of thousands need not begin at 0."""
    low = int(codes.min()) if codes.numel() else 0
    return codes - low if low else codes


def _by_group(
    codes: Tensor, responses: Responses, values: Tensor, rows: Tensor | None
) -> tuple[Moments, Tensor]:
    """Moments of each group, by its code, and whether its values are all equal, [G]."""
    count, taken = int(codes.max()) + 1 if codes.numel() else 0, values
    if rows is not None and not bool(rows.all()):
        codes, taken = codes[rows], values[rows]
    if "rollout" in responses:
        rollout = responses["rollout"] if rows is None else responses["rollout"][rows]
        codes, found, _ = _by_rollout(codes, rollout, {"values": taken})
        taken = found["values"]
    offsets = group_offsets(codes, count)
    ascending = taken[canonical_order(codes, taken)]
    equal = first_values(ascending, offsets) == last_values(ascending, offsets)
    return group_moments(ascending, offsets, equal), equal
