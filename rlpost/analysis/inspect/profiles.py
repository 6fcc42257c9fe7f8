"""Profiles of numbers: histograms, correlations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import Histogram
from rlpost.kernels.moments import equal_to_rounding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]] | NDArray[np.int64]


BINS = 20
_TINY, _LARGEST = np.finfo(np.float64).tiny, np.finfo(np.float64).max


def histogram_of(values: Floats, edges: list[float] | None = None) -> Histogram | None:
    """Return counts in equal bins or between edges; None if float64 cannot divide their range.

    So it is for numbers that are equal to rounding, or as far apart as float64 reaches.
    """
    numbers = values.astype(np.float64)
    if not len(numbers):
        return None
    if edges is None:
        low, high = numbers.min(), numbers.max()
        width = high / BINS - low / BINS
        if equal_to_rounding(low, high) or not _TINY <= width <= _LARGEST / BINS:
            return None
    counts, bounds = np.histogram(numbers, BINS if edges is None else edges)
    return Histogram(bounds.tolist(), counts.tolist())


def length_histogram(lengths: NDArray[np.int64]) -> Histogram | None:
    """Return counts in bins whose width is a round whole number."""
    longest = int(lengths.max(initial=0))
    if not longest:
        return None
    rough = max(longest / BINS, 1)
    unit = 10 ** int(math.log10(rough))
    width = next(unit * step for step in (1, 2, 5, 10) if unit * step >= rough)
    return histogram_of(lengths, [float(x) for x in range(0, longest + width + 1, width)])


def pearson(left: Floats, right: Floats) -> float | None:
    """Return Pearson's correlation; None for fewer than 3 rows, or if one side is constant.

    A side whose deviation is below a billionth of its values is constant: that is rounding.
    """
    if len(left) < 3:  # noqa: PLR2004
        return None
    sides = [side.astype(np.float64) - side.mean(dtype=np.float64) for side in (left, right)]
    sizes = [math.sqrt(np.einsum("i,i", side, side)) for side in sides]
    least = [1e-9 * math.sqrt(len(side)) * float(np.abs(side).max()) for side in (left, right)]
    if any(size <= small for size, small in zip(sizes, least, strict=True)):
        return None
    return float(np.einsum("i,i", *sides) / (sizes[0] * sizes[1]))


def spearman(left: Floats, right: Floats) -> float | None:
    """Return Pearson's correlation of the ranks; equal values share their mean rank."""
    ranks = [pl.Series(side).rank().to_numpy() for side in (left, right)]
    return pearson(ranks[0], ranks[1])
