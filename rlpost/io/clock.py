"""The clock of a run: the time that its passes take, and the bytes that they move."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Clock:
    """Seconds of a run: start-up, passes, publishing, summary; and bytes that its threads moved.

    Args:
        started: when the run began, by `time.perf_counter`; None for now.
    """

    def __init__(self, started: float | None = None) -> None:
        self._started = time.perf_counter() if started is None else started
        self._start_up: float | None = None
        self._lock = threading.Lock()
        self._passes: dict[str, float] = defaultdict(float)
        self._after: dict[str, float] = defaultdict(float, publishing=0.0)
        self.bytes = dict.fromkeys(("decoded", "written", "copied", "to_device", "to_host"), 0)
        """Bytes of decoded columns, of complete outputs, of those what was copied, and of what was
        sent to a device and fetched from it."""

    @property
    def seconds(self) -> dict[str, Any]:
        """The wall times of the run.

        `total`, `start_up` (until the first pass), `passes` by name, `publishing` and, if it was
        measured, `summary`.
        """
        total = time.perf_counter() - self._started
        start_up = total if self._start_up is None else self._start_up
        passes = dict(self._passes)
        return {"total": total, "start_up": start_up, "passes": passes, **self._after}

    @contextmanager
    def wall(self, name: str) -> Iterator[None]:
        """Add the block's time to a pass; the first one ends the start-up."""
        if self._start_up is None:
            self._start_up = time.perf_counter() - self._started
        with _timed(self._passes, name):
            yield

    @contextmanager
    def after(self, name: str) -> Iterator[None]:
        """Add the block's time to what comes after the passes: publishing or the summary."""
        with _timed(self._after, name):
            yield

    def count_bytes(self, **counts: int) -> None:
        """Add to `bytes`; thread-safe."""
        with self._lock:
            for name, count in counts.items():
                self.bytes[name] += count


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] += time.perf_counter() - start
