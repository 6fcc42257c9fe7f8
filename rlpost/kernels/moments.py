"""Means and deviations over groups, batches and tokens, none of which depends on order.

Sums of float64 numbers without rounding, so that neither order nor chunking can change them.

A sum is held as integer digits in base 2³², spread over the whole exponent range of float64.
Partial sums of any rows add exactly, on one machine or many, and are rounded once, at the end.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlpost.kernels.segments import (
    count_true,
    lengths,
    offsets_of,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BIAS = 1152  # lifts the smallest subnormal's last bit (2^-1074) to a positive exponent
DIGITS = 70  # digits of 32 bits: 2^-1152 to beyond 2^1024, with room for carries
_LOW = 0xFFFFFFFF
_MANTISSA = 53


def exact_zero(keys: int) -> Tensor:
    """The digits of `keys` sums that are 0, [keys, digits] int64."""
    return torch.zeros(keys, DIGITS, dtype=torch.int64)


def exact_digits(values: Tensor, keys: Tensor, count: int) -> Tensor:
    """Exact sums of `values` by key.

    Args:
        values: [N] float64, finite.
        keys: [N] int64 in [0, count).
        count: the number of keys.

    Returns:
        [count, digits] int64: add such tensors with `add_digits`, round them with `rounded`.
    """
    values, keys = values.to("cpu", torch.float64), keys.to("cpu")
    fraction, exponent = torch.frexp(values)
    mantissa = torch.ldexp(fraction, torch.tensor(_MANTISSA)).to(torch.int64)
    sign, mantissa = mantissa.sign(), mantissa.abs()
    place = exponent.to(torch.int64) - _MANTISSA + _BIAS
    digit, shift = place // 32, place % 32
    low = (mantissa & _LOW) << shift
    high = (mantissa >> 32) << shift
    flat = exact_zero(count).view(-1)
    slot = keys * DIGITS + digit
    flat.index_add_(0, slot, sign * (low & _LOW))
    flat.index_add_(0, slot + 1, sign * ((low >> 32) + (high & _LOW)))
    flat.index_add_(0, slot + 2, sign * (high >> 32))
    return _carried(flat.view(count, DIGITS))


def add_digits(left: Tensor, right: Tensor) -> Tensor:
    """The exact sum of two sets of digits."""
    return _carried(left + right)


def _carried(digits: Tensor) -> Tensor:
    """The same numbers with every digit but the last in [-2³¹, 2³³): adding cannot overflow then.

    One step of carrying is enough for that; it need not ripple through.
    """
    out = digits & _LOW
    out[..., -1] = digits[..., -1]
    out[..., 1:] += digits[..., :-1] >> 32
    return out


def rounded(digits: Tensor, divisors: Tensor | None = None) -> Tensor:
    """Each sum, over a whole number if given, rounded once to float64 (half to even).

    Args:
        digits: [keys, digits].
        divisors: [keys], whole and positive; None for 1.

    Returns:
        [keys]; ±inf beyond the range of float64.
    """
    whole = [1] * len(digits) if divisors is None else [int(one) for one in divisors.tolist()]
    rows = zip(digits.tolist(), whole, strict=True)
    return torch.tensor([_round(row, divisor) for row, divisor in rows], dtype=torch.float64)


def _whole(row: list[int]) -> int:
    """The sum in units of 2^-1152."""
    return sum(digit << (32 * place) for place, digit in enumerate(row) if digit)


def _round(row: list[int], divisor: int) -> float:
    total = _whole(row)
    try:
        return total / (divisor << _BIAS)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def fractions_of(digits: Tensor) -> list[Fraction]:
    """Sums, [n, digits], as exact fractions."""
    used = digits.ne(0).any(0).nonzero().squeeze(1)  # numbers of one kind fill few digits
    shifts = (32 * used).tolist()
    rows = (zip(row, shifts, strict=True) for row in digits[:, used].tolist())
    return [Fraction(sum(digit << shift for digit, shift in row), 1 << _BIAS) for row in rows]


def exact_sums(values: Tensor, keys: Tensor, count: int) -> Tensor:
    """Correctly rounded sums of finite float64 values by key, [count]; 0 for an absent key."""
    return rounded(exact_digits(values, keys, count))


def exact_means(values: Tensor, keys: Tensor, numbers: Tensor) -> Tensor:
    """Correctly rounded sums by key over `numbers`, [count]; 0 where the number is 0."""
    return rounded(exact_digits(values, keys, numbers.numel()), numbers.clamp(min=1))


_MOST_BITS = 63
_MOST_GAPS = 4  # more of them than of rows, and sorting is quicker than counting


def canonical_order(codes: Tensor, *columns: Tensor) -> Tensor:
    """The order of rows by code, then by the columns' values, [N].

    Rows that compare equal are interchangeable, so anything computed front to back in this
    order is the same for every order of the input.
    """
    order: Tensor | None = None
    for key in (*reversed(columns), codes):
        order = _sorted_by(key, order)
    assert order is not None
    return order


def _sorted_by(key: Tensor, order: Tensor | None) -> Tensor:
    """Rows, in an order so far, by a key; rows of equal key stay in that order."""
    if key.device.type == "cpu" and not key.is_floating_point() and key.numel():
        return _sorted_by_code(key.numpy(), order)
    if order is not None:
        return order[torch.argsort(key[order], stable=True)]
    if key.device.type == "cpu":  # numpy sorts with vector instructions
        return torch.from_numpy(np.argsort(key.numpy()))
    return torch.argsort(key)


def _sorted_by_code(key: NDArray[np.int64], order: Tensor | None) -> Tensor:
    """`_sorted_by` of whole numbers: key and place are sorted as one number, where they fit in."""
    places = len(key).bit_length()
    low, high = int(key.min()), int(key.max())
    rows = np.arange(len(key)) if order is None else order.numpy()
    if (high - low).bit_length() + places > _MOST_BITS:
        return torch.from_numpy(rows[np.argsort(key[rows], kind="stable")])
    both = key[rows]
    both -= low
    both <<= places
    both += np.arange(len(key))
    both.sort()
    both &= (1 << places) - 1
    return torch.from_numpy(rows[both])


def dense(codes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The codes that occur, ascending, and each row's place among them, [N].

    Args:
        codes: [N] int64 in [0, count).
        count: how many there could be.
    """
    if count > _MOST_GAPS * max(len(codes), 1):
        found: tuple[Tensor, Tensor] = torch.unique(codes, return_inverse=True)
        return found
    there = torch.bincount(codes, minlength=count) > 0
    if bool(there.all()):
        return torch.arange(count), codes
    rank = there.cumsum(0) - 1
    return there.nonzero().squeeze(1), rank[codes]


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


def group_moments(values: Tensor, offsets: Tensor, constant: Tensor | None = None) -> Moments:
    """Mean and Bessel standard deviation of each group, in two passes.

    Args:
        values: [N] in canonical order.
        offsets: [G+1].
        constant: [G] as `is_constant` has it, where that is known.

    Returns:
        [G] each. The deviation of a group of one is 0; the mean of an empty group is 0. Where
        all values are equal the mean is that value and the deviation 0, without rounding noise.
    """
    count = lengths(offsets).to(values.dtype)
    mean = segment_sum(values, offsets) / count.clamp(min=1)
    constant = is_constant(values, offsets) if constant is None else constant
    mean = torch.where(constant, first_values(values, offsets), mean)
    squares = segment_sum((values - spread(mean, offsets)).square_(), offsets)
    return Moments(count, mean, (squares / (count - 1).clamp(min=1)).sqrt())


def first_values(values: Tensor, offsets: Tensor) -> Tensor:
    """The first value of each segment, [N]; 0 for an empty one."""
    if values.numel() == 0:
        return values.new_zeros(offsets.numel() - 1)
    first = values[offsets[:-1].clamp(max=values.numel() - 1)]
    return torch.where(lengths(offsets) > 0, first, 0.0)


def last_values(values: Tensor, offsets: Tensor) -> Tensor:
    """The last value of each segment, [N]; 0 for an empty one."""
    if values.numel() == 0:
        return values.new_zeros(offsets.numel() - 1)
    last = values[(offsets[1:] - 1).clamp(min=0)]
    return torch.where(lengths(offsets) > 0, last, 0.0)


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
    # In place, on memory that was just written and is still in the cache.
    distance = spread(total / count.clamp(min=1), offsets).sub_(inside).square_()
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
