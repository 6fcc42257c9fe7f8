"""Histograms of numbers of any size, which add exactly.

A number is counted under the leading bits of its float32: sign, exponent and three bits of the
mantissa. So chunks can be counted before the range of all numbers is known, and columns whose width
is a power of two still have exact counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, namespace

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BITS = 12  # of the 32 of a float32: sign, 8 of the exponent, 3 of the 23 of the mantissa
_NEGATIVE = 1 << (_BITS - 1)  # codes from here are of negative numbers
SMALLEST = 2.0**-126
"""Of float32, by size; smaller numbers count as 0, and have no column."""


class SignedHistogram(NamedTuple):
    """Columns of equal width, which is a power of two."""

    edges: list[float]
    """One more than columns, ascending. A number at an edge belongs to the column away from 0."""
    counts: list[int]


def tally(values: Array, counts: Array | None = None, bits: int = _BITS) -> Array:
    """Count numbers under their leading bits.

    Args:
        values: [T], finite.
        counts: [T] int64, how often each one counts; None: once.
        bits: of a code.

    Returns:
        [2^bits] int64.
    """
    xp = namespace(values)
    codes = xp.reinterpreted(xp.astype(values, xp.float32), xp.int32) >> (32 - bits)
    return xp.count_codes(codes & ((1 << bits) - 1), 1 << bits, counts)


def histogram(counts: NDArray[np.int64]) -> SignedHistogram:
    """Return the histogram of tallied numbers but 0, of 8 to 32 columns; none for no numbers.

    >>> histogram(tally(np.array([-1.0, 0.0, 0.75, 1.5, 1.5])))[1]
    [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2]
    """
    codes = np.flatnonzero(counts)
    codes = codes[codes % _NEGATIVE > 0]
    if not len(codes):
        return SignedHistogram([], [])
    bits = (codes % _NEGATIVE << (32 - _BITS)).astype(np.int32)
    sizes = bits.view(np.float32).astype(np.float64)  # the lower ends of the codes, without sign
    width = 2.0 ** (np.frexp(sizes.max())[1] - 4)  # the largest is below 16 widths
    column = (sizes / width).astype(np.int64)
    column = np.where(codes < _NEGATIVE, column, -column - 1)
    first, last = int(column.min()), int(column.max())
    numbers = np.zeros(last - first + 1, dtype=np.int64)
    np.add.at(numbers, column - first, counts[codes])
    edges = [width * at for at in range(first, last + 2)]
    return SignedHistogram([float(edge) for edge in edges], numbers.tolist())
