"""Sums of float64 numbers without rounding, so that neither order nor chunking can change them.

A sum is held as integer digits in base 2³², spread over the whole exponent range of float64.
Partial sums of any rows add exactly, on one machine or many, and are rounded once, at the end.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

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
