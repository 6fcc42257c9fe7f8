"""The list widget: draws the rows that are seen and no others, so a million rows cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rlpost.controls import in_line, shown

if TYPE_CHECKING:
    from textual.events import Click

    from rlpost.browse.listing import Listing

_GAP = 2
_MORE = "›"


class RowList(ScrollView, can_focus=True):
    """A listing with a cursor. Moves with arrows, vim keys and the mouse."""

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
        """The cursor is on another row."""

    class Opened(Message):
        """The row under the cursor is to be opened."""

    class HeadClicked(Message):
        """A column is to be sorted by."""

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
        """Room for all columns, where there is any."""
        return self.virtual_size.width

    def action_move(self, rows: int) -> None:
        """Move the cursor by some rows."""
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
        return True  # a widget is there, however few rows it has

    def move_to(self, place: int) -> None:
        """Put the cursor on a row, the nearest there is."""
        place = max(0, min(place, len(self) - 1))
        if place != self.cursor:
            self.cursor = place
            self._follow()
            self.refresh()
            self.post_message(self.Moved())

    def _follow(self) -> None:
        """Scroll so that the cursor is seen; one line is the heading's."""
        seen = max(1, self.size.height - 1)
        top = int(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + seen:
            self.scroll_to(y=self.cursor - seen + 1, animate=False)

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self._follow()

    def on_click(self, event: Click) -> None:
        """Move to the row, open the one that the cursor is on, or sort by the heading."""
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
        """One line of the widget: the heading, or a row."""
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
            segment._replace(text=shown(segment.text)) for segment in line.render(self.app.console)
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
            text = cell.copy() if isinstance(cell, Text) else Text(in_line(cell))
            text.truncate(width, overflow="ellipsis")
            room = " " * (width - text.cell_len)
            line.append_text(Text(room) + text if column.right else text + Text(room))
            line.append(" " * _GAP)
        return line
