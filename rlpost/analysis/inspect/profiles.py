"""Profiles of numbers: quantiles, histograms, correlations, and sums by the bin of a value."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import Histogram
from rlpost.kernels.quantiles import BINS as BINS_OF_VALUES
from rlpost.kernels.quantiles import bins_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]] | NDArray[np.int64]


QUANTILES = {"p1": 0.01, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
BINS = 20


def quantiles_of(values: Floats) -> dict[str, float]:
    """Return quantiles, linear between neighbours; none of no numbers."""
    if not len(values):
        return {}
    numbers = np.quantile(values.astype(np.float64), list(QUANTILES.values()))
    return dict(zip(QUANTILES, numbers.tolist(), strict=True))


def histogram_of(values: Floats, edges: list[float] | None = None) -> Histogram | None:
    """Return counts in equal bins or between edges; None if all numbers are equal."""
    if not len(values) or (edges is None and values.min() == values.max()):
        return None
    counts, bounds = np.histogram(values.astype(np.float64), BINS if edges is None else edges)
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


_UNITS = 46  # binary digits behind the point
_COARSE = 12
_LARGEST = 2.0**22
_TO_COARSE, _TO_UNITS = (1.5 * 2.0 ** (52 - digits) for digits in (_COARSE, _UNITS))
"""Adding one of them rounds a smaller number to a multiple of 2⁻¹², or of 2⁻⁴⁶."""


class BinnedSums:
    """Sums of numbers by the bin of a value, in fixed memory, which do not depend on chunks.

    Numbers are rounded to multiples of 2⁻⁴⁶ and clamped to ±2²², so that their sums are integers.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS_OF_VALUES, np.int64)
        """Numbers in each bin of `rlpost.kernels.quantiles`."""
        self._parts: dict[str, NDArray[np.int64]] = {}

    def add(self, by: NDArray[np.floating[Any]], **values: NDArray[np.float64]) -> None:
        """Add finite numbers, [n] each, to the bins of `by`, [n]."""
        bins = bins_of(by)
        self.counts += np.bincount(bins, minlength=BINS_OF_VALUES)
        for name, numbers in values.items():
            fine = np.clip(numbers, -_LARGEST, _LARGEST)
            coarse = fine + _TO_COARSE
            coarse -= _TO_COARSE
            fine -= coarse
            fine += _TO_UNITS
            fine -= _TO_UNITS
            # Of half a million numbers, both sums are below 2⁵³ units: float64 has them exactly.
            sums = [
                np.bincount(bins, part, BINS_OF_VALUES) * 2.0**digits
                for part, digits in ((coarse, _COARSE), (fine, _UNITS))
            ]
            before = self._parts.get(name, np.zeros((2, BINS_OF_VALUES), np.int64))
            self._parts[name] = before + np.array(sums).astype(np.int64)

    def mean(self, name: str, bins: slice) -> float:
        """Return the mean of the numbers in a range of bins, rounded once; 0 of none."""
        coarse, fine = (int(part) for part in self._parts[name][:, bins].sum(1))
        count = max(int(self.counts[bins].sum()), 1)
        return ((coarse << (_UNITS - _COARSE)) + fine) / (count << _UNITS)

    def parts(self, most: int) -> list[slice]:
        """Return at most so many ranges of whole bins with about the same count of numbers."""
        below = np.concatenate([[0], self.counts.cumsum()])
        targets = below[-1] * np.arange(1, most) / most
        after = np.searchsorted(below, targets)
        nearer = targets - below[after - 1] < below[after] - targets
        ends = [0, *(after - nearer).tolist(), len(self.counts)]
        spans = [slice(a, b) for a, b in pairwise(ends) if a < b]
        return [span for span in spans if self.counts[span].any()]
