"""Progress of a run: bars on stderr, or a bar below the cell of a notebook."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.display.console import console
from rlpost.display.reporter import SilentReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlpost.display.reporter import Reporter

    PrintNote = Callable[[str], None] | None

_AFTER, _EVERY = 0.5, 0.1
"""Seconds until a notebook shows a bar, so that a short run shows none, and between updates."""


class _Bar(SilentReporter):
    """Draws a progress bar for each pass."""

    def __init__(self, bars: Progress, print_note: PrintNote) -> None:
        super().__init__(print_note)
        self._bars = bars
        self._task: Any = None

    def start(self, purpose: str, rows: int | None) -> None:
        if self._task is not None:
            self._bars.update(self._task, visible=False)
        of = "" if rows is None else f"/{rows:,}"
        self._task = self._bars.add_task(purpose, total=rows, of=of, unit=unit_of(purpose))

    def advance(self, rows: int) -> None:
        self._bars.advance(self._task, rows)


class _CellBar(SilentReporter):
    """Draws a progress bar below a notebook's cell, and removes it at the end.

    It is a display that is updated: this needs no widgets, and other outputs of the cell stay.
    """

    def __init__(self, print_note: PrintNote) -> None:
        super().__init__(print_note)
        self._display: Any = None
        self._next = time.monotonic() + _AFTER
        self._purpose, self._total, self._done = "", None, 0  # type: str, int | None, int

    def start(self, purpose: str, rows: int | None) -> None:
        self._purpose, self._total, self._done = purpose, rows, 0

    def advance(self, rows: int) -> None:
        self._done += rows
        if (now := time.monotonic()) >= self._next:
            self._next = now + _EVERY
            self._draw()

    def _draw(self) -> None:
        of = "" if self._total is None else f"/{self._total:,}"
        text = f"{self._done:,}{of} {unit_of(self._purpose)}"
        share = "" if self._total is None else f' value="{self._done}" max="{self._total}"'
        bar = f'<progress{share} style="width: 14em; vertical-align: middle"></progress>'
        page = f"<div>{escape(self._purpose)} {bar} {text}</div>"
        self._show({"text/html": page, "text/plain": f"{self._purpose}: {text}"})

    def _show(self, data: dict[str, str]) -> None:
        if self._display is None:
            display = import_module("IPython.display").display
            self._display = display(data, raw=True, display_id=True)
        else:
            self._display.update(data, raw=True)

    def close(self) -> None:
        """Remove the bar; the place of a display stays, so it becomes empty."""
        if self._display is not None:
            self._show({"text/html": "", "text/plain": ""})


def unit_of(purpose: str) -> str:
    """Return what a pass counts: a search counts recipes."""
    return "recipes" if purpose == "search" else "responses"


def in_notebook() -> bool:
    """Return whether the code of a notebook runs: IPython is there, and with a kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def progress(*, quiet: bool, print_note: PrintNote = None) -> Iterator[Reporter]:
    """Yield a reporter that draws, in a notebook or on stderr if that is a terminal; else silent.

    Args:
        quiet: draw nothing anywhere.
        print_note: is called with each note, quiet or not; None: notes are dropped.
    """
    if not quiet and in_notebook():
        cell = _CellBar(print_note)
        try:
            yield cell
        finally:
            cell.close()
    elif quiet or not sys.stderr.isatty():
        yield SilentReporter(print_note)
    else:
        with _bars(print_note) as bar:
            yield bar


@contextmanager
def _bars(print_note: PrintNote) -> Iterator[Reporter]:
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,}{task.fields[of]} {task.fields[unit]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        register_cleanup(bars, bars.console.show_cursor)
        try:
            yield _Bar(bars, print_note)
        finally:
            unregister_cleanup(bars)
