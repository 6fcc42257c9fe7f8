"""Who is told how far a run is, and where its time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Reporter(Protocol):
    """Who is told how far a run is."""

    def start(self, purpose: str, rows: int) -> None:
        """A pass begins over this many rows."""

    def advance(self, rows: int) -> None:
        """These many rows are done."""


class Silent:
    """A reporter that says nothing."""

    def start(self, purpose: str, rows: int) -> None:
        """Say nothing."""

    def advance(self, rows: int) -> None:
        """Say nothing."""


@dataclass
class Clock:
    """Seconds spent, by phase."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def timed(self, name: str, items: Iterator[T]) -> Iterator[T]:
        """The same items, with the time to get each one counted."""
        while True:
            with self.phase(name):
                item = next(items, None)
            if item is None:
                return
            yield item
