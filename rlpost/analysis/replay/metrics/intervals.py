"""Intervals of a number, one for each step, and the shortest number that they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

_DIGITS = 4
"""Significant digits that a number of a configuration has at most."""
_MOST_NUMBERS = 12


class Overlap(NamedTuple):
    """What the most intervals have in common."""

    low: Numbers
    """[...]."""
    high: Numbers
    """[...]."""
    inside: NDArray[np.bool_]
    """[..., s]: the interval has it."""


def overlap(low: Numbers, high: Numbers) -> Overlap:
    """Return what the most intervals have in common; an interval with low > high is empty.

    Args:
        low: [..., s].
        high: [..., s].
    """
    points = low[..., :, None]  # the most intervals overlap at the lower end of one of them
    inside = (low[..., None, :] <= points) & (points <= high[..., None, :])
    best = inside.sum(-1).argmax(-1)
    inside = np.take_along_axis(inside, best[..., None, None], -2)[..., 0, :]
    lowest = np.where(inside, low, -np.inf).max(-1)
    return Overlap(lowest, np.where(inside, high, np.inf).min(-1), inside)


def round_numbers(low: float, high: float) -> list[float]:
    """Return the numbers with the fewest digits in an interval, then those with one digit more.

    >>> round_numbers(0.2696, 0.2722)
    [0.27, 0.271, 0.272]
    """
    if not 0 < low <= high < np.inf:
        return []
    found: dict[float, None] = {}
    for digits in range(1, _DIGITS + 1):
        unit, last = 10.0 ** (np.floor(np.log10(high)) + 1 - digits), len(found) > 0
        first, end = np.ceil(low / unit), np.floor(high / unit)
        numbers = np.arange(first, min(end, first + _MOST_NUMBERS) + 1) * unit
        rounded = (float(f"{one:.{digits}g}") for one in numbers)
        found |= dict.fromkeys(one for one in rounded if low <= one <= high)
        if last:
            break
    return [*found]


def shortest(low: float, high: float) -> float | None:
    """Return the number with the fewest digits in an interval; None with more than 4.

    >>> shortest(0.27996, 0.28003), shortest(0.271828, 0.271829)
    (0.28, None)
    """
    if not np.isfinite([low, high]).all():
        return None
    numbers = (float(f"{(low + high) / 2:.{digits}g}") for digits in range(1, _DIGITS + 1))
    return next((one for one in numbers if low <= one <= high), None)
