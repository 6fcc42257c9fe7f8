"""Exact sums, and means and standard deviations that do not depend on the order of responses.

An exact sum is stored as integer digits in base 2³² that cover the exponent range of float64.
Partial sums add exactly, on one machine or many, and are rounded once, at the end. Sums over a
batch are exact; sums within a group run over its responses in canonical order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlpost.kernels import codes as integers
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


_BIAS = 1152  # makes the exponent of the smallest subnormal's last bit (2^-1074) positive
DIGITS = 70  # digits of 32 bits: 2^-1152 to beyond 2^1024, with room for carries
_LOW = 0xFFFFFFFF
_MANTISSA = 53


def zero_digits(keys: int) -> Tensor:
    """Return the digits of `keys` sums of nothing, [keys, digits] int64."""
    return torch.zeros(keys, DIGITS, dtype=torch.int64)


def exact_digits(values: Tensor, keys: Tensor, count: int) -> Tensor:
    """Return the exact sums of `values` by key.

    Args:
        values: [N] float64, finite.
        keys: [N] int64 in [0, count).
        count: the number of keys.

    Returns:
        [count, digits] int64; `add_digits` adds two of them, `round_digits` rounds one.
    """
    # By numpy, since most calls have few numbers, on which a call of torch takes 3 times as long.
    fraction, exponent = np.frexp(values.to("cpu", torch.float64).numpy())
    with np.errstate(invalid="ignore"):  # squares beyond the range of float64 are infinite
        mantissa = np.ldexp(fraction, _MANTISSA).astype(np.int64)
    bit = exponent.astype(np.int64) + (_BIAS - _MANTISSA)
    slot, shift = (bit >> 5) + keys.cpu().numpy() * DIGITS, bit & 31
    low, high = (mantissa & _LOW) << shift, (mantissa >> 32) << shift  # high has the sign
    digits = zero_digits(count)
    flat = digits.numpy().reshape(-1)
    np.add.at(flat, slot, low & _LOW)
    np.add.at(flat, slot + 1, (low >> 32) + (high & _LOW))
    np.add.at(flat, slot + 2, high >> 32)
    return _carried(digits)


def add_digits(left: Tensor, right: Tensor) -> Tensor:
    """Return the exact sum of two sets of digits."""
    return _carried(left + right)


def _carried(digits: Tensor) -> Tensor:
    """Return the same sums with all digits but the last in [-2³¹, 2³³), so adding cannot overflow.

    One step of carries is enough for that bound.
    """
    out = digits & _LOW
    out[..., -1] = digits[..., -1]
    out[..., 1:] += digits[..., :-1] >> 32
    return out


def round_digits(digits: Tensor, divisors: Tensor | None = None) -> Tensor:
    """Return each sum, divided by a whole number if there is one, rounded once (half to even).

    Args:
        digits: [keys, digits].
        divisors: [keys], whole and positive; None for 1.

    Returns:
        [keys] float64; ±inf beyond its range.
    """
    whole = [1] * len(digits) if divisors is None else [int(x) for x in divisors.tolist()]
    rows = zip(digits.tolist(), whole, strict=True)
    return torch.tensor([_round(row, divisor) for row, divisor in rows], dtype=torch.float64)


def _round(row: list[int], divisor: int) -> float:
    total = sum(digit << (32 * index) for index, digit in enumerate(row) if digit)
    try:
        return total / (divisor << _BIAS)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def used_digits(digits: Tensor) -> slice:
    """Return the range of digits that sums [..., digits] use, and that of 1.

    Numbers of one magnitude use few of them. The unit of the first one is 2^-`scale_of` it.
    """
    used = digits.reshape(-1, DIGITS).ne(0).any(0)
    used[_BIAS // 32] = True
    indices = used.nonzero()
    return slice(int(indices[0]), int(indices[-1]) + 1)


def scale_of(used: slice) -> int:
    """Return the binary digits behind the point, if `used.start` is the first digit of a sum."""
    return _BIAS - 32 * int(used.start)


def integers_of(digits: Tensor) -> list[int]:
    """Return the sums [n, any number of digits] as integers, in units of their first digit."""
    count, size = digits.shape
    words = np.empty((count, size + 2), "<u4")
    carry = np.zeros(count, np.int64)
    for index, column in enumerate(digits.numpy().T):
        carry += column
        words[:, index] = carry & _LOW
        carry >>= 32
    words[:, size], words[:, size + 1] = carry & _LOW, carry >> 32 & _LOW
    data, width = words.tobytes(), 4 * (size + 2)
    ends = range(0, len(data), width)
    return [int.from_bytes(data[at : at + width], "little", signed=True) for at in ends]


def exact_sums(values: Tensor, keys: Tensor, count: int) -> Tensor:
    """Return correctly rounded sums of finite float64 values by key, [count]; 0 for no value."""
    return round_digits(exact_digits(values, keys, count))


def exact_means(values: Tensor, keys: Tensor, numbers: Tensor) -> Tensor:
    """Return correctly rounded sums by key, divided by `numbers` [count]; 0 if the number is 0."""
    return round_digits(exact_digits(values, keys, numbers.numel()), numbers.clamp(min=1))


_MOST_BITS = 63


def canonical_order(codes: Tensor, *columns: Tensor) -> Tensor:
    """Return the order of rows by code, then by the values of the columns, [N].

    Rows that compare equal have equal values, so a computation that reads rows in this order has
    the same result for every order of the input.
    """
    order: Tensor | None = None
    for key in (*reversed(columns), codes):
        order = _sorted_by(key, order)
    assert order is not None
    return order


def _sorted_by(key: Tensor, order: Tensor | None) -> Tensor:
    """Return a stable sort of the rows, in the order so far, by a key."""
    if key.device.type == "cpu" and not key.is_floating_point() and key.numel():
        return _sorted_by_code(key.numpy(), order)
    if order is not None:
        return order[torch.argsort(key[order], stable=True)]
    if key.device.type == "cpu":  # numpy sorts with vector instructions
        return torch.from_numpy(np.argsort(key.numpy()))
    return torch.argsort(key)


def _sorted_by_code(key: NDArray[Any], order: Tensor | None) -> Tensor:
    """Return `_sorted_by` for integers and bools.

    Key and index are sorted as one number, if 63 bits are enough.
    """
    index_bits = len(key).bit_length()
    key = key.astype(np.int64, copy=False)
    low, high = int(key.min()), int(key.max())
    rows = np.arange(len(key)) if order is None else order.numpy()
    if (high - low).bit_length() + index_bits > _MOST_BITS:
        return torch.from_numpy(rows[np.argsort(key[rows], kind="stable")])
    both = key[rows]
    both -= low
    both <<= index_bits
    both += np.arange(len(key))
    both.sort()
    both &= (1 << index_bits) - 1
    return torch.from_numpy(rows[both])


def dense_codes(codes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the codes that occur, ascending, and the index of each row's code in them, [N].

    Args:
        codes: [N] int64 in [0, count), on the CPU.
        count: the number of possible codes.
    """
    occurring, dense = integers.dense_codes(codes.numpy(), count)
    return torch.from_numpy(occurring), torch.from_numpy(dense)


def joint_codes(*codes: Tensor) -> Tensor:
    """Return one code for each tuple of codes that occurs, from 0 without gaps, [N]."""
    return torch.from_numpy(integers.joint_codes(*(own.numpy() for own in codes)))


def group_offsets(codes: Tensor, count: int) -> Tensor:
    """Return the offsets [count+1] of the groups in rows sorted by code."""
    return offsets_of(torch.bincount(codes, minlength=count))


class Moments(NamedTuple):
    """Number, mean and standard deviation of sets of numbers, each [K] float64."""

    number: Tensor
    mean: Tensor
    std: Tensor

    def at(self, codes: Tensor) -> Moments:
        """Return the moments of the set of each row."""
        return Moments(*(part[codes] for part in self))


def group_moments(values: Tensor, offsets: Tensor, constant: Tensor | None = None) -> Moments:
    """Return mean and standard deviation (Bessel, ddof 1) of each group, in two passes.

    Args:
        values: [N] in canonical order.
        offsets: [G+1].
        constant: [G] from `is_constant`, if the caller has it.

    Returns:
        [G] each. The mean of an empty group is 0. The standard deviation of a single value is 0.
        If all values are equal, the mean is that value and the standard deviation 0, without
        rounding noise.
    """
    count = lengths(offsets).to(values.dtype)
    mean = segment_sum(values, offsets) / count.clamp(min=1)
    constant = is_constant(values, offsets) if constant is None else constant
    mean = torch.where(constant, first_values(values, offsets), mean)
    squares = segment_sum((values - spread(mean, offsets)).square_(), offsets)
    return Moments(count, mean, (squares / (count - 1).clamp(min=1)).sqrt())


def first_values(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the first value of each segment, [N]; 0 for an empty segment."""
    if values.numel() == 0:
        return values.new_zeros(offsets.numel() - 1)
    first = values[offsets[:-1].clamp(max=values.numel() - 1)]
    return torch.where(lengths(offsets) > 0, first, 0.0)


def last_values(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the last value of each segment, [N]; 0 for an empty segment."""
    if values.numel() == 0:
        return values.new_zeros(offsets.numel() - 1)
    last = values[(offsets[1:] - 1).clamp(min=0)]
    return torch.where(lengths(offsets) > 0, last, 0.0)


def is_constant(values: Tensor, offsets: Tensor) -> Tensor:
    """Return whether all values of a segment are equal, [N] bool; true for 0 or 1 value."""
    return segment_max(values, offsets) <= segment_min(values, offsets)


def keyed_moments(values: Tensor, keys: Tensor, count: int) -> Moments:
    """Return mean and standard deviation (Bessel, ddof 1) by key, [count] each, from exact sums.

    The mean of no value is 0, the standard deviation of a single value 0.
    """
    rows = torch.bincount(keys, minlength=count).to(torch.float64)
    mean = exact_means(values, keys, rows)
    squares = exact_sums((values - mean[keys]).square(), keys, count)
    return Moments(rows, mean, (squares / (rows - 1).clamp(min=1)).sqrt())


class TokenMoments(NamedTuple):
    """Number, sum and sum of squared deviations of the values of each segment, [N] each."""

    number: Tensor
    total: Tensor
    squares: Tensor


def token_moments(values: Tensor, mask: Tensor | None, offsets: Tensor) -> TokenMoments:
    """Return the moments of each segment's values whose mask is true, [N] float64 each; 0 for none.

    Args:
        values: [T].
        mask: [T] bool; None for all values.
        offsets: [N+1].
    """
    inside, count = values.to(torch.float64), lengths(offsets).to(torch.float64)
    if mask is not None:
        inside, count = torch.where(mask, inside, 0.0), count_true(mask, offsets).to(torch.float64)
    total = segment_sum(inside, offsets)
    # In place, on memory that was just written and is still in the cache.
    squares = spread(total / count.clamp(min=1), offsets).sub_(inside).square_()
    if mask is not None:
        squares = torch.where(mask, squares, 0.0)
    return TokenMoments(count, total, segment_sum(squares, offsets))


def pooled_moments(parts: TokenMoments, keys: Tensor, count: int) -> Moments:
    """Combine the moments of segments by key, with exact sums.

    Args:
        parts: [N] each.
        keys: [N] int64 in [0, count).
        count: the number of keys.

    Returns:
        Moments (Bessel, ddof 1) over all numbers of a key, [count]. No number: mean 0; one number:
        standard deviation 0.
    """
    number = exact_sums(parts.number, keys, count)
    mean = exact_means(parts.total, keys, number)
    own = parts.total / parts.number.clamp(min=1)
    between = parts.number * (own - mean[keys]).square()
    squares = exact_sums(parts.squares + between, keys, count)
    return Moments(number, mean, (squares / (number - 1).clamp(min=1)).sqrt())


def keyed_extremes(values: Tensor, keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest value of each key, [count] each; inf and -inf for none."""
    low, high = integers.keyed_extremes(values.numpy(), keys.numpy(), count)
    return torch.from_numpy(low), torch.from_numpy(high)
