"""The browser's help screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult

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
