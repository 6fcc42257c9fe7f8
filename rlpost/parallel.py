"""Overlap: one thread reads ahead, several work, and results come back in order."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
R = TypeVar("R")
MOST_WORKERS = 8
_POLL = 0.1  # seconds after which a reader that nobody listens to looks up


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """The same items, made by a thread that stays up to `depth` of them ahead.

    An error in the thread is raised here. When the consumer stops early, the thread ends.
    """
    reader = _Reader(items, depth)
    thread = threading.Thread(target=reader.run, name="rlpost-read", daemon=True)
    thread.start()
    try:
        yield from reader.received()
    finally:
        reader.stopped.set()
        thread.join()


class _Reader(Generic[T]):
    """The thread's half of `ahead`: items go in, an error or the end comes last."""

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self.items = items
        self.ready: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
        self.stopped = threading.Event()

    def run(self) -> None:
        """Read until the end, an error, or until nobody listens."""
        end: BaseException | None = None
        try:
            for item in self.items:
                if not self._offer((True, item)):
                    break
        except BaseException as error:  # noqa: BLE001 - raised again by the consumer
            end = error
        self._offer((False, end))

    def _offer(self, item: tuple[bool, Any]) -> bool:
        while not self.stopped.is_set():
            try:
                self.ready.put(item, timeout=_POLL)
            except queue.Full:
                continue
            return True
        return False

    def received(self) -> Iterator[T]:
        """The items, on the consumer's side."""
        while True:
            more, item = self.ready.get()
            if more:
                yield item
            elif item is not None:
                raise item
            else:
                return


def in_order(work: Callable[[T], R], items: Iterator[T], workers: int) -> Iterator[R]:
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
