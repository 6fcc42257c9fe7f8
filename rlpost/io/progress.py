"""Who is told how far a run is, and where its time goes."""

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
    """Who is told how far a run is."""

    def start(self, purpose: str, rows: int) -> None:
        """A pass begins over this many rows."""

    def advance(self, rows: int) -> None:
        """These many rows are done."""


class SilentReporter:
    """A reporter that says nothing."""

    def start(self, purpose: str, rows: int) -> None:
        """Say nothing."""

    def advance(self, rows: int) -> None:
        """Say nothing."""


class Clock:
    """Seconds spent: by the run as a whole, pass by pass, and by its threads on each kind of work.

    Threads work at the same time, so their seconds may add up to more than the run's.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._lock = threading.Lock()
        self._passes: dict[str, float] = defaultdict(float)
        self._busy: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> dict[str, Any]:
        """`total`, `passes` and `busy`, in seconds."""
        total = time.perf_counter() - self._began
        return {"total": total, "passes": dict(self._passes), "busy": dict(self._busy)}

    @contextmanager
    def wall(self, name: str) -> Iterator[None]:
        """Count the block's time for a pass."""
        with self._counted(self._passes, name):
            yield

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """Count the block's time for a kind of work; any thread may."""
        with self._counted(self._busy, name):
            yield

    @contextmanager
    def _counted(self, table: dict[str, float], name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                table[name] += time.perf_counter() - start

    def timed(self, name: str, items: Iterator[T]) -> Iterator[T]:
        """The same items, with the time to get each one counted as that kind of work."""
        while True:
            with self.busy(name):
                item = next(items, None)
            if item is None:
                return
            yield item
