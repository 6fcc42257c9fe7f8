"""A list of things with columns, sorted by one of them; rows become text only when shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from rich.text import Text

_SAMPLE = 200  # rows that are looked at for the width of a column
MOST_WIDE = 36


@dataclass(frozen=True)
class Column:
    """A column of a listing: a number for each row to sort by, and how it is written."""

    name: str
    values: NDArray[Any]
    """[n]; NaN sorts last."""
    write: Callable[[Any], str | Text]
    right: bool = True

    def width(self) -> int:
        """Cells that the heading and most rows need."""
        count = len(self.values)
        places = np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64))
        most = max((len(self.write(self.values[place])) for place in places), default=0)
        return min(MOST_WIDE, max(len(self.name) + 1, most))


@dataclass(frozen=True)
class Listing:
    """Rows with ids and columns, in an order.

    Args:
        level: `steps`, `groups`, `responses` or `tokens`.
        ids: [n] what the rows are: a step's rank, a group's code, a row of the input, a token.
        columns: [n] each.
        order: [n] positions, as they are listed.
        by: the column that they are sorted by; None: as they came.
    """

    level: str
    ids: NDArray[np.int64]
    columns: tuple[Column, ...]
    order: NDArray[np.int64]
    by: str | None = None
    descending: bool = False

    @classmethod
    def of(cls, level: str, ids: NDArray[np.int64], columns: list[Column]) -> Listing:
        """In the order in which the rows come."""
        return cls(level, ids, tuple(columns), np.arange(len(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def id(self, place: int) -> int:
        """What stands at a place of the list."""
        return int(self.ids[self.order[place]])

    def place_of(self, item: int) -> int | None:
        """Where something stands in the list."""
        found = np.flatnonzero(self.ids[self.order] == item)
        return int(found[0]) if len(found) else None

    def cells(self, place: int) -> list[str | Text]:
        """The texts of a row."""
        at = self.order[place]
        return [column.write(column.values[at]) for column in self.columns]

    def sorted_by(self, name: str | None, *, descending: bool) -> Listing:
        """The same rows in the order of a column; equal ones as they came, NaN last."""
        column = next((column for column in self.columns if column.name == name), None)
        if column is None:
            return replace(self, order=np.arange(len(self)), by=None, descending=False)
        values = column.values.astype(np.float64)
        order = np.argsort(-values if descending else values, kind="stable")
        return replace(self, order=order, by=column.name, descending=descending)


def whole(value: float) -> str:
    """A whole number."""
    return f"{int(value):,}"


def decimal(value: float) -> str:
    """Three decimals, four under 0.1, none over 1000; a dash for NaN."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 1000:  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.4f}"  # noqa: PLR2004


def tenths(value: float) -> str:
    """One decimal; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:,.1f}"


def share(value: float) -> str:
    """A share as whole per cent."""
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"
