"""Agreement of two columns of numbers: correlations, signs, differences, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

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

    def add(self, left: Numbers, right: Numbers) -> None:
        """Count more pairs, [n] each."""
        product = np.sign(left) * np.sign(right)
        zeros = (left == 0).astype(np.int64) + (right == 0)
        self.same += int((product > 0).sum())
        self.opposite += int((product < 0).sum())
        self.one_zero += int((zeros == 1).sum())
        self.both_zero += int((zeros == 2).sum())  # noqa: PLR2004

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
    identical: int = 0
    distance: float = 0.0
    """Sum of absolute differences."""
    largest: float = 0.0
    """Largest absolute difference."""

    @classmethod
    def of(cls, left: Numbers, right: Numbers) -> Agreement:
        """Return the agreement of two whole columns."""
        agreement = cls()
        agreement.add(left, right)
        return agreement

    def add(self, left: Numbers, right: Numbers) -> None:
        """Add more pairs, [n] float64 each; pairs with NaN or infinite numbers are ignored."""
        finite = np.isfinite(left) & np.isfinite(right)
        if not finite.all():
            left, right = left[finite], right[finite]
        count = len(left)
        if count == 0:
            return
        means = float(left.mean()), float(right.mean())
        x, y = left - means[0], right - means[1]
        total = self.count + count
        off = means[0] - self.left, means[1] - self.right
        weight = self.count * count / total
        self.left_squares += float(x @ x) + off[0] ** 2 * weight
        self.right_squares += float(y @ y) + off[1] ** 2 * weight
        self.products += float(x @ y) + off[0] * off[1] * weight
        self.left += off[0] * count / total
        self.right += off[1] * count / total
        self.count = total
        differences = np.abs(left - right)
        self.identical += int((left == right).sum())
        self.distance += float(differences.sum())
        self.largest = max(self.largest, float(differences.max()))
        self.signs.add(left, right)

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
            "identical": self.identical,
            "difference": {
                "mean": self.distance / self.count if self.count else None,
                "max": self.largest if self.count else None,
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

    def add(self, values: Numbers) -> None:
        """Add more numbers, [n]; NaN and infinite ones are ignored."""
        values = values[np.isfinite(values)]
        if not len(values):
            return
        mean, count = float(values.mean()), len(values)
        total, off = self.count + count, mean - self.mean
        self.squares += float(np.square(values - mean).sum()) + off**2 * self.count * count / total
        self.mean += off * count / total
        self.count = total
        self.low, self.high = (
            min(self.low, float(values.min())),
            max(self.high, float(values.max())),
        )
        self.zeros += int((values == 0).sum())

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
