"""Progress of a run: bars on stderr."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.display.console import console
from rlpost.display.reporter import SilentReporter, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlpost.display.reporter import Reporter

    PrintNote = Callable[[str], None] | None

_MINUTE = 60


class _Tracker(SilentReporter):
    """Counts what is done of the present pass, and of all passes of a run."""

    def __init__(self, print_note: PrintNote, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(print_note)
        self._clock = clock
        self._work = Work((), 0)
        self._number = 0
        self.purpose = ""
        self.total: int | None = None
        self.done = 0
        self._begun = self._started = clock()

    def begin(self, work: Callable[[], Work]) -> None:
        """Begin a run of several passes."""
        self._work, self._number, self._begun = work(), 0, self._clock()

    def start(self, purpose: str, rows: int | None) -> None:
        """Begin a pass."""
        self.purpose, self.total, self.done = purpose, rows, 0
        self._started = self._clock()
        self._number += 1

    def advance(self, rows: int) -> None:
        """Count rows that are done."""
        self.done += rows

    @property
    def title(self) -> str:
        """The number of the pass, if there are several, and what it is for."""
        name, passes = self.purpose.removeprefix("statistics for "), len(self._work.passes)
        return f"{self._number}/{passes} {name}" if self._number <= passes > 1 else name

    @property
    def amount(self) -> str:
        """What is done of the pass: a share, or a count if the total is unknown."""
        if not self.total:
            return f"{self.done:,} {unit_of(self.purpose)}"
        return f"{100 * self.done // self.total} %"

    @property
    def speed(self) -> str:
        """Tokens, or responses, per second of the pass; empty before the first."""
        seconds = self._clock() - self._started
        if not self.done or seconds <= 0:
            return ""
        if self._work.tokens and self.total:
            per_second = self._work.tokens * self.done / self.total / seconds
            return f"{per_second / 1e6:,.1f} M tokens/s"
        return f"{self.done / seconds:,.0f} {unit_of(self.purpose)}/s"

    @property
    def left(self) -> str:
        """The time left for all passes, if the rest goes on as before; empty if unknown."""
        passes = self._work.passes if 0 < self._number <= len(self._work.passes) else (1.0,)
        before, own = sum(passes[: self._number - 1]), passes[min(self._number, len(passes)) - 1]
        done = (before + own * self.done / self.total) / sum(passes) if self.total else 0.0
        if not self.done or not done:
            return ""
        begun = self._begun if len(passes) > 1 else self._started
        seconds = math.ceil((self._clock() - begun) * max(1 - done, 0) / done)
        text = f"{seconds} s" if seconds < _MINUTE else f"{seconds // _MINUTE} min"
        return f"{text} left, all passes" if len(passes) > 1 else f"{text} left"


class _Bar(_Tracker):
    """Draws a progress bar for the present pass."""

    def __init__(self, bars: Progress, print_note: PrintNote) -> None:
        super().__init__(print_note)
        self._bars = bars
        self._task: Any = None

    def start(self, purpose: str, rows: int | None) -> None:
        """Begin a pass, in place of the one before."""
        super().start(purpose, rows)
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(
            self.title, total=rows, amount=self.amount, speed="", left=""
        )

    def advance(self, rows: int) -> None:
        """Draw what is done."""
        super().advance(rows)
        self._bars.update(
            self._task, advance=rows, amount=self.amount, speed=self.speed, left=self.left
        )


def unit_of(purpose: str) -> str:
    """Return what a pass counts: a search counts recipes."""
    return "recipes" if purpose == "search" else "responses"


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
        TextColumn("{task.fields[amount]}  {task.fields[speed]}  {task.fields[left]}"),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        register_cleanup(bars, bars.console.show_cursor)
        try:
            yield _Bar(bars, print_note)
        finally:
            unregister_cleanup(bars)
