"""Progress reports of a run, and the time that its passes and threads take."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


T = TypeVar("T")


class Reporter(Protocol):
    """Receives the progress of a run."""

    def start(self, purpose: str, rows: int) -> None:
        """Report that a pass over this many rows begins."""

    def advance(self, rows: int) -> None:
        """Report that this many more rows are done."""


class SilentReporter:
    """A reporter that prints nothing."""

    def start(self, purpose: str, rows: int) -> None:
        """Do nothing."""

    def advance(self, rows: int) -> None:
        """Do nothing."""


class Clock:
    """Seconds of a run: start-up, each pass, publishing, and each kind of work of its threads.

    Threads work at the same time, so the seconds of the kinds of work may exceed the run's.

    Args:
        started: when the run began, by `time.perf_counter`; None for now.
    """

    def __init__(self, started: float | None = None) -> None:
        self._started = time.perf_counter() if started is None else started
        self._start_up: float | None = None
        self._lock = threading.Lock()
        self._passes: dict[str, float] = defaultdict(float)
        self._publishing = {"publishing": 0.0}
        self._busy: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> dict[str, Any]:
        """`total`, `start_up` (until the first pass), `passes`, `publishing` and `busy`."""
        total = time.perf_counter() - self._started
        return {
            "total": total,
            "start_up": total if self._start_up is None else self._start_up,
            "passes": dict(self._passes),
            **self._publishing,
            "busy": dict(self._busy),
        }

    @contextmanager
    def wall(self, name: str) -> Iterator[None]:
        """Add the block's time to a pass; the first one ends the start-up."""
        if self._start_up is None:
            self._start_up = time.perf_counter() - self._started
        with self._timed(self._passes, name):
            yield

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Add the block's time to publishing."""
        with self._timed(self._publishing, "publishing"):
            yield

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """Add the block's time to a kind of work; thread-safe."""
        with self._timed(self._busy, name):
            yield

    @contextmanager
    def _timed(self, seconds: dict[str, float], name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                seconds[name] += time.perf_counter() - start

    def timed(self, name: str, items: Iterator[T]) -> Iterator[T]:
        """Yield the items; add the time to produce each one to a kind of work."""
        while True:
            with self.busy(name):
                item = next(items, None)
            if item is None:
                return
            yield item
