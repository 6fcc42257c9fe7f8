"""The clock of a run: the time that its passes and threads take, and the bytes that they move."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


T = TypeVar("T")


class Clock:
    """Seconds of a run: start-up, passes, publishing, summary, and kinds of work of its threads.

    Threads work at the same time, so the seconds of the kinds of work may exceed the run's.

    Args:
        started: when the run began, by `time.perf_counter`; None for now.
        cpu_started: CPU seconds that the process had used by then; 0 if it began then.
    """

    def __init__(self, started: float | None = None, cpu_started: float = 0.0) -> None:
        self._started = time.perf_counter() if started is None else started
        self._cpu_started = time.process_time() if started is None else cpu_started
        self._start_up: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self._passes: dict[str, float] = defaultdict(float)
        self._after = {"publishing": 0.0}
        self._busy: dict[str, float] = defaultdict(float)
        self._cpu: dict[str, float] = defaultdict(float)
        self._elsewhere = 0.0
        self.bytes = dict.fromkeys(("decoded", "written", "copied", "to_device", "to_host"), 0)
        """Bytes of decoded columns, of complete outputs, of those what was copied, and of what was
        sent to a device and fetched from it."""

    @property
    def seconds(self) -> dict[str, Any]:
        """The times of the run.

        `total`, `start_up` (until the first pass), `passes` by name, `publishing` and, if it was
        measured, `summary` are wall times. `busy` is the wall time of threads by kind of work.
        `cpu` has the CPU time of the process (`total`), until the first pass (`start_up`), and by
        kind of work; work of other threads, such as pyarrow's, is in the total alone.
        """
        total, cpu = self.now()
        start_up, start_up_cpu = self._start_up or (total, cpu)
        return {
            "total": total,
            "start_up": start_up,
            "passes": dict(self._passes),
            **self._after,
            "busy": dict(self._busy),
            "cpu": {"total": cpu + self._elsewhere, "start_up": start_up_cpu, **self._cpu},
        }

    def now(self) -> tuple[float, float]:
        """Return wall time and CPU time since the run began."""
        return time.perf_counter() - self._started, time.process_time() - self._cpu_started

    @contextmanager
    def wall(self, name: str) -> Iterator[None]:
        """Add the block's time to a pass; the first one ends the start-up."""
        if self._start_up is None:
            self._start_up = self.now()
        with self._timed(self._passes, name):
            yield

    @contextmanager
    def after(self, name: str) -> Iterator[None]:
        """Add the block's time to what comes after the passes: publishing or the summary."""
        self._after.setdefault(name, 0.0)
        with self._timed(self._after, name):
            yield

    @contextmanager
    def busy(self, name: str) -> Iterator[None]:
        """Add the block's wall time and CPU time to a kind of work; thread-safe."""
        start = time.thread_time()
        try:
            with self._timed(self._busy, name):
                yield
        finally:
            with self._lock:
                self._cpu[name] += time.thread_time() - start

    @contextmanager
    def _timed(self, seconds: dict[str, float], name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                seconds[name] += time.perf_counter() - start

    def count_bytes(self, **counts: int) -> None:
        """Add to `bytes`; thread-safe."""
        with self._lock:
            for name, count in counts.items():
                self.bytes[name] += count

    def add(self, seconds: dict[str, Any], sizes: dict[str, int]) -> None:
        """Add the work of another process, from `seconds` and `bytes` of its clock."""
        self.count_bytes(**sizes)
        cpu = {name: x for name, x in seconds["cpu"].items() if name not in ("total", "start_up")}
        for total, part in ((self._busy, seconds["busy"]), (self._cpu, cpu)):
            for name, spent in part.items():
                total[name] += spent
        self._elsewhere += seconds["cpu"]["total"]

    def timed(self, name: str, items: Iterator[T]) -> Iterator[T]:
        """Yield the items; add the time to produce each one to a kind of work."""
        while True:
            with self.busy(name):
                item = next(items, None)
            if item is None:
                return
            yield item
