"""Overlap: one thread reads ahead, several work, and results come back in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")
R = TypeVar("R")
MOST_WORKERS = 8


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _one(item: object) -> int:  # noqa: ARG001 - the weight of anything
    return 1


class Prefetcher(Generic[T]):
    """The same items, made by a thread that starts at once and stays ahead of who takes them.

    An error in the thread is raised to the taker, in its item's place. `close` ends the thread;
    so does taking the last item.

    Args:
        items: what the thread goes through.
        room: the most that waits: the thread makes another item while what waits weighs less.
        weigh: the weight of an item; each weighs 1 unless this says otherwise.
    """

    def __init__(self, items: Iterator[T], room: int, weigh: Callable[[T], int] = _one) -> None:
        self._items = items
        self._room = room
        self._weigh = weigh
        self._ready: deque[T] = deque()
        self._weight = 0
        self._error: BaseException | None = None
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="rlpost-read", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        """Take the items; leaving early closes."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._ready or self._ended)
                    if not self._ready:
                        break
                    item = self._ready.popleft()
                    self._weight -= self._weigh(item)
                    self._changed.notify_all()
                yield item
        finally:
            self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Let the thread end, and wait for it."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        """Read until the end, an error, or until nobody listens."""
        error: BaseException | None = None
        try:
            for item in self._items:
                with self._changed:
                    self._ready.append(item)
                    self._weight += self._weigh(item)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._weight < self._room or self._stopped)
                    if self._stopped:
                        break
        except BaseException as raised:  # noqa: BLE001 - raised again by the taker
            error = raised
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()


def prefetch(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, made by a thread that stays up to `depth` of them ahead."""
    return iter(Prefetcher(items, depth))


def map_ordered(work: Callable[[T], R], items: Iterator[T], workers: int) -> Iterator[R]:
    """work(item) for each item, in the items' order, done by up to `workers` threads at a time.

    At most `workers` + 1 results exist at once. An error is raised in its item's turn; nothing is
    started after it.
    """
    if workers == 1:
        yield from map(work, items)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="rlpost-work") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
