"""Sums, minima and maxima that add up over pieces of a file."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, SupportsFloat

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.inspect.model_responses import Label


@dataclass
class Tally:
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
