"""Counts of what operations on the shadow would cost the host of a GPU."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Counts:
    """What operations on the cards cost a GPU's host."""

    ops: int = 0
    to_host: int = 0
    """Copies to the host."""
    to_host_bytes: int = 0
    to_device: int = 0
    """Transfers to a card."""
    to_device_bytes: int = 0
    waits: int = 0
    """How often the host waits: for copies to it, results whose value or size it needs, and
    transfers that block."""
    waited_for: Counter[str] = field(default_factory=Counter)
    """Waits by operation."""
    unordered: Counter[str] = field(default_factory=Counter)
    """Operations that add floats in an order that differs from run to run on a GPU."""
    own_thread: int | None = None

    def add_transfer(self, nbytes: int) -> None:
        self.to_device += 1
        self.to_device_bytes += nbytes

    def add_copy(self, nbytes: int) -> None:
        self.to_host += 1
        self.to_host_bytes += nbytes

    def add_wait(self, name: str) -> None:
        self.waits += 1
        self.waited_for[name] += 1

    def add_unordered(self, name: str) -> None:
        self.unordered[name] += 1


_lock = threading.RLock()
_counters: list[Counts] = []


@contextmanager
def counted(*, own_thread: bool = False):
    """Count in the block, with `own_thread` without the operations of other threads."""
    counts = Counts(own_thread=threading.get_ident() if own_thread else None)
    with _lock:
        _counters.append(counts)
    try:
        yield counts
    finally:
        with _lock:
            _counters[:] = [other for other in _counters if other is not counts]


def count(event: str, *args) -> None:
    """Count an event: `transfer` (bytes), `copy` (bytes), `wait` or `unordered`."""
    me = threading.get_ident()
    with _lock:
        for counts in _counters:
            if counts.own_thread in (None, me):
                getattr(counts, f"add_{event}")(*args)


def count_operation() -> None:
    if _counters:
        me = threading.get_ident()
        with _lock:
            for counts in _counters:
                counts.ops += counts.own_thread in (None, me)
