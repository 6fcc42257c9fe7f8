"""Agreement of two columns of numbers: correlations, signs, differences, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.difference import DifferenceTotals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]


Json = dict[str, Any]


@dataclass
class SignCounts:
    """Counts of pairs with the same sign and with opposite signs; 0 has no sign."""

    same: int = 0
    opposite: int = 0
    one_zero: int = 0
    both_zero: int = 0

    @classmethod
    def of(cls, left: Numbers, right: Numbers) -> SignCounts:
        """Count pairs, [n] finite numbers each."""
        signs = (left > 0, left < 0), (right > 0, right < 0)
        (up, down), (also_up, also_down) = signs
        some = [int(np.count_nonzero(flags)) for pair in signs for flags in pair]
        same = int(np.count_nonzero(up & also_up) + np.count_nonzero(down & also_down))
        opposite = int(np.count_nonzero(up & also_down) + np.count_nonzero(down & also_up))
        one_zero = sum(some) - 2 * (same + opposite)
        return cls(same, opposite, one_zero, len(left) - same - opposite - one_zero)

    def add(self, part: SignCounts) -> None:
        """Add the counts of more pairs."""
        self.same += part.same
        self.opposite += part.opposite
        self.one_zero += part.one_zero
        self.both_zero += part.both_zero

    def facts(self) -> Json:
        """Return the counts and `agreement`: the share of same signs among pairs not both 0."""
        either = self.same + self.opposite + self.one_zero
        return {"agreement": self.same / either if either else None, **vars(self)}


@dataclass
class Agreement:
    """Moments of pairs of numbers, their signs and their differences.

    Means and centred sums are merged chunk by chunk (Chan, Golub and LeVeque 1979), which avoids
    cancellation.
    """

    signs: SignCounts = field(default_factory=SignCounts)
    count: int = 0
    left: float = 0.0
    right: float = 0.0
    left_squares: float = 0.0
    right_squares: float = 0.0
    products: float = 0.0
    distance: float = 0.0
    """Sum of absolute differences."""
    difference: DifferenceTotals = field(default_factory=DifferenceTotals)

    @classmethod
    def of(cls, left: Numbers, right: Numbers) -> Agreement:
        """Return the agreement of pairs, [n] float64 each; those not finite are ignored."""
        sums = left.sum(), right.sum()
        if not np.isfinite(sums).all():
            finite = np.isfinite(left) & np.isfinite(right)
            left, right = left[finite], right[finite]
            sums = left.sum(), right.sum()
        count = len(left)
        if not count:
            return cls()
        means = float(sums[0] / count), float(sums[1] / count)
        x, y = left - means[0], right - means[1]
        squares, products = (float(x @ x), float(y @ y)), float(x @ y)
        differences = np.subtract(left, right, out=x)
        apart = int(np.count_nonzero(np.abs(differences, out=differences)))
        distance, largest = float(differences.sum()), float(differences.max())
        signs = SignCounts.of(left, right)
        difference = DifferenceTotals(count, apart, count - apart, largest)
        return cls(signs, count, *means, *squares, products, distance, difference)

    def add(self, part: Agreement) -> None:
        """Add the agreement of more pairs."""
        if not part.count:
            return
        total = self.count + part.count
        off = part.left - self.left, part.right - self.right
        weight = self.count * part.count / total
        self.left_squares += part.left_squares + off[0] ** 2 * weight
        self.right_squares += part.right_squares + off[1] ** 2 * weight
        self.products += part.products + off[0] * off[1] * weight
        self.left += off[0] * part.count / total
        self.right += off[1] * part.count / total
        self.count = total
        self.distance += part.distance
        self.difference.add(part.difference)
        self.signs.add(part.signs)

    @property
    def pearson(self) -> float | None:
        """Pearson's correlation, -1 to 1; None if a side is constant or has under two pairs."""
        spread = (self.left_squares * self.right_squares) ** 0.5
        return max(-1.0, min(1.0, self.products / spread)) if spread > 0 else None

    def facts(self) -> Json:
        """Return everything as plain data."""
        return {
            "count": self.count,
            "pearson": self.pearson,
            "sign": self.signs.facts(),
            "identical": self.difference.identical,
            "difference": {
                "mean": self.distance / self.count if self.count else None,
                "max": self.difference.largest if self.count else None,
            },
        }


@dataclass
class ValueStats:
    """Mean, standard deviation, extremes and zeros of a column, chunk by chunk."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    zeros: int = 0

    @classmethod
    def of(cls, values: Numbers) -> ValueStats:
        """Return the statistics of numbers, [n]; NaN and infinite ones are ignored."""
        total = values.sum()
        if not np.isfinite(total):
            values = values[np.isfinite(values)]
            total = values.sum()
        count = len(values)
        if not count:
            return cls()
        mean = float(total / count)
        deviations = values - mean
        squares = float(np.square(deviations, out=deviations).sum())
        zeros = count - int(np.count_nonzero(values))
        return cls(count, mean, squares, float(values.min()), float(values.max()), zeros)

    def add(self, part: ValueStats) -> None:
        """Add the statistics of more numbers."""
        if not part.count:
            return
        total, off = self.count + part.count, part.mean - self.mean
        self.squares += part.squares + off**2 * self.count * part.count / total
        self.mean += off * part.count / total
        self.count = total
        self.low, self.high = min(self.low, part.low), max(self.high, part.high)
        self.zeros += part.zeros

    def facts(self) -> Json:
        """Return mean, standard deviation (Bessel), min, max, zeros; None without numbers."""
        if not self.count:
            return {"count": 0, "mean": None, "std": None, "min": None, "max": None, "zeros": 0}
        variance = self.squares / (self.count - 1) if self.count > 1 else 0.0
        return {
            "count": self.count,
            "mean": self.mean,
            "std": variance**0.5,
            "min": self.low,
            "max": self.high,
            "zeros": self.zeros,
        }


def spearman(left: Numbers, right: Numbers) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for ties; None as for Pearson's."""
    finite = np.isfinite(left) & np.isfinite(right)
    return Agreement.of(ranks(left[finite]), ranks(right[finite])).pearson


def ranks(values: Numbers) -> Numbers:
    """Return ranks from 1, [n]; equal numbers get the mean of their ranks."""
    _, positions, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[positions], dtype=np.float64)
