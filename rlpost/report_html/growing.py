"""A histogram of a stream of numbers of unknown range, in fixed memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rlpost.inspect.model import Histogram, Spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HALF = 1 << 14  # bins on either side of 0
_OUTSIDE = 0.001  # share of the numbers that may lie outside the shown range, on either side


class GrowingHistogram:
    """Counts in bins [i·w, (i+1)·w); w is a power of two and doubles as numbers get larger.

    The counts do not depend on how the stream is cut: w follows from the largest size alone, and
    bins of half the width add up exactly.
    """

    def __init__(self) -> None:
        self.count = 0
        self.zeros = 0
        self.left_out = 0
        """NaN and infinite numbers."""
        self.low, self.high = math.inf, -math.inf
        self._exponent: int | None = None
        self._bins = np.zeros(2 * _HALF + 1, np.int64)
        self._mean = self._squares = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Count some numbers, [n]."""
        finite = values[np.isfinite(values)]
        self.left_out += len(values) - len(finite)
        if not len(finite):
            return
        self._moments(finite)
        self.zeros += int((finite == 0).sum())
        self.low = min(self.low, float(finite.min()))
        self.high = max(self.high, float(finite.max()))
        self._widen(max(abs(self.low), abs(self.high)))
        places = np.zeros(len(finite), np.int64)
        if self._exponent is not None:
            scaled = np.ldexp(finite, -self._exponent)
            places = np.floor(scaled).astype(np.int64)
            places[(scaled == 0) & (finite < 0)] = -1  # too small to be told from 0 once scaled
        self._bins += np.bincount(places + _HALF, minlength=2 * _HALF + 1)

    def _moments(self, values: NDArray[np.float64]) -> None:
        """Mean and squares of two sets from those of each (Chan, Golub and LeVeque, 1979)."""
        mean, own = float(values.mean()), len(values)
        squares = float(((values - mean) ** 2).sum())
        total, apart = self.count + own, mean - self._mean
        self._squares += squares + apart * apart * self.count * own / total
        self._mean += apart * own / total
        self.count = total

    def _widen(self, size: float) -> None:
        """Bins so wide that numbers up to a size have a place."""
        if size == 0:
            return
        # size < 2**frexp(size)[1], so a place lies below _HALF and not below -_HALF
        exponent = max(math.frexp(size)[1], -960) - int(math.log2(_HALF))
        if self._exponent is None:
            self._exponent = exponent  # what was counted before is 0, whose bin stays
        while self._exponent < exponent:
            self._bins = _halved(self._bins)
            self._exponent += 1

    @property
    def spread(self) -> Spread:
        """Mean, Bessel deviation, min and max."""
        if not self.count:
            return Spread(0, None, None, None, None)
        deviation = math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0
        return Spread(self.count, self._mean, deviation, self.low, self.high)

    def shown(self, most: int) -> tuple[Histogram, int] | None:
        """At most so many bins where nearly all numbers are, and how many lie outside them.

        None where there is no number but 0.
        """
        if self._exponent is None or self.low == self.high:
            return None
        below = np.cumsum(self._bins)
        first = int(np.searchsorted(below, _OUTSIDE * self.count, side="right"))
        last = int(np.searchsorted(below, (1 - _OUTSIDE) * self.count, side="left"))
        joint = 1
        while (last - _HALF) // joint - (first - _HALF) // joint + 1 > most:
            joint *= 2
        places = (np.arange(len(self._bins)) - _HALF) // joint
        least, largest = (first - _HALF) // joint, (last - _HALF) // joint
        inside = (places >= least) & (places <= largest)
        counts = np.bincount(places[inside] - least, self._bins[inside], largest - least + 1)
        width = math.ldexp(joint, self._exponent)
        edges = [width * place for place in range(least, largest + 2)]
        return Histogram(edges, counts.astype(int).tolist()), self.count - int(counts.sum())


def _halved(bins: NDArray[np.int64]) -> NDArray[np.int64]:
    """The counts in bins of twice the width."""
    places = (np.arange(len(bins)) - _HALF) // 2 + _HALF
    return np.bincount(places, bins, len(bins)).astype(np.int64)
