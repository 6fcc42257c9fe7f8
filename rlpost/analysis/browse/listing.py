"""Sortable listings, and the list widget, which draws visible rows only.

Rows become text only when they are visible, so a million rows cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rlpost.io.text import printable, printable_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from textual.events import Click


_SAMPLE = 200  # rows that determine the width of a column
MOST_WIDE = 36


@dataclass(frozen=True)
class Column:
    """A column of a listing: a number for each row to sort by, and its format."""

    name: str
    values: NDArray[Any]
    """[n]; NaN sorts last."""
    write: Callable[[Any], str | Text]
    right: bool = True

    def width(self) -> int:
        """Return the width that the heading and most rows need."""
        count = len(self.values)
        places = np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64))
        most = max((len(self.write(self.values[place])) for place in places), default=0)
        return min(MOST_WIDE, max(len(self.name) + 1, most))


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
    columns: tuple[Column, ...]
    order: NDArray[np.int64]
    by: str | None = None
    descending: bool = False

    @classmethod
    def of(cls, level: str, ids: NDArray[np.int64], columns: list[Column]) -> Listing:
        """Return a listing in the order of the rows."""
        return cls(level, ids, tuple(columns), np.arange(len(ids)))

    def __len__(self) -> int:
        return len(self.ids)

    def id(self, place: int) -> int:
        """Return the id at a position of the list."""
        return int(self.ids[self.order[place]])

    def place_of(self, item: int) -> int | None:
        """Return the position of an id in the list; None if it is not listed."""
        positions = np.flatnonzero(self.ids[self.order] == item)
        return int(positions[0]) if len(positions) else None

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
    """Return an integer as text."""
    return f"{int(value):,}"


def decimal(value: float) -> str:
    """Return a number with 3 decimals, 4 under 0.1, 0 from 1000 on; a dash for NaN."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 1000:  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.4f}"  # noqa: PLR2004


def tenths(value: float) -> str:
    """Return a number with one decimal; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:,.1f}"


def share(value: float) -> str:
    """Return a share as a percentage without decimals; a dash for NaN."""
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


_GAP = 2
_MORE = "›"


class RowList(ScrollView, can_focus=True):
    """A listing with a cursor; arrows, vim keys and the mouse move it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rowlist--head", "rowlist--cursor"}
    DEFAULT_CSS = """
    RowList { background: $background; scrollbar-size: 0 1; }
    RowList > .rowlist--head { color: $text-muted; text-style: bold; }
    RowList > .rowlist--cursor { background: $primary 35%; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("ctrl+d,pagedown", "page(1)", "page down", show=False),
        Binding("ctrl+u,pageup", "page(-1)", "page up", show=False),
        Binding("g,home", "jump(0)", "first", show=False),
        Binding("G,end", "jump(-1)", "last", show=False),
        Binding("H", "scroll_left", "left", show=False),
        Binding("L", "scroll_right", "right", show=False),
        Binding("enter,l,right", "open", "open", key_display="⏎"),
    ]

    class Moved(Message):
        """The cursor moved to another row."""

    class Opened(Message):
        """The user opened the row under the cursor."""

    class HeadClicked(Message):
        """The user clicked the heading of a column to sort by it."""

        def __init__(self, column: str) -> None:
            self.column = column
            super().__init__()

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self.listing: Listing | None = None
        self.cursor = 0
        self._widths: list[int] = []

    def show(self, listing: Listing, cursor: int = 0) -> None:
        """Show a listing, with the cursor on one of its rows."""
        self.listing = listing
        self._widths = [column.width() for column in listing.columns]
        self.cursor = max(0, min(cursor, len(listing) - 1))
        self.virtual_size = Size(sum(self._widths) + _GAP * len(self._widths), len(listing) + 1)
        self.refresh(layout=True)
        self._follow()
        self.post_message(self.Moved())

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        """Return the width of all columns."""
        return self.virtual_size.width

    def action_move(self, rows: int) -> None:
        """Move the cursor by this number of rows."""
        self.move_to(self.cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by half a screen."""
        self.move_to(self.cursor + pages * max(1, self.size.height // 2))

    def action_jump(self, place: int) -> None:
        """Go to the first row, or with -1 to the last."""
        self.move_to(place if place >= 0 else len(self))

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if len(self):
            self.post_message(self.Opened())

    def __len__(self) -> int:
        return 0 if self.listing is None else len(self.listing)

    def __bool__(self) -> bool:
        return True  # a widget exists even without rows

    def move_to(self, place: int) -> None:
        """Move the cursor to a row, or the closest one."""
        place = max(0, min(place, len(self) - 1))
        if place != self.cursor:
            self.cursor = place
            self._follow()
            self.refresh()
            self.post_message(self.Moved())

    def _follow(self) -> None:
        """Scroll to the cursor; one line is the heading."""
        seen = max(1, self.size.height - 1)
        top = int(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + seen:
            self.scroll_to(y=self.cursor - seen + 1, animate=False)

    def on_resize(self) -> None:
        """Scroll to the cursor."""
        self._follow()

    def on_click(self, event: Click) -> None:
        """Move the cursor to the row, open the row under the cursor, or sort by a heading."""
        if event.y == 0:
            name = self._column_at(event.x + int(self.scroll_offset.x))
            if name is not None:
                self.post_message(self.HeadClicked(name))
            return
        place = event.y - 1 + int(self.scroll_offset.y)
        if place >= len(self):
            return
        if place == self.cursor:
            self.action_open()
        self.move_to(place)

    def _column_at(self, x: int) -> str | None:
        end = 0
        for column, width in zip(
            self.listing.columns if self.listing else (), self._widths, strict=False
        ):
            end += width + _GAP
            if x < end:
                return column.name
        return None

    def render_line(self, y: int) -> Strip:
        """Return a line of the widget: the heading or a row."""
        place = y - 1 + int(self.scroll_offset.y)
        base = self.rich_style
        if self.listing is None or place >= len(self.listing):
            return Strip.blank(self.size.width, base)
        if y == 0:
            line, style = self._heading(), self.get_component_rich_style("rowlist--head")
        else:
            line, style = self._line(self.listing.cells(place)), base
            if place == self.cursor:
                style = self.get_component_rich_style("rowlist--cursor")
        segments = [
            segment._replace(text=printable(segment.text))
            for segment in line.render(self.app.console)
        ]
        strip = Strip(segments).crop(int(self.scroll_offset.x)).apply_style(Style.null())
        width = self.size.width
        strip = strip.extend_cell_length(width).crop(0, width)
        seen = self.scrollable_content_region.width
        if y == 0 and int(self.scroll_offset.x) + seen < self.virtual_size.width - _GAP:
            strip = Strip([*strip.crop(0, seen - 1), Segment(_MORE)])  # L scrolls to the others
            strip = strip.extend_cell_length(width)
        return strip.apply_style(style)

    def _heading(self) -> Text:
        assert self.listing is not None
        mark = "↓" if self.listing.descending else "↑"
        names = [
            column.name + (mark if column.name == self.listing.by else "")
            for column in self.listing.columns
        ]
        return self._line([*names])

    def _line(self, cells: list[str | Text]) -> Text:
        assert self.listing is not None
        line = Text(no_wrap=True)
        for cell, width, column in zip(cells, self._widths, self.listing.columns, strict=True):
            text = cell.copy() if isinstance(cell, Text) else Text(printable_line(cell))
            text.truncate(width, overflow="ellipsis")
            room = " " * (width - text.cell_len)
            line.append_text(Text(room) + text if column.right else text + Text(room))
            line.append(" " * _GAP)
        return line
