"""Profiles of numbers: histograms, correlations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

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
