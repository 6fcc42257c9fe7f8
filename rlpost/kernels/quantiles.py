"""Quantiles from a histogram of fixed size; histograms add exactly.

A bin is a range of the leading bits of a float: 32 bins to each doubling of |x|, on both sides of
0. So the error of a quantile is at most 1/64 of its value, for any number of values, and no
logarithm is needed to find a bin. This is the layout of HdrHistogram, https://hdrhistogram.org.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Integers


_FINEST, _COARSEST = -20, 6  # powers of two; smaller values count as 0, larger in the last bin
_STEPS = 5  # bits of the mantissa in the bin index: 32 bins per doubling
_SIDE = (_COARSEST - _FINEST) << _STEPS
_BIAS = 127  # of a float32's exponent
BINS = 2 * _SIDE + 1
BITS = 1 + 8 + _STEPS
"""Of the codes of `kernels.histogram.tally` that quantiles are computed of."""


def bins_of(values: NDArray[Any]) -> Integers:
    """Return the bin of each number, [T] int64 in [0, BINS), in ascending order of the numbers.

    >>> bins_of(np.array([-1.0, 0.0, 1.0])) - BINS // 2
    array([-641,    0,  641])
    """
    codes = values.astype(np.float32).view(np.uint32) >> (32 - BITS)
    return np.take(_BIN_OF_CODE, codes)


def _bins_of_codes() -> Integers:
    """Return the bin of each code of `kernels.histogram.tally` with `BITS` bits."""
    codes, negative = np.arange(1 << BITS), 1 << (BITS - 1)
    steps = (codes % negative - ((_BIAS + _FINEST) << _STEPS) + 1).clip(0, _SIDE)
    return _SIDE + np.where(codes < negative, steps, -steps)


_BIN_OF_CODE = _bins_of_codes()


def quantiles(counts: Integers, number: int, shares: Sequence[float]) -> list[float]:
    """Return for each share the smallest number that at least this share of all does not exceed.

    Args:
        counts: of numbers by their first `BITS` bits, from `kernels.histogram.tally`; that of 0 is
            not read.
        number: of all numbers, at least 1.
        shares: each 0 to 1.

    Returns:
        The middles of the numbers' bins; 0 for absolute values below 2^-20. The relative error is
        at most 1/64 for those up to 2^6.
    """
    bins = np.zeros(BINS, np.int64)
    np.add.at(bins, _BIN_OF_CODE, counts)
    bins[_SIDE] += number - bins.sum()
    below, count = bins.cumsum(0), float(number)
    # 1 - 2^-40: rounding must not make 0.1 · 10 the second of ten numbers
    ranks = [max(1, int(-(-share * count * (1 - 2.0**-40) // 1))) for share in shares]
    places = (np.searchsorted(below, ranks) - _SIDE).tolist()
    return [_middle(step) if step >= 0 else -_middle(-step) for step in places]


def _middle(step: int) -> float:
    if step == 0:
        return 0.0
    doubling, part = divmod(step - 1, 1 << _STEPS)
    return float(2.0 ** (doubling + _FINEST) * (1 + (part + 0.5) / (1 << _STEPS)))
