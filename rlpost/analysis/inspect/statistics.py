"""Numbers about numbers: exact means, quantiles, histograms, correlations.

Sums, minima and maxima that add up over pieces of a file.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import Histogram, Spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Label

    Floats = NDArray[np.floating[Any]] | NDArray[np.int64]


QUANTILES = {"p1": 0.01, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
BINS = 20


def exact_sum(values: Floats) -> Fraction:
    """The sum, exactly: the float nearest to it, the one nearest to what that left, and so on."""
    numbers = values.tolist()
    total = Fraction(0)
    while part := math.fsum(numbers):
        total += Fraction(part)
        numbers.append(-part)
    return total


def spread_of(values: Floats) -> Spread:
    """Mean, Bessel deviation, min and max of finite numbers; the same in any order."""
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
    """The mean, rounded once; None of nothing."""
    return float(exact_sum(values) / len(values)) if len(values) else None


def quantiles_of(values: Floats) -> dict[str, float]:
    """Quantiles, linear between neighbours; none of nothing."""
    if not len(values):
        return {}
    found = np.quantile(values.astype(np.float64), list(QUANTILES.values()))
    return dict(zip(QUANTILES, found.tolist(), strict=True))


def histogram_of(values: Floats, edges: list[float] | None = None) -> Histogram | None:
    """Counts in equal bins, or between edges; None where there is nothing to tell apart."""
    if not len(values) or (edges is None and values.min() == values.max()):
        return None
    counts, found = np.histogram(values.astype(np.float64), BINS if edges is None else edges)
    return Histogram(found.tolist(), counts.tolist())


def length_histogram(lengths: NDArray[np.int64]) -> Histogram | None:
    """Counts in bins whose width is a round whole number."""
    longest = int(lengths.max(initial=0))
    if not longest:
        return None
    rough = max(longest / BINS, 1)
    unit = 10 ** int(math.log10(rough))
    width = next(unit * step for step in (1, 2, 5, 10) if unit * step >= rough)
    return histogram_of(lengths, [float(x) for x in range(0, longest + width + 1, width)])


def pearson(left: Floats, right: Floats) -> float | None:
    """Pearson's correlation; None for fewer than 3 rows, or where one side is constant.

    Constant allows for rounding: a deviation of a billionth of the values' size is none.
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
    """Pearson's correlation of the ranks; equal values share their mean rank."""
    ranks = [pl.Series(side).rank().to_numpy() for side in (left, right)]
    return pearson(ranks[0], ranks[1])


@dataclass
class TokenTotals:
    """Named numbers of piece after piece; float sums are rounded once, at the end."""

    sums: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)
    tables: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    steps: dict[Label, dict[str, float]] = field(default_factory=dict)
    rooms: dict[str, NDArray[np.float64]] = field(default_factory=dict)

    def room(self, name: str, size: int) -> NDArray[np.float64]:
        """An array to write into, the same memory every time: fresh pages cost more than sums."""
        if len(self.rooms.setdefault(name, np.empty(0))) < size:
            self.rooms[name] = np.empty(size * 5 // 4)
        return self.rooms[name][:size]

    def add(self, name: str, value: SupportsFloat) -> None:
        """One more summand."""
        self.sums[name].append(float(value))

    def span(self, name: str, low: float, high: float) -> None:
        """Lowest and highest of a piece."""
        self.lows[name] = min(self.lows.get(name, math.inf), float(low))
        self.highs[name] = max(self.highs.get(name, -math.inf), float(high))

    def add_table(self, name: str, values: NDArray[np.float64]) -> None:
        """Summands by place, [k]; a longer one widens the table."""
        known = self.tables.get(name, np.zeros(0))
        wide = np.zeros(max(len(known), len(values)))
        wide[: len(known)] += known
        wide[: len(values)] += values
        self.tables[name] = wide

    def add_of_step(self, step: Label, name: str, value: float) -> None:
        """One more summand of a step's own sums."""
        sums = self.steps.setdefault(step, {})
        sums[name] = sums.get(name, 0.0) + value

    def total(self, name: str) -> float:
        """A sum; 0 for one that nothing was added to."""
        return math.fsum(self.sums.get(name, ()))

    def count(self, name: str) -> int:
        """A sum of whole numbers."""
        return int(self.total(name))

    def mean(self, name: str, of: str) -> float | None:
        """One sum over another; None where the latter is 0."""
        base = self.total(of)
        return self.total(name) / base if base else None
