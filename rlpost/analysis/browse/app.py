"""The browser application: a list, a preview of the item under its cursor, and the keys."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import Footer, Input, Static

from rlpost.analysis.browse.listing import RowList
from rlpost.analysis.browse.navigation import Navigation, preview_of
from rlpost.analysis.responses.index import search_rows
from rlpost.analysis.responses.reader import ResponseReader
from rlpost.analysis.responses.token_colors import COLOURS, NAMES
from rlpost.display.console import Shown
from rlpost.display.controls import printable
from rlpost.errors import RlpostError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import RenderableType

    from rlpost.analysis.responses.index import Index


WIDE = 110  # columns of a terminal with the preview beside the list
_PAUSE = 0.04  # seconds from the last move to the preview


class Browser(App[None]):
    """Steps, groups, responses and tokens of an indexed input; `?` lists the keys beside them.

    Args:
        index: of the input; KL and advantages are listed after `Index.number`.
        selected: which rows of the input the index has, for the line on top.
    """

    CSS = """
    #where { height: 1; padding: 0 1; background: $panel; color: $text; }
    #body { layout: horizontal; height: 1fr; }
    #list { width: auto; min-width: 55%; max-width: 65%; padding: 0 1; }
    #side { width: 1fr; padding: 0 1; scrollbar-size: 0 1; border-left: solid $panel-lighten-2; }
    .narrow #body { layout: vertical; }
    .narrow #list, .narrow #side { width: 1fr; max-width: 100%; height: 1fr; }
    .narrow #side { border-left: none; border-top: solid $panel-lighten-2; }
    #ask { display: none; dock: bottom; }
    #ask.open { display: block; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [  # the footer fits 80 columns
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("h,left,escape,backspace", "up", "back", key_display="h"),
        Binding(
            "right_square_bracket,full_stop",
            "step(1)",
            "step",
            key_display="] [",
            tooltip="the next one, of the same prompt if one is open",
        ),
        Binding("left_square_bracket,comma", "step(-1)", "previous step", show=False),
        Binding("n", "sibling(1)", "next", tooltip="item, such as a turn; or match of the search"),
        Binding("N,p", "sibling(-1)", "previous", show=False),
        Binding("s", "sort", "sort", tooltip="by the next column"),
        Binding("S", "reverse", "reverse the order", show=False),
        Binding("slash", "ask", "search", key_display="/", tooltip="in prompts and responses"),
        Binding("x", "clear", "clear the search", show=False),
        Binding("c", "colour", "colour tokens by the next number", show=False),
        Binding("J,space", "scroll_side(1)", "scroll the preview down", show=False),
        Binding("K,b", "scroll_side(-1)", "scroll the preview up", show=False),
    ]

    def __init__(self, index: Index, selected: str = "") -> None:
        super().__init__()
        self._selected = selected
        self._search = ""
        self.index = index
        self.reader = ResponseReader(index, COLOURS, whole=True)
        self.navigation = Navigation(
            index, self.reader, self.reader.measures[0] if self.reader.measures else None
        )

    def compose(self) -> ComposeResult:
        """Yield the line with the position, the list, the preview, and the keys."""
        yield Static(id="where")
        with Container(id="body"):
            yield RowList(id="list")
            with VerticalScroll(id="side", can_focus=False):
                yield Static(id="preview")
        yield Input(id="ask", placeholder="search prompts and responses")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Show the top level."""
        self.theme = "nord"
        self._list.focus()
        self._refresh()

    @property
    def _list(self) -> RowList:
        return self.query_one("#list", RowList)

    def on_resize(self) -> None:
        """Place the preview beside the list, or below it."""
        self.screen.set_class(self.size.width < WIDE, "narrow")

    def _refresh(self) -> None:
        """Show the current listing."""
        self._list.show(self.navigation.top.listing, self.navigation.top.cursor)
        self._show_position()

    def _show_position(self) -> None:
        level, kept = self.navigation.top, int(self.navigation.listings.kept.sum())
        path = Path(self.index.made_of.named(self.index.source.name)).name
        count = len(level.listing)
        place = f"{level.cursor + 1:,} of {count:,}" if count else "none"
        notes = [f"search: {self._search}"] if self._search else []
        notes += [self._selected] if self._selected else []
        counts = f"  {kept:,} of {len(self.index):,} responses" if kept < len(self.index) else ""
        line = Text.assemble(
            (printable(" › ".join([path, *self.navigation.where()])), "bold"),
            f"  {level.level} {place}",
            (printable("".join(f"  {note}" for note in notes)), "italic"),
            counts,
            no_wrap=True,
        )
        self.query_one("#where", Static).update(line)

    # Moving

    def on_row_list_moved(self) -> None:
        """Show the preview of the item under the cursor after a pause."""
        self.navigation.top.cursor = self._list.cursor
        self._show_position()
        self.set_timer(_PAUSE, self._preview)

    def on_row_list_opened(self) -> None:
        """Open the item under the cursor."""
        lowest = self.navigation.top.level == "tokens"
        otherwise = "a token is the lowest level" if lowest else "this response has no tokens"
        self._moved(self.navigation.open(), otherwise)

    def action_up(self) -> None:
        """Close the input line, or go up a level."""
        if self.query_one("#ask").has_class("open"):
            self._close_input()
            return
        self._moved(self.navigation.back(), "this is the top level; q quits")

    def action_step(self, delta: int) -> None:
        """Go to the next or previous step, of the same prompt."""
        which = "later" if delta > 0 else "earlier"
        inside = self.navigation.top.level in ("responses", "tokens")
        self._moved(self.navigation.step(delta), f"no {which} step{' has this prompt' * inside}")

    def action_sibling(self, delta: int) -> None:
        """Go to the next or previous item of the level above."""
        which = "last" if delta > 0 else "first"
        self._moved(self.navigation.sibling(delta), f"this is the {which} one")

    def _moved(self, moved: bool, otherwise: str) -> None:  # noqa: FBT001
        if moved:
            self._refresh()
        else:
            self.notify(otherwise, timeout=2)

    def action_sort(self) -> None:
        """Sort by the next column."""
        name = self.navigation.next_column()
        self._sort(name, descending=name not in ("step", "prompt", "row", "token", "domain", None))

    def action_reverse(self) -> None:
        """Reverse the order."""
        listing = self.navigation.top.listing
        self._sort(listing.by, descending=not listing.descending)

    def _sort(self, name: str | None, *, descending: bool) -> None:
        self.navigation.sort(name, descending=descending)
        self._refresh()

    def action_scroll_side(self, pages: int) -> None:
        """Scroll the preview."""
        side = self.query_one("#side", VerticalScroll)
        side.scroll_relative(y=pages * max(1, side.size.height // 2), animate=False)

    def action_colour(self) -> None:
        """Colour tokens by the next of log-prob, KL and advantage."""
        measures = [*self.reader.measures, None, *self.reader.measures]
        if self.index.sized_by is None or measures == [None]:
            self.notify("the file has no tokens with log-probs, KL or advantages", timeout=2)
            return
        self.navigation.colour = measures[measures.index(self.navigation.colour) + 1]
        if self.navigation.top.level == "tokens":
            self.navigation.keep(self.navigation.listings.kept)
        self._refresh()
        self.notify(f"colour: {NAMES.get(str(self.navigation.colour), 'none')}", timeout=1)

    def action_help(self) -> None:
        """Show the keys beside the list, or hide them."""
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    # Search

    def action_ask(self) -> None:
        """Open the input line for a search."""
        ask = self.query_one("#ask", Input)
        ask.value = self._search
        ask.add_class("open")
        ask.focus()

    def _close_input(self) -> None:
        self.query_one("#ask").remove_class("open")
        self._list.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search."""
        self._close_input()
        self._find(event.value.strip())

    @work(thread=True, group="search")
    def _find(self, text: str) -> None:
        """Search in a thread, because it streams columns."""
        try:
            kept = search_rows(text, self.index)
        except RlpostError as error:
            kept, problem = np.zeros(0, np.bool_), str(error)
        else:
            problem = f"{text}: no response matches"
        if kept.any():
            self.call_from_thread(self._keep, text, kept)
        else:
            notify = partial(self.notify, markup=False, severity="warning", timeout=5)
            self.call_from_thread(notify, printable(problem))

    def _keep(self, text: str, kept: NDArray[np.bool_]) -> None:
        self._search = text
        self.navigation.keep(kept)
        if text:
            self.navigation.flat()
        self._refresh()

    def action_clear(self) -> None:
        """Remove the search."""
        self._keep("", np.ones(len(self.index), np.bool_))

    # The preview

    def _preview(self) -> None:
        self._read(self.navigation.top.level, self.navigation.top.id)

    @work(thread=True, exclusive=True, group="preview")
    def _read(self, level: str, item: int | None) -> None:
        def is_current() -> bool:
            return (level, item) == (self.navigation.top.level, self.navigation.top.id)

        if not is_current():
            return
        try:
            side = preview_of(self.navigation, level, item, self._search)
        except RlpostError as error:
            side = Text(str(error), style="bold red")
        if is_current():
            self.call_from_thread(self._show, side)

    def _show(self, side: RenderableType) -> None:
        self.query_one("#preview", Static).update(Shown(side))
        self.query_one("#side", VerticalScroll).scroll_home(animate=False)
