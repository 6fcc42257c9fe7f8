"""Means and deviations over groups, batches and tokens, none of which depends on order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlpost.kernels.exact import exact_means, exact_sums
from rlpost.kernels.segments import (
    count_true,
    lengths,
    offsets_of,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)


def canonical_order(codes: Tensor, *columns: Tensor) -> Tensor:
    """The order of rows by code, then by the columns' values, [N].

    Rows that compare equal are interchangeable, so anything computed front to back in this
    order is the same for every order of the input.
    """
    order = torch.arange(codes.numel(), device=codes.device)
    for key in (*reversed(columns), codes):
        order = order[torch.argsort(key[order], stable=True)]
    return order


def group_offsets(codes: Tensor, count: int) -> Tensor:
    """Offsets [count+1] of the groups once rows are sorted by code."""
    return offsets_of(torch.bincount(codes, minlength=count))


class Moments(NamedTuple):
    """How many numbers, mean and standard deviation of sets of numbers, each [K] float64."""

    number: Tensor
    mean: Tensor
    std: Tensor

    def at(self, codes: Tensor) -> Moments:
        """The moments of each row's own set."""
        return Moments(*(part[codes] for part in self))


def group_moments(values: Tensor, offsets: Tensor) -> Moments:
    """Mean and Bessel standard deviation of each group, in two passes.

    Args:
        values: [N] in canonical order.
        offsets: [G+1].

    Returns:
        [G] each. The deviation of a group of one is 0; the mean of an empty group is 0. Where
        all values are equal the mean is that value and the deviation 0, without rounding noise.
    """
    count = lengths(offsets).to(values.dtype)
    mean = segment_sum(values, offsets) / count.clamp(min=1)
    constant = is_constant(values, offsets)
    mean = torch.where(constant, first_values(values, offsets), mean)
    squares = segment_sum((values - spread(mean, offsets)).square(), offsets)
    return Moments(count, mean, (squares / (count - 1).clamp(min=1)).sqrt())


def first_values(values: Tensor, offsets: Tensor) -> Tensor:
    """The first value of each segment, [N]; 0 for an empty one."""
    if values.numel() == 0:
        return values.new_zeros(offsets.numel() - 1)
    first = values[offsets[:-1].clamp(max=values.numel() - 1)]
    return torch.where(lengths(offsets) > 0, first, 0.0)


def is_constant(values: Tensor, offsets: Tensor) -> Tensor:
    """Whether all values of a segment are equal, [N] bool; true for empty ones and for one."""
    return segment_max(values, offsets) <= segment_min(values, offsets)


def keyed_moments(values: Tensor, keys: Tensor, count: int) -> Moments:
    """Mean and Bessel standard deviation of the values of each key, from exact sums.

    The deviation of a single value is 0, the mean of none is 0.
    """
    rows = torch.bincount(keys, minlength=count).to(torch.float64)
    mean = exact_means(values, keys, rows)
    squares = exact_sums((values - mean[keys]).square(), keys, count)
    return Moments(rows, mean, (squares / (rows - 1).clamp(min=1)).sqrt())


class TokenMoments(NamedTuple):
    """Per segment: how many numbers, their sum, their squared distance from their own mean."""

    number: Tensor
    total: Tensor
    squares: Tensor


def token_moments(values: Tensor, mask: Tensor | None, offsets: Tensor) -> TokenMoments:
    """Moments of each segment's masked-in values, [N] float64 each; zeros where there are none.

    Without a mask all values count.
    """
    inside, count = values.to(torch.float64), lengths(offsets).to(torch.float64)
    if mask is not None:
        inside, count = torch.where(mask, inside, 0.0), count_true(mask, offsets).to(torch.float64)
    total = segment_sum(inside, offsets)
    distance = (inside - spread(total / count.clamp(min=1), offsets)).square_()
    if mask is not None:
        distance = torch.where(mask, distance, 0.0)
    return TokenMoments(count, total, segment_sum(distance, offsets))


def pooled(parts: TokenMoments, keys: Tensor, count: int) -> Moments:
    """Join the moments of segments by key, in exact sums.

    Args:
        parts: [N] each.
        keys: [N] int64 in [0, count).
        count: the number of keys.

    Returns:
        Moments over all numbers of a key, [count]; Bessel. No number: mean 0; one: deviation 0.
    """
    number = exact_sums(parts.number, keys, count)
    mean = exact_means(parts.total, keys, number)
    own = parts.total / parts.number.clamp(min=1)
    between = parts.number * (own - mean[keys]).square()
    squares = exact_sums(parts.squares + between, keys, count)
    return Moments(number, mean, (squares / (number - 1).clamp(min=1)).sqrt())
