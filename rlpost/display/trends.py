"""Trends over steps: a line of blocks for each number, with its first, least, greatest and last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlpost.display.charts import means_of, spark
from rlpost.display.picture import MOST_BLOCKS
from rlpost.display.tables import TextTable
from rlpost.display.text import aligned, percent

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Trend:
    """A number of each step, in the order of steps."""

    name: str
    values: Sequence[float | None]
    """None where a step has no such number, whose block is blank."""
    share: bool = False
    """Whether the numbers are shares, which are printed as percentages."""

    @property
    def row(self) -> tuple[str, ...]:
        """The name, the blocks, and the first, least, greatest and last number."""
        numbers = [value for value in self.values if value is not None]
        ends = [self.values[0], min(numbers), max(numbers), self.values[-1]]
        texts = [*map(percent, ends)] if self.share else aligned(ends)
        bounds = (0, 1) if self.share else (min(numbers), max(numbers))
        return self.name, spark(means_of(self.values, MOST_BLOCKS), bounds), *texts


def trend_table(name: str, labels: Sequence[object], trends: Sequence[Trend]) -> TextTable:
    """Return the table of some trends; without those that no step has a number of.

    Args:
        name: of what the labels are, such as `step`.
        labels: of the steps, in their order; two or more.
        trends: a number of each step.
    """
    rows = [trend.row for trend in trends if any(value is not None for value in trend.values)]
    heading = f"by {name}, {labels[0]} to {labels[-1]}"
    return TextTable((heading, "", "first", "min", "max", "last"), rows, text=(0, 1))
