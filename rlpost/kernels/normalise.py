"""Rewards against the mean and deviation of their group, or of the others of their group."""

from __future__ import annotations

import torch
from torch import Tensor

from rlpost.kernels.moments import (
    Moments,
    canonical_order,
    group_moments,
    group_offsets,
    is_constant,
)
from rlpost.kernels.segments import lengths, segment_sum, spread


def others_moments(values: Tensor, offsets: Tensor) -> Moments:
    """Number, mean and Bessel deviation of the others of each row's group, [N] each.

    Args:
        values: [N] float64, ascending within each group.
        offsets: [G+1].

    Returns:
        Moments over the group without the row itself. Without others the mean is the row's own
        value; with one other, or equal ones, the deviation is 0, without rounding noise.
    """
    size, mean = lengths(offsets), group_moments(values, offsets).mean
    others = spread(size - 1, offsets).clamp(min=1).to(values.dtype)
    away = values - spread(mean, offsets)
    squares = spread(segment_sum(away.square(), offsets), offsets)
    squares = (squares - away.square() * (1 + 1 / others)).clamp(min=0)
    lowest, highest = _ends_of_others(values, offsets)
    equal = lowest == highest
    std = torch.where(equal, 0.0, (squares / (others - 1).clamp(min=1)).sqrt())
    single = spread(size == 1, offsets)
    centre = torch.where(equal, lowest, values - away * (1 + 1 / others))
    return Moments(others, torch.where(single, values, centre), torch.where(single, 0.0, std))


def _ends_of_others(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest of the others of each row, [N] each, of ascending groups."""
    first, last = (spread(at, offsets) for at in (offsets[:-1], offsets[1:] - 1))
    place = torch.arange(values.numel(), device=values.device)
    low = torch.where(place == first, torch.minimum(first + 1, last), first)
    high = torch.where(place == last, torch.maximum(last - 1, first), last)
    return values[low], values[high]


def joint_codes(*codes: Tensor) -> Tensor:
    """One code for each tuple of codes that occurs, from 0 without gaps, [N]."""
    found: tuple[Tensor, Tensor] = torch.unique(torch.stack(codes), dim=1, return_inverse=True)
    return found[1]


def z_scores(
    values: Tensor,
    keys: Tensor,
    *,
    norm_mean: str = "group",
    norm_std: str = "group",
    norm_eps: float = 1e-6,
) -> Tensor:
    """(x - mean) / (std + ε) among the rows of equal key, [N], whatever their order.

    Args:
        values: [N] float64; NaN takes no part and gets 0.
        keys: [N] int64 codes.
        norm_mean: mean of the `group`, of the `others` of it, or `none`.
        norm_std: deviation (Bessel) of the same; a row whose others agree is not divided.
        norm_eps: ε.

    Rows that are alone, or whose group is constant, get 0 where anything is divided.
    """
    there = values.isfinite()
    order = canonical_order(keys[there], values[there])
    rows = there.nonzero().squeeze(1)[order]
    sorted_values, codes = values[rows], keys[rows]
    offsets = group_offsets(codes, int(codes.max()) + 1 if codes.numel() else 0)
    found = _sorted_scores(sorted_values, offsets, norm_mean, norm_std, norm_eps)
    return torch.zeros_like(values).index_copy(0, rows, found)


def _sorted_scores(
    values: Tensor, offsets: Tensor, norm_mean: str, norm_std: str, eps: float
) -> Tensor:
    group = group_moments(values, offsets)
    moments = {"group": Moments(*(spread(part, offsets) for part in group))}
    if "others" in (norm_mean, norm_std):
        moments["others"] = others_moments(values, offsets)
    out = values if norm_mean == "none" else values - moments[norm_mean].mean
    if norm_std == "none":
        return out
    std = moments[norm_std].std
    divided = out / torch.where((std == 0) & (norm_std == "others"), 1.0, std + eps)
    return torch.where(spread(is_constant(values, offsets), offsets), 0.0, divided)
