"""Progress of a run: bars on stderr."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.display.console import console
from rlpost.display.reporter import SilentReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlpost.display.reporter import Reporter

    PrintNote = Callable[[str], None] | None


class _Bar(SilentReporter):
    """Draws a bar for the present pass, with its number if a run has several."""

    def __init__(self, bars: Progress, print_note: PrintNote) -> None:
        super().__init__(print_note)
        self._bars = bars
        self._passes = self._number = 0

    def begin(self, passes: int) -> None:
        """Begin a run of so many passes."""
        self._passes, self._number = passes, 0

    def start(self, purpose: str, rows: int | None) -> None:
        """Begin a pass, in place of the one before."""
        self._number += 1
        name = purpose.removeprefix("statistics for ")
        several = self._number <= self._passes > 1
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._task = self._bars.add_task(
            f"{self._number}/{self._passes} {name}" if several else name, total=rows
        )

    def advance(self, rows: int) -> None:
        """Draw what is done."""
        self._bars.update(self._task, advance=rows)


@contextmanager
def progress(*, quiet: bool, print_note: PrintNote = None) -> Iterator[Reporter]:
    """Yield a reporter that draws on stderr if that is a terminal; else a silent one.

    Args:
        quiet: draw nothing.
        print_note: is called with each note, quiet or not; None: notes are dropped.
    """
    if quiet or not sys.stderr.isatty():
        yield SilentReporter(print_note)
    else:
        with _bars(print_note) as bar:
            yield bar


@contextmanager
def _bars(print_note: PrintNote) -> Iterator[Reporter]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        register_cleanup(bars, bars.console.show_cursor)
        try:
            yield _Bar(bars, print_note)
        finally:
            unregister_cleanup(bars)
