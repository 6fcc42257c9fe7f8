"""Exact sums, and means and standard deviations that do not depend on the order of responses.

An exact sum is stored as integer digits in base 2³² that cover the exponent range of float64.
Partial sums add exactly, on one machine or many, and are rounded once, at the end. Sums over a
batch are exact; sums within a group run over its responses in canonical order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.segments import (
    count_true,
    lengths,
    offsets_of,
    segment_max,
    segment_min,
    segment_sum,
    spread,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

ROUNDING = 4 * 2.0**-23
"""Relative difference of equal numbers: four roundings of float32, as of rewards that are sums."""

_BIAS = 1152  # makes the exponent of the smallest subnormal's last bit (2^-1074) positive
DIGITS = 70  # digits of 32 bits: 2^-1152 to beyond 2^1024, with room for carries
_LOW = 0xFFFFFFFF
_MANTISSA = 53


def exact_digits(values: Floats, keys: Integers, count: int) -> Integers:
    """Return the exact sums of `values` by key.

    Args:
        values: [N] float64, finite.
        keys: [N] int64 in [0, count).
        count: the number of keys.

    Returns:
        [count, digits] int64; up to 2²⁹ of them add, then `carried` is due; `round_digits` rounds.
    """
    fraction, exponent = np.frexp(values)
    with np.errstate(invalid="ignore"):  # squares beyond the range of float64 are infinite
        mantissa = np.ldexp(fraction, _MANTISSA).astype(np.int64)
    bit = exponent.astype(np.int64) + (_BIAS - _MANTISSA)
    digit, shift = bit >> 5, bit & 31
    slot = digit + keys * DIGITS
    low, high = (mantissa & _LOW) << shift, (mantissa >> 32) << shift  # high has the sign
    digits = np.zeros((count, DIGITS), np.int64)
    flat = digits.reshape(-1)
    np.add.at(flat, slot, low & _LOW)
    np.add.at(flat, slot + 1, (low >> 32) + (high & _LOW))
    np.add.at(flat, slot + 2, high >> 32)
    if len(values):  # the others are 0, and most
        used = digits[:, int(digit.min()) : int(digit.max()) + 4]
        used[...] = carried(used)
    return digits


def carried(digits: Integers) -> Integers:
    """Return the same sums with all digits but the last in [-2³¹, 2³³), so adding cannot overflow.

    One step of carries is enough for that bound.
    """
    out = digits & _LOW
    out[..., -1] = digits[..., -1]
    out[..., 1:] += digits[..., :-1] >> 32
    return out


def round_digits(digits: Integers, divisors: Integers | Floats | None = None) -> Floats:
    """Return each sum, divided by a whole number if there is one, rounded once (half to even).

    Args:
        digits: [keys, digits].
        divisors: [keys], whole and positive; None for 1.

    Returns:
        [keys] float64; ±inf beyond its range.
    """
    used = used_digits(digits)
    whole = [1] * len(digits) if divisors is None else [int(x) for x in divisors.tolist()]
    pairs, scale = zip(integers_of(digits[:, used]), whole, strict=True), scale_of(used.start)
    return np.array([_round(total, divisor << scale) for total, divisor in pairs], np.float64)


def _round(total: int, divisor: int) -> float:
    try:
        return total / divisor
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def used_digits(digits: Integers) -> slice:
    """Return the range of digits that sums [..., digits] use, and that of 1.

    Numbers of one magnitude use few of them. The unit of the first one is 2^-`scale_of` it.
    """
    used = (digits.reshape(-1, DIGITS) != 0).any(0)
    used[_BIAS // 32] = True
    indices = np.flatnonzero(used)
    return slice(int(indices[0]), int(indices[-1]) + 1)


def scale_of(first: int) -> int:
    """Return the binary digits behind the point, of sums with this first digit."""
    return _BIAS - 32 * first


def integers_of(digits: Integers) -> list[int]:
    """Return the sums [n, any number of digits] as integers, in units of their first digit."""
    count, size = digits.shape
    words = np.empty((count, size + 2), "<u4")
    carry = np.zeros(count, np.int64)
    for index, column in enumerate(digits.T):
        carry += column
        words[:, index] = carry & _LOW
        carry >>= 32
    words[:, size], words[:, size + 1] = carry & _LOW, carry >> 32 & _LOW
    data, width = words.tobytes(), 4 * (size + 2)
    ends = range(0, len(data), width)
    return [int.from_bytes(data[at : at + width], "little", signed=True) for at in ends]


def exact_sums(values: Floats, keys: Integers, count: int) -> Floats:
    """Return correctly rounded sums of finite float64 values by key, [count]; 0 for no value."""
    return round_digits(exact_digits(values, keys, count))


def exact_means(values: Floats, keys: Integers, numbers: Integers | Floats) -> Floats:
    """Return correctly rounded sums by key, divided by `numbers` [count]; 0 if the number is 0."""
    return round_digits(exact_digits(values, keys, len(numbers)), numbers.clip(1))


def group_offsets(codes: Integers, count: int) -> Integers:
    """Return the offsets [count+1] of the groups in rows sorted by code."""
    offsets: Integers = offsets_of(np.bincount(codes, minlength=count))
    return offsets


class Moments(NamedTuple):
    """Number, mean and standard deviation of sets of numbers, each [K] float64."""

    number: Floats
    mean: Floats
    std: Floats

    def at(self, codes: Integers) -> Moments:
        """Return the moments of the set of each row."""
        return Moments(*(part[codes] for part in self))


def group_moments(values: Floats, offsets: Integers, constant: Mask | None = None) -> Moments:
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
    count = lengths(offsets).astype(values.dtype)
    mean = segment_sum(values, offsets) / count.clip(1)
    constant = is_constant(values, offsets) if constant is None else constant
    mean = np.where(constant, first_values(values, offsets), mean)
    with np.errstate(over="ignore"):
        squares = segment_sum((values - spread(mean, offsets)) ** 2, offsets)
    return Moments(count, mean, np.sqrt(squares / (count - 1).clip(1)))


def first_values(values: Floats, offsets: Integers) -> Floats:
    """Return the first value of each segment, [N]; 0 for an empty segment."""
    if not len(values):
        return np.zeros(len(offsets) - 1)
    first = values[offsets[:-1].clip(max=len(values) - 1)]
    return np.where(lengths(offsets) > 0, first, 0.0)


def last_values(values: Floats, offsets: Integers) -> Floats:
    """Return the last value of each segment, [N]; 0 for an empty segment."""
    if not len(values):
        return np.zeros(len(offsets) - 1)
    last = values[(offsets[1:] - 1).clip(0)]
    return np.where(lengths(offsets) > 0, last, 0.0)


def is_constant(values: Floats, offsets: Integers) -> Mask:
    """Return whether all values of a segment are equal, [N] bool; true for 0 or 1 value."""
    constant: Mask = segment_max(values, offsets) <= segment_min(values, offsets)
    return constant


def equal_to_rounding(low: Floats, high: Floats, rounding: float = ROUNDING) -> Mask:
    """Return whether numbers between two bounds are equal to rounding, [N] bool.

    high - low <= 4·2⁻²³ · max(|low|, |high|)
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a span beyond float64, or of no number
        equal: Mask = high - low <= rounding * np.maximum(abs(low), abs(high))
    return equal


def levelled(values: Floats, offsets: Integers) -> Floats:
    """Return values [N] in which those of a segment are its lowest if they are equal to rounding.

    NaN stays, and is none of them.
    """
    known = ~np.isnan(values)
    low, high = (
        reduced(np.where(known, values, unit), offsets)
        for reduced, unit in ((segment_min, np.inf), (segment_max, -np.inf))
    )
    level = spread(equal_to_rounding(low, high), offsets) & known
    return np.where(level, spread(low, offsets), values)


def reaches(values: Floats, threshold: float) -> Mask:
    """Return whether each value is at least a threshold, or equal to it to rounding, [N] bool."""
    reached: Mask = values >= threshold - ROUNDING * abs(threshold)
    return reached


def keyed_moments(values: Floats, keys: Integers, count: int) -> Moments:
    """Return mean and standard deviation (Bessel, ddof 1) by key, [count] each, from exact sums.

    The mean of no value is 0, the standard deviation of a single value 0.
    """
    rows = np.bincount(keys, minlength=count).astype(np.float64)
    mean = exact_means(values, keys, rows)
    squares = exact_sums((values - mean[keys]) ** 2, keys, count)
    return Moments(rows, mean, np.sqrt(squares / (rows - 1).clip(1)))


def exact_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x y, [n] float64, and what its rounding took; their sum is exact (Dekker).

    Beyond 2^996, where halves of the digits overflow, the second part is 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product = x * y
        (x_high, x_low), (y_high, y_low) = map(_halves, (x, y))
        rest = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    return product, namespace(rest).where(abs(rest) < np.inf, rest, 0.0)


def _halves(values: Array) -> tuple[Array, Array]:
    """Return numbers of 26 bits each that add up to each value."""
    xp = namespace(values)
    values = xp.astype(values, xp.float64)
    scaled = values * 134217729.0  # 2^27 + 1
    high = scaled - (scaled - values)
    return high, values - high


def square_sums(number: Array, total: Array, deviations: Array | float) -> tuple[Array, Array]:
    """Return the sum of the squares of the numbers of each set, [n], and what its rounding took.

    Σx² = Σ(x - m)² + n·m² with n·m = Σx; what rounding of m took is in the small part.

    Args:
        number: [n] how many there are.
        total: [n] float64, their sums.
        deviations: [n] their squared deviations from their mean, added up.
    """
    count = number.clip(1)
    mean = total / count
    square, rest = exact_product(total, mean)
    whole, lost = exact_product(mean, count)
    return square, rest + mean * ((total - whole) - lost) + deviations


class TokenMoments(NamedTuple):
    """Number, sum and sum of squared deviations of the values of each segment, [N] each."""

    number: Array
    total: Array
    squares: Array


def token_moments(values: Array, mask: Array | None, offsets: Array) -> TokenMoments:
    """Return the moments of each segment's values whose mask is true, [N] float64 each; 0 for none.

    Args:
        values: [T].
        mask: [T] bool; None for all values.
        offsets: [N+1].
    """
    xp = namespace(values)
    inside, count = xp.astype(values, xp.float64), lengths(offsets)
    if mask is not None:
        inside, count = xp.where(mask, inside, 0.0), count_true(mask, offsets)
    count, total = xp.astype(count, xp.float64), segment_sum(inside, offsets)
    squares = spread(total / count.clip(1), offsets)
    squares -= inside
    squares *= squares
    if mask is not None:
        squares = xp.where(mask, squares, 0.0)
    return TokenMoments(count, total, segment_sum(squares, offsets))


def pooled_moments(parts: TokenMoments, keys: Integers, count: int) -> Moments:
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
    own = parts.total / parts.number.clip(1)
    between = parts.number * (own - mean[keys]) ** 2
    squares = exact_sums(parts.squares + between, keys, count)
    return Moments(number, mean, np.sqrt(squares / (number - 1).clip(1)))
