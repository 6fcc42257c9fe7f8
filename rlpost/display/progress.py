"""Progress bars on stderr, one for each pass over the input."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rlpost.display.console import console
from rlpost.io.progress import SilentReporter
from rlpost.io.shutdown import register_cleanup, unregister_cleanup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.progress import Reporter


class _Bar(SilentReporter):
    """Draws a progress bar for each pass."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: Any = None

    def start(self, purpose: str, rows: int) -> None:
        if self._task is not None:
            self._bars.update(self._task, visible=False)
        self._task = self._bars.add_task(purpose, total=rows)

    def advance(self, rows: int) -> None:
        self._bars.advance(self._task, rows)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Reporter]:
    """Yield a reporter that draws on stderr if that is a terminal; otherwise a silent one."""
    if quiet or not sys.stderr.isatty():
        yield SilentReporter()
        return
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("responses"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        register_cleanup(bars, bars.console.show_cursor)
        try:
            yield _Bar(bars)
        finally:
            unregister_cleanup(bars)
