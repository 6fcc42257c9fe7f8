"""The difference of recorded numbers from computed ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Mask = NDArray[np.bool_]

Json = dict[str, Any]
TOLERANCE = 1e-4
"""Relative difference that float32 arithmetic in another order can make."""
_ABSOLUTE = 1e-2
"""The absolute tolerance is this share of the relative one, of numbers near 1."""


def check_tolerance(tolerance: float) -> None:
    """Raise UsageError for a tolerance that is no number from 0 on."""
    if not 0 <= tolerance < math.inf:
        raise UsageError(f"--tolerance {tolerance}: a number from 0 on is needed")


@dataclass(frozen=True)
class Difference:
    """Recorded and computed numbers of a stage, element by element."""

    recorded: Numbers
    """[T] of tokens or [N] of responses, float64."""
    computed: Numbers
    """Of the same shape."""
    chosen: Mask
    """The elements that count: policy tokens, or responses, that both sides have."""
    slack: Numbers
    """Absolute tolerance of each element."""
    relative: float
    """Relative tolerance."""

    @property
    def distance(self) -> Numbers:
        """Absolute differences of all elements."""
        return np.abs(self.recorded - self.computed)

    @cached_property
    def wrong(self) -> Mask:
        """The elements that count and differ by more than the tolerance."""
        near = self.distance <= self.slack + self.relative * np.abs(self.computed)
        return self.chosen & ~near

    @property
    def equal(self) -> bool:
        """Whether no element differs by more than the tolerance."""
        return not bool(self.wrong.any())

    def facts(self, rows: NDArray[np.int64] | None = None, count: int = 0) -> Json:
        """Return counts, the share of equal elements, and the largest and median difference.

        Args:
            rows: [T] the response of each element, if these are tokens.
            count: number of responses.
        """
        chosen, wrong = self.chosen, self.wrong
        distance = self.distance[chosen]
        steps = ulps(self.recorded[chosen], self.computed[chosen])
        compared = int(chosen.sum())
        differing = np.flatnonzero(wrong) if rows is None else np.unique(rows[wrong])
        responses = len(chosen) if rows is None else count
        return {
            "compared": compared,
            "differing": int(wrong.sum()),
            "share_equal": 1.0 - float(wrong.sum()) / compared if compared else None,
            "identical": int((distance == 0).sum()),
            "responses": responses,
            "responses_differing": len(differing),
            "largest": finite(distance.max(initial=0.0)),
            "median": finite(np.median(distance)) if compared else None,
            "largest_ulps": finite(steps.max(initial=0.0)),
            "median_ulps": finite(np.median(steps)) if compared else None,
        }


@dataclass(frozen=True)
class ExpectedNumbers:
    """The recorded numbers of a stage, which those of recipes are compared with."""

    recorded: Numbers
    """[T] of tokens or [N] of responses, float64."""
    chosen: Mask
    """The elements that count; what is not finite is not compared."""
    outside: Mask
    """The other elements that are finite."""
    slack: Numbers
    """Absolute tolerance of each element."""
    relative: float
    """Relative tolerance."""

    @classmethod
    def of(
        cls, recorded: Numbers, chosen: Mask, size: Numbers, tolerance: float
    ) -> ExpectedNumbers:
        """Return recorded numbers with their tolerance.

        Args:
            recorded: [T] or [N].
            chosen: the elements that count, of the same shape.
            size: magnitude of the inputs, whose float32 rounding is an absolute error.
            tolerance: relative tolerance; one percent of it is the absolute one.
        """
        finite = np.isfinite(recorded)
        near = tolerance * _ABSOLUTE * (1.0 + size)
        return cls(recorded, chosen & finite, ~chosen & finite, near, tolerance)

    def against(self, computed: Numbers, slack: Numbers | None = None) -> Difference:
        """Return the difference from computed numbers, with more absolute tolerance."""
        near = self.slack if slack is None else self.slack + slack
        return Difference(self.recorded, computed, self.chosen, near, self.relative)


def ulps(left: Numbers, right: Numbers) -> Numbers:
    """Return how many float32 numbers two columns are apart, element by element."""
    return np.abs(_order(left) - _order(right))


def _order(values: Numbers) -> Numbers:
    """Return the number of each value among all float32 numbers, with 0 for 0."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits).astype(np.float64)


def finite(value: Any) -> float | None:
    """Return a number as JSON has it; None if it is NaN or infinite."""
    return float(value) if np.isfinite(value) else None
