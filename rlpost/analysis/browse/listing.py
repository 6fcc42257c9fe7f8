"""Sortable listings, and the list widget, which draws visible rows only.

Rows become text only when they are visible, so a million rows cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rlpost.display.controls import printable_line
from rlpost.display.text import column_format, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from textual.events import Click


_SAMPLE = 200  # rows that determine the width of a column
MOST_WIDE = 36


@dataclass(frozen=True)
class ListingColumn:
    """A column of a listing: a number for each row to sort by, and its format."""

    name: str
    values: NDArray[Any]
    """[n]; NaN sorts last."""
    write: Callable[[Any], str | Text]
    right: bool = True

    def width(self, *, ordered: bool = False) -> int:
        """Return the width that the heading and most rows need; with an arrow if `ordered`."""
        count = len(self.values)
        places = np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64))
        most = max((len(self.write(self.values[place])) for place in places), default=0)
        return min(MOST_WIDE, max(len(self.name) + ordered, most))


@dataclass(frozen=True)
class Listing:
    """Rows with ids and columns, in an order.

    Args:
        level: `steps`, `groups`, `responses` or `tokens`.
        ids: [n] rank of a step, code of a group, row of the input, or token.
        columns: [n] each.
        order: [n] positions in the order of the list.
        by: the column of the order; None: the original order.
    """

    level: str
    ids: NDArray[np.int64]
    columns: tuple[ListingColumn, ...]
    order: NDArray[np.int64]
    by: str | None = None
    descending: bool = False
    without_signal: NDArray[np.bool_] | None = None
    """[n] groups whose rewards are equal, which are dim; None if the rows are no groups."""

    @classmethod
    def of(
        cls,
        level: str,
        ids: NDArray[np.int64],
        columns: list[ListingColumn],
        without_signal: NDArray[np.bool_] | None = None,
    ) -> Listing:
        """Return a listing in the order of the rows."""
        order = np.arange(len(ids))
        return cls(level, ids, tuple(columns), order, without_signal=without_signal)

    def __len__(self) -> int:
        return len(self.ids)

    def id(self, place: int) -> int:
        """Return the id at a position of the list."""
        return int(self.ids[self.order[place]])

    def place_of(self, item: int) -> int | None:
        """Return the position of an id in the list; None if it is not listed."""
        positions = np.flatnonzero(self.ids[self.order] == item)
        return int(positions[0]) if len(positions) else None

    def headings(self) -> list[str | Text]:
        """Return the names of the columns, with an arrow at the one that orders the rows."""
        mark = "↓" if self.descending else "↑"
        return [column.name + mark * (column.name == self.by) for column in self.columns]

    def is_dim(self, place: int) -> bool:
        """Return whether a row is a group without signal."""
        return self.without_signal is not None and bool(self.without_signal[self.order[place]])

    def cells(self, place: int) -> list[str | Text]:
        """Return the texts of a row."""
        at = self.order[place]
        return [column.write(column.values[at]) for column in self.columns]

    def sorted_by(self, name: str | None, *, descending: bool) -> Listing:
        """Return the rows in the order of a column; ties in the original order, NaN last."""
        column = next((column for column in self.columns if column.name == name), None)
        if column is None:
            return replace(self, order=np.arange(len(self)), by=None, descending=False)
        values = column.values.astype(np.float64)
        order = np.argsort(-values if descending else values, kind="stable")
        return replace(self, order=order, by=column.name, descending=descending)


def whole(value: float) -> str:
    """Return an integer as text; a dash for NaN."""
    return "–" if math.isnan(value) else f"{int(value):,}"


def number_column(name: str, values: NDArray[np.float64]) -> ListingColumn:
    """Return a column of numbers with as many decimals each; a dash for NaN."""
    sizes = np.abs(values[np.isfinite(values)])
    write = column_format(float(sizes.max(initial=0.0)))
    return ListingColumn(name, values, lambda value: "–" if math.isnan(value) else write(value))


def share(value: float) -> str:
    """Return a share as a percentage; a dash for NaN."""
    return "–" if math.isnan(value) else percent(value)


_GAP = 2
_MORE = "›"


class RowList(ScrollView, can_focus=True):
    """A listing with a cursor; arrows, vim keys and the mouse move it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rowlist--head", "rowlist--cursor"}
    DEFAULT_CSS = """
    RowList { background: $background; scrollbar-size: 0 1; }
    RowList > .rowlist--head { color: $text-muted; }
    RowList > .rowlist--cursor { background: $primary 35%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("ctrl+d,pagedown", "page(1)", "half a screen down", show=False),
        Binding("ctrl+u,pageup", "page(-1)", "half a screen up", show=False),
        Binding("g,home", "go(0)", "first", show=False),
        Binding("G,end", "go(-1)", "last", show=False),
        Binding("H", "scroll_left", "scroll a wide list left", show=False),
        Binding("L", "scroll_right", "scroll it right", show=False),
        Binding("enter,l,right", "open", "open", key_display="⏎"),
    ]

    class Moved(Message):
        """The cursor moved to another row."""

    class Opened(Message):
        """The user opened the row under the cursor."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self.listing = Listing.of("", np.zeros(0, dtype=np.int64), [])
        self.cursor = 0
        self._widths: list[int] = []

    def show(self, listing: Listing, cursor: int = 0) -> None:
        """Show a listing, with the cursor on one of its rows."""
        self.listing = listing
        self._widths = [
            column.width(ordered=column.name == listing.by) for column in listing.columns
        ]
        self.cursor = self._closest(cursor)
        self.virtual_size = Size(sum(self._widths) + _GAP * len(self._widths), len(listing) + 1)
        self.refresh(layout=True)
        self._follow()
        self.post_message(self.Moved())

    def _closest(self, place: int) -> int:
        return max(0, min(place, len(self.listing) - 1))

    def move_to(self, place: int) -> None:
        """Move the cursor to a row, or the closest one."""
        old, self.cursor = self.cursor, self._closest(place)
        if self.cursor != old:
            self.refresh_line(old + 1)
            self.refresh_line(self.cursor + 1)
            self._follow()
            self.post_message(self.Moved())

    def _follow(self) -> None:
        """Scroll to the cursor; the heading covers the first line."""
        row = Region(0, self.cursor + 1, 1, 1)
        self.scroll_to_region(row, spacing=Spacing(top=1), animate=False, x_axis=False)

    def on_resize(self) -> None:
        """Scroll to the cursor."""
        self._follow()

    def action_move(self, rows: int) -> None:
        """Move the cursor by this number of rows."""
        self.move_to(self.cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by half a screen."""
        self.move_to(self.cursor + pages * max(1, self.size.height // 2))

    def action_go(self, place: int) -> None:
        """Go to a row, from the first or, below 0, from the last."""
        self.move_to(place % max(1, len(self.listing)))

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if len(self.listing):
            self.post_message(self.Opened())

    def on_click(self, event: Click) -> None:
        """Move the cursor to the row, or open the row under the cursor."""
        place = event.y - 1 + self.scroll_offset[1]
        if event.y and place == self.cursor:
            self.action_open()
        elif event.y and place < len(self.listing):
            self.move_to(place)

    def render_line(self, y: int) -> Strip:
        """Return a line of the widget: the heading or a row."""
        left, top = self.scroll_offset
        place = y - 1 + top
        width = self.scrollable_content_region.width
        if y == 0:
            line, style = self.listing.headings(), "rowlist--head"
        elif place < len(self.listing):
            line, style = self.listing.cells(place), "rowlist--cursor" * (place == self.cursor)
        else:
            return Strip.blank(width, self.rich_style)
        dim = y > 0 and self.listing.is_dim(place)
        strip = self._strip(line, "dim" * dim).crop_extend(left, left + width, None)
        if y == 0 and left + width < self.virtual_size.width - _GAP:
            strip = Strip([*strip.crop(0, width - 1), Segment(_MORE)])  # L scrolls to the others
        return strip.apply_style(self.get_component_rich_style(style) if style else self.rich_style)

    def _strip(self, cells: Sequence[str | Text], style: str) -> Strip:
        """Return a line; the column that orders the rows is bold."""
        line = Text(no_wrap=True, style=style)
        for cell, width, column in zip(cells, self._widths, self.listing.columns, strict=True):
            text = cell.copy() if isinstance(cell, Text) else Text(printable_line(cell))
            text.truncate(width, overflow="ellipsis")
            text.align("right" if column.right else "left", width)
            if column.name == self.listing.by:
                text.stylize("bold")
            line.append_text(text).append(" " * _GAP)
        return Strip(line.render(self.app.console))
