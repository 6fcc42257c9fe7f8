"""The browser: a list, what is under its cursor beside it, and the keys that move through both.

The browser's help screen.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from rlpost.analysis.browse import preview
from rlpost.analysis.browse.filters import Narrowing
from rlpost.analysis.browse.listing import RowList
from rlpost.analysis.browse.trail import Trail
from rlpost.analysis.responses.rows import Reader
from rlpost.analysis.responses.token_colors import COLOURS, NAMES
from rlpost.display.console import Shown
from rlpost.errors import RlpostError
from rlpost.io.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from rlpost.analysis.browse.filters import Asked
    from rlpost.analysis.responses.index import Index


KEYS = (
    ("j k ↓ ↑", "move; g G first and last, ctrl+d ctrl+u half a screen"),
    ("l → enter", "open: steps, groups, responses, tokens"),
    ("h ← esc", "back"),
    ("] [", "next and previous step, of the same prompt where one is open"),
    ("n p", "next and previous of what is open; with a search the next hit"),
    ("a", "all responses in one list, of the step one is in"),
    ("s S", "sort by the next column; turn the order round (or click a heading)"),
    ("/", "search in prompts and responses"),
    ("f", "filter: reward<0.5 length>=20 kl>0.1 cut=1 prompt~arith step=2 std=0"),
    ("x", "clear search and filter"),
    ("c", "colour tokens by log-prob, KL, advantage"),
    ("m", "measure KL and advantages of all responses, for lists and filters"),
    ("J K", "scroll what stands beside the list (also space and b)"),
    ("H L", "scroll a wide list to the left and right"),
    ("q", "quit"),
)


class Help(ModalScreen[None]):
    """All keys; any of escape, q and ? closes it."""

    CSS = """
    Help { align: center middle; }
    #help { width: 84; max-width: 95%; height: auto; max-height: 90%; padding: 1 2;
            background: $panel; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "close"),
    ]

    def compose(self) -> ComposeResult:
        """The table of keys."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for key, what in KEYS:
            table.add_row(key, what)
        with VerticalScroll(id="help"):
            yield Static(Text("Keys\n", style="bold"))
            yield Static(table)


WIDE = 110  # columns from which on the preview stands beside the list
_PAUSE = 0.04  # seconds that the cursor rests before the preview is read
_ASKS: dict[Asked, str] = {
    "search": "search prompts and responses",
    "filter": "filter, such as reward<0.5 length>=20 step=2",
}


class Browser(App[None]):
    """Steps, groups, responses and tokens of an indexed input.

    Args:
        index: of the input; KL and advantages are listed once they are measured.
        condition: a filter line that holds from the beginning.

    Raises:
        UsageError: the filter line is wrong, or leaves nothing.
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
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,left,escape,backspace", "up", "back", key_display="h"),
        Binding("right_square_bracket,full_stop", "step(1)", "next step", key_display="]"),
        Binding("left_square_bracket,comma", "step(-1)", "previous", key_display="["),
        Binding("n", "sibling(1)", "next", show=False),
        Binding("N,p", "sibling(-1)", "previous", show=False),
        Binding("s", "sort", "sort"),
        Binding("S", "reverse", "reverse", show=False),
        Binding("slash", "ask('search')", "search", key_display="/"),
        Binding("f", "ask('filter')", "filter"),
        Binding("x", "clear", "clear", show=False),
        Binding("a", "flat", "all"),
        Binding("c", "colour", "colour"),
        Binding("m", "measure", "measure", show=False),
        Binding("J,space", "scroll_side(1)", "scroll", show=False),
        Binding("K,b", "scroll_side(-1)", "scroll", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, index: Index, condition: str = "") -> None:
        super().__init__()
        self.index = index
        self.reader = Reader(index, COLOURS, every=True)
        self.trail = Trail(
            index, self.reader, self.reader.measures[0] if self.reader.measures else None
        )
        self.narrowing = Narrowing(index)
        if condition:
            self.narrowing.ask("filter", condition)
            self.trail.keep(self.narrowing.kept)
        self._asked: Asked = "search"

    def compose(self) -> ComposeResult:
        """The line that says where one is, the list, its side, and the keys."""
        yield Static(id="where")
        with Container(id="body"):
            yield RowList(id="list")
            with VerticalScroll(id="side", can_focus=False):
                yield Static(id="preview")
        yield Input(id="ask")
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
        """Put the preview beside the list, or below it."""
        self.screen.set_class(self.size.width < WIDE, "narrow")

    def _refresh(self) -> None:
        """Show the current listing."""
        self._list.show(self.trail.top.listing, self.trail.top.cursor)
        self._say_where()

    def _say_where(self) -> None:
        shelf = self.trail.top
        name = Path(self.index.source.name).name
        line = Text(printable(" › ".join([name, *self.trail.where()])), style="bold", no_wrap=True)
        count = len(shelf.listing)
        place = f"{shelf.cursor + 1:,} of {count:,}" if count else "none"
        line.append(f"  {shelf.level} {place}", style="not bold")
        kept = int(self.trail.levels.kept.sum())
        for what, text in self.narrowing.texts.items():
            if text:
                line.append(f"  {what}: {text}", style="not bold italic")
        if kept < len(self.index):
            line.append(f"  {kept:,} of {len(self.index):,} responses", style="not bold")
        self.query_one("#where", Static).update(line)

    # Moving

    def on_row_list_moved(self) -> None:
        """Read what the cursor is on, once it rests."""
        self.trail.top.cursor = self._list.cursor
        self._say_where()
        self.set_timer(_PAUSE, self._preview)

    def on_row_list_opened(self) -> None:
        """Go down a level."""
        self._moved(self.trail.open(), "nothing is below a token")

    def on_row_list_head_clicked(self, event: RowList.HeadClicked) -> None:
        """Sort by a column, or turn the order round."""
        listing = self.trail.top.listing
        self._sort(event.column, descending=listing.by == event.column and not listing.descending)

    def action_up(self) -> None:
        """Go up a level, or close the question."""
        if self.query_one("#ask").has_class("open"):
            self._close_ask()
            return
        self._moved(self.trail.back(), "this is the top level; q quits")

    def action_step(self, delta: int) -> None:
        """The next or previous step, of the same prompt."""
        which = "later" if delta > 0 else "earlier"
        inside = self.trail.top.level in ("responses", "tokens")
        self._moved(self.trail.step(delta), f"no {which} step{' has this prompt' * inside}")

    def action_sibling(self, delta: int) -> None:
        """The next or previous of what one is in."""
        self._moved(self.trail.sibling(delta), f"no {'more' if delta > 0 else 'earlier'} ones")

    def action_flat(self) -> None:
        """All responses in one list."""
        self.trail.flat()
        self._refresh()

    def _moved(self, moved: bool, otherwise: str) -> None:  # noqa: FBT001
        if moved:
            self._refresh()
        else:
            self.notify(otherwise, timeout=2)

    def action_sort(self) -> None:
        """Sort by the next column."""
        name = self.trail.next_column()
        self._sort(name, descending=name not in ("step", "prompt", "row", "token", "domain", None))

    def action_reverse(self) -> None:
        """Turn the order round."""
        listing = self.trail.top.listing
        self._sort(listing.by, descending=not listing.descending)

    def _sort(self, name: str | None, *, descending: bool) -> None:
        self.trail.sort(name, descending=descending)
        self._refresh()

    def action_scroll_side(self, pages: int) -> None:
        """Scroll what stands beside the list."""
        side = self.query_one("#side", VerticalScroll)
        side.scroll_relative(y=pages * max(1, side.size.height // 2), animate=False)

    def action_colour(self) -> None:
        """Colour tokens by the next of log-prob, KL and advantage."""
        if len(known := [*self.reader.measures, None]) == 1:
            self.notify("the file has no log-probs, KL or advantages to colour by", timeout=2)
            return
        place = (known.index(self.trail.colour) + 1) % len(known)
        self.trail.colour = known[place]
        if self.trail.top.level == "tokens":
            self.trail.keep(self.trail.levels.kept)
        self._refresh()
        self.notify(f"colour: {NAMES.get(str(known[place]), 'none')}", timeout=1)

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(Help())

    # Asking

    def action_ask(self, what: Asked) -> None:
        """Open the line for a search or a filter."""
        ask = self.query_one("#ask", Input)
        self._asked = what
        ask.placeholder = _ASKS[what]
        ask.value = self.narrowing.texts[what]
        ask.add_class("open")
        ask.focus()

    def _close_ask(self) -> None:
        self.query_one("#ask").remove_class("open")
        self._list.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search or filter, in a thread: columns may have to be streamed."""
        self._close_ask()
        asked, text = self._asked, event.value.strip()

        def answer() -> None:
            self.narrowing.ask(asked, text)
            self.call_from_thread(self._keep, flat=asked == "search" and bool(text))

        self.run_worker(lambda: self._patiently(answer), thread=True, group="answer")

    def _patiently(self, work: Callable[[], None]) -> None:
        """Do what may fail because of what was asked, and say so where it does."""
        try:
            work()
        except RlpostError as error:
            said = partial(self.notify, markup=False, severity="warning", timeout=5)
            self.call_from_thread(said, printable(str(error)))

    def _keep(self, *, flat: bool = False) -> None:
        self.trail.keep(self.narrowing.kept)
        if flat:
            self.trail.flat(everywhere=True)
        self._refresh()

    def action_clear(self) -> None:
        """Forget search and filter."""
        self.narrowing.clear()
        self._keep()

    def action_measure(self) -> None:
        """Measure KL and advantages of all responses, to sort and filter by them."""
        wanted = [name for name in ("kl", "advantage") if self.index.columns_for(name)]
        self.notify(
            f"measuring {' and '.join(wanted)}" if wanted else "nothing to measure", timeout=2
        )

        def measure() -> None:
            for name in wanted:
                self.index.measure(name)
            self.call_from_thread(self._keep)

        self.run_worker(lambda: self._patiently(measure), thread=True, group="answer")

    # What stands beside the list

    def _preview(self) -> None:
        shelf = self.trail.top
        place = (shelf.level, shelf.id)
        self.run_worker(lambda: self._read(place), thread=True, exclusive=True, group="preview")

    def _read(self, place: tuple[str, int | None]) -> None:
        if place != (self.trail.top.level, self.trail.top.id):
            return  # the cursor has moved on
        try:
            side = preview.beside(self.trail, *place, self.narrowing.texts["search"])
        except RlpostError as error:
            side = Text(str(error), style="bold red")
        if place == (self.trail.top.level, self.trail.top.id):
            self.call_from_thread(self._show, side)

    def _show(self, side: RenderableType) -> None:
        self.query_one("#preview", Static).update(Shown(side))
        self.query_one("#side", VerticalScroll).scroll_home(animate=False)
