"""Quantiles from a histogram of fixed size; histograms add exactly.

A bin is a range of the leading bits of a float: 32 bins to each doubling of |x|, on both sides of
0. So the error of a quantile is at most 1/64 of its value, for any number of values, and no
logarithm is needed to find a bin. This is the layout of HdrHistogram, https://hdrhistogram.org.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


_FINEST, _COARSEST = -20, 6  # powers of two; smaller values count as 0, larger in the last bin
_STEPS = 5  # bits of the mantissa in the bin index: 32 bins per doubling
_SIDE = (_COARSEST - _FINEST) << _STEPS
_BIAS = 127  # of a float32's exponent, whose mantissa has 23 bits
_MANTISSA = 23
BINS = 2 * _SIDE + 1


def bins_of(values: Tensor) -> Tensor:
    """Return the bin of each number, [T] int64 in [0, BINS), in ascending order of the numbers.

    >>> count_codes(bins_of(torch.tensor([-1.0, 0.0, 1.0])), BINS).sum().item()
    3
    """
    bits = values.to(torch.float32).view(torch.int32)
    steps = (bits & 0x7FFFFFFF) >> (_MANTISSA - _STEPS)
    steps = (steps - ((_BIAS + _FINEST) << _STEPS) + 1).clamp_(0, _SIDE)
    return (steps * (bits >= 0).to(torch.int32).mul_(2).sub_(1) + _SIDE).to(torch.int64)


def count_codes(codes: Tensor, count: int) -> Tensor:
    """Return how often each code occurs, [count] int64.

    Args:
        codes: [T] integers in [0, count).
        count: the number of possible codes.
    """
    if codes.device.type == "cpu":
        return torch.bincount(codes, minlength=count)
    # bincount waits for the largest code.
    ones = torch.ones((), dtype=torch.int64, device=codes.device).expand(codes.shape)
    return ones.new_zeros(count).scatter_add_(0, codes.to(torch.int64), ones)


def quantiles(counts: Tensor, shares: Sequence[float]) -> list[float]:
    """Return for each share the smallest number that at least this share of all does not exceed.

    Args:
        counts: [BINS] count of numbers by bin, with a sum of at least 1.
        shares: each 0 to 1.

    Returns:
        The middles of the numbers' bins; 0 for absolute values below 2^-20. The relative error is
        at most 1/64 for those up to 2^6.
    """
    below = counts.cumsum(0)
    count = float(below[-1])
    # 1 - 2^-40: rounding must not make 0.1 · 10 the second of ten numbers
    ranks = [max(1, int(-(-share * count * (1 - 2.0**-40) // 1))) for share in shares]
    steps = torch.searchsorted(below, below.new_tensor(ranks)) - _SIDE
    return [_middle(step) if step >= 0 else -_middle(-step) for step in steps.tolist()]


def _middle(step: int) -> float:
    if step == 0:
        return 0.0
    doubling, part = divmod(step - 1, 1 << _STEPS)
    return float(2.0 ** (doubling + _FINEST) * (1 + (part + 0.5) / (1 << _STEPS)))
