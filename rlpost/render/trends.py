"""Numbers by step or domain: a column of each, or a line of blocks with its ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlpost.display.charts import means_of, spark
from rlpost.display.picture import MOST_BLOCKS
from rlpost.display.tables import MOST_ROWS, TextTable, elided
from rlpost.display.text import aligned, number, percent

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Trend:
    """A number of each step or domain, in their order."""

    name: str
    values: Sequence[float | None]
    """None where a step has no such number, whose block is blank."""
    share: bool = False
    """Whether the numbers are shares, which are printed as percentages."""
    digits: int | None = None
    """Of each number; None: those of the largest."""

    def texts(self, order: Sequence[int]) -> list[str]:
        """Return the numbers at some places as texts."""
        values = [self.values[place] for place in order]
        if self.share:
            return [*map(percent, values)]
        if self.digits is None:
            return aligned(values)
        return [number(value, digits=self.digits) for value in values]

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


def slice_table(
    name: str,
    labels: Sequence[object],
    counts: tuple[str, Sequence[int]],
    trends: Sequence[Trend],
    *,
    order: Sequence[int] | None = None,
    most: int = MOST_ROWS,
    title: str = "",
) -> TextTable:
    """Return the table with a row for each step or domain.

    Args:
        name: of what the labels are.
        labels: of the steps or domains.
        counts: what they have, and how many of it.
        trends: numbers of each.
        order: places of those that are shown; None: all.
        most: rows, at most, the first and the last.
        title: of the table.
    """
    order = range(len(labels)) if order is None else order
    cells = [[f"{counts[1][i]:,}" for i in order], *(trend.texts(order) for trend in trends)]
    rows = [*zip([str(labels[i]) for i in order], *cells, strict=True)]
    return TextTable((name, counts[0], *(x.name for x in trends)), elided(rows, most), title)
