"""Exact means, quantiles, histograms and correlations of arrays, and totals over chunks."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import Histogram, Spread
from rlpost.kernels.moments import add_digits, exact_digits, round_digits, zero_digits
from rlpost.kernels.quantiles import BINS as BINS_OF_VALUES
from rlpost.kernels.quantiles import bins_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Label

    Floats = NDArray[np.floating[Any]] | NDArray[np.int64]


QUANTILES = {"p1": 0.01, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
BINS = 20


def exact_sum(values: Floats) -> Fraction:
    """Return the exact sum, built from the nearest float and those nearest to each remainder."""
    numbers = values.tolist()
    total = Fraction(0)
    while part := math.fsum(numbers):
        total += Fraction(part)
        numbers.append(-part)
    return total


def spread_of(values: Floats) -> Spread:
    """Return mean, std (Bessel), min and max of finite numbers; the order does not matter."""
    count = len(values)
    if not count:
        return Spread(0, None, None, None, None)
    values = values.astype(np.float64)
    total, squares = exact_sum(values), exact_sum(values * values)
    mean = total / count
    variance = (
        max((squares - total * mean) / (count - 1), Fraction(0)) if count > 1 else Fraction(0)
    )
    return Spread(
        count,
        float(mean),
        float(variance) ** 0.5,
        float(values.min()) + 0.0,  # -0 is 0
        float(values.max()) + 0.0,
    )


def mean_of(values: Floats) -> float | None:
    """Return the mean, rounded once; None of no numbers."""
    return float(exact_sum(values) / len(values)) if len(values) else None


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


@dataclass
class TokenTotals:
    """Named sums, ranges and tables over chunks; float sums are rounded once, at the end."""

    sums: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)
    tables: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    steps: dict[Label, dict[str, float]] = field(default_factory=dict)
    buffers: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    digits: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """By name, exact sums by key; see `rlpost.kernels.moments`."""

    def buffer(self, name: str, size: int) -> NDArray[np.float64]:
        """Return an array to write into; its memory is reused, since new pages cost time."""
        if len(self.buffers.setdefault(name, np.empty(0))) < size:
            self.buffers[name] = np.empty(size * 5 // 4)
        return self.buffers[name][:size]

    def add(self, name: str, value: SupportsFloat) -> None:
        """Add to a sum."""
        self.sums[name].append(float(value))

    def span(self, name: str, low: float, high: float) -> None:
        """Widen a range by the lowest and highest number of a chunk."""
        self.lows[name] = min(self.lows.get(name, math.inf), float(low))
        self.highs[name] = max(self.highs.get(name, -math.inf), float(high))

    def add_table(self, name: str, values: NDArray[np.float64]) -> None:
        """Add to a table of sums, [k]; a longer one widens the table."""
        before = self.tables.get(name, np.zeros(0))
        wide = np.zeros(max(len(before), len(values)))
        wide[: len(before)] += before
        wide[: len(values)] += values
        self.tables[name] = wide

    def add_exact(
        self, name: str, values: NDArray[np.float64], keys: NDArray[np.int64] | None = None
    ) -> None:
        """Add finite numbers, [n], to the sums of their keys, [n]; without keys, to one sum.

        The sums are exact, so they do not depend on chunks or order.
        """
        keys = np.zeros(len(values), np.int64) if keys is None else keys
        before = self.digits.get(name, zero_digits(1))
        count = max(int(keys.max(initial=0)) + 1, len(before))
        wide = np.concatenate([before, zero_digits(count - len(before))])
        self.digits[name] = add_digits(wide, exact_digits(values, keys, count))

    def exact_means(self, name: str, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sum of each key over its count, [keys], rounded once; 0 of no numbers."""
        digits = self.digits.get(name, zero_digits(len(counts)))
        return round_digits(digits, counts.clip(1))

    def add_of_step(self, step: Label, name: str, value: float) -> None:
        """Add to a sum of one step."""
        sums = self.steps.setdefault(step, {})
        sums[name] = sums.get(name, 0.0) + value

    def total(self, name: str) -> float:
        """Return a sum; 0 if nothing was added."""
        return math.fsum(self.sums.get(name, ()))

    def count(self, name: str) -> int:
        """Return a sum of whole numbers."""
        return int(self.total(name))

    def mean(self, name: str, of: str) -> float | None:
        """Return one sum over another; None if the latter is 0."""
        base = self.total(of)
        return self.total(name) / base if base else None


_UNITS = 46  # binary digits behind the point
_COARSE = 12
_LARGEST = 2.0**22


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
            inside = np.clip(numbers, -_LARGEST, _LARGEST)
            coarse = np.rint(inside * 2.0**_COARSE)
            fine = np.rint((inside - coarse * 2.0**-_COARSE) * 2.0**_UNITS)
            # Of half a million numbers, both sums are below 2⁵³: float64 has them exactly.
            sums = [np.bincount(bins, part, BINS_OF_VALUES) for part in (coarse, fine)]
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


_HALF = 1 << 14  # bins on either side of 0
_OUTSIDE = 0.001  # share of the numbers that may lie outside the range, on either side


class GrowingHistogram:
    """Histogram of a stream of numbers of unknown range, in fixed memory.

    Bins are [i·w, (i+1)·w); w is a power of two and doubles as numbers get larger. The counts do
    not depend on chunks: w follows from the largest size alone, and bins of half the width add up
    exactly.
    """

    def __init__(self) -> None:
        self.count = 0
        """Finite numbers."""
        self._low, self._high = math.inf, -math.inf
        self._exponent: int | None = None
        self._counts = np.zeros(2 * _HALF + 1, np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count the finite numbers of an array, [n]."""
        finite = np.isfinite(values)
        finite = values if finite.all() else values[finite]
        if not len(finite):
            return
        self.count += len(finite)
        self._low = min(self._low, float(finite.min()))
        self._high = max(self._high, float(finite.max()))
        self._widen(max(abs(self._low), abs(self._high)))
        bins = np.zeros(len(finite), np.int64)
        if self._exponent is not None:
            scaled = finite * math.ldexp(1.0, -self._exponent)
            bins = np.floor(scaled, out=scaled).astype(np.int64)
            if self._exponent > 0:
                bins[(scaled == 0) & (finite < 0)] = -1  # underflows to 0 when scaled
        bins += _HALF
        self._counts += np.bincount(bins, minlength=2 * _HALF + 1)

    def _widen(self, size: float) -> None:
        """Double the width until numbers of this size have a bin."""
        if size == 0:
            return
        # size < 2**frexp(size)[1], so its bin is below _HALF and at least -_HALF
        exponent = max(math.frexp(size)[1], -960) - int(math.log2(_HALF))
        if self._exponent is None:
            self._exponent = exponent  # all numbers so far are 0, whose bin stays
        while self._exponent < exponent:
            self._counts = _joined_pairs(self._counts)
            self._exponent += 1

    def bins(self, most: int) -> Histogram | None:
        """Return at most so many bins that cover nearly all numbers; None if all are equal.

        At most 0.1 % of the numbers are outside, on either side.
        """
        if self._exponent is None or self._low == self._high:
            return None
        below = np.cumsum(self._counts)
        first = int(np.searchsorted(below, _OUTSIDE * self.count, side="right"))
        last = int(np.searchsorted(below, (1 - _OUTSIDE) * self.count, side="left"))
        joint = 1
        while (last - _HALF) // joint - (first - _HALF) // joint + 1 > most:
            joint *= 2
        bins = (np.arange(len(self._counts)) - _HALF) // joint
        least, largest = (first - _HALF) // joint, (last - _HALF) // joint
        inside = (bins >= least) & (bins <= largest)
        counts = np.bincount(bins[inside] - least, self._counts[inside], largest - least + 1)
        width = math.ldexp(joint, self._exponent)
        edges = [width * i for i in range(least, largest + 2)]
        return Histogram(edges, counts.astype(int).tolist())


def _joined_pairs(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the counts in bins of twice the width."""
    bins = (np.arange(len(counts)) - _HALF) // 2 + _HALF
    return np.bincount(bins, counts, len(counts)).astype(np.int64)
