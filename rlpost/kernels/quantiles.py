"""Quantiles of many numbers from a histogram of fixed size, whose parts add up exactly.

The bins are those of a float's leading bits: 32 to each doubling of |x|, on both sides of 0. So a
quantile is off by at most 1/64 of its own value, however many numbers there are, and it costs no
logarithm to find a number's bin. (HdrHistogram's layout; https://hdrhistogram.org.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


_FINEST, _COARSEST = -20, 6  # powers of two: less counts as 0, more as the last bin
_STEPS = 5  # bits of the mantissa that tell bins apart: 32 bins a doubling
_SIDE = (_COARSEST - _FINEST) << _STEPS
_BIAS = 127  # of a float32's exponent, whose mantissa has 23 bits
_MANTISSA = 23
BINS = 2 * _SIDE + 1
ERROR = 2.0 ** -(_STEPS + 1)
"""A quantile is off by at most this share of itself, from 2^-20 to 2^6 on both sides of 0."""


def bins_of(values: Tensor) -> Tensor:
    """The bin of each number, [T] int64 in [0, BINS), rising with the number.

    >>> torch.bincount(bins_of(torch.tensor([-1.0, 0.0, 1.0])), minlength=BINS).sum().item()
    3
    """
    bits = values.to(torch.float32).view(torch.int32)
    steps = (bits & 0x7FFFFFFF) >> (_MANTISSA - _STEPS)
    steps = (steps - ((_BIAS + _FINEST) << _STEPS) + 1).clamp_(0, _SIDE)
    return (steps * (bits >= 0).to(torch.int32).mul_(2).sub_(1) + _SIDE).to(torch.int64)


def quantile(counts: Tensor, share: float) -> float:
    """The least number that at least this share of all numbers does not exceed.

    Args:
        counts: [BINS] how many numbers each bin holds, at least one in all.
        share: 0 to 1.

    Returns:
        The middle of its bin: within ERROR of it, relative; 0 for what is under 2^-20.
    """
    return quantiles(counts, (share,))[0]


def quantiles(counts: Tensor, shares: Sequence[float]) -> list[float]:
    """`quantile` of several shares."""
    below = counts.cumsum(0)
    count = float(below[-1])
    # 1 - 2^-40: 0.1 · 10 must not ask for the second of ten for want of a bit
    ranks = [max(1, int(-(-share * count * (1 - 2.0**-40) // 1))) for share in shares]
    places = torch.searchsorted(below, below.new_tensor(ranks)) - _SIDE
    return [_middle(place) if place >= 0 else -_middle(-place) for place in places.tolist()]


def _middle(step: int) -> float:
    if step == 0:
        return 0.0
    doubling, part = divmod(step - 1, 1 << _STEPS)
    return float(2.0 ** (doubling + _FINEST) * (1 + (part + 0.5) / (1 << _STEPS)))
