"""Threads: prefetching of an iterator's items, and a parallel map that keeps their order."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")
R = TypeVar("R")
MOST_WORKERS = 8


def _count(item: object) -> int:  # noqa: ARG001 - the default weight
    return 1


class Prefetcher(Generic[T]):
    """Iterates over items that a thread produces in advance; the thread starts at once.

    An error in the thread is raised to the consumer, in place of the item. The thread ends after
    the last item, or on `close`.

    Args:
        items: what the thread iterates over.
        capacity: the thread produces another item while the items in the queue weigh less.
        weigh: the weight of an item; by default each weighs 1.
    """

    def __init__(
        self, items: Iterator[T], capacity: int, weigh: Callable[[T], int] = _count
    ) -> None:
        self._items = items
        self._capacity = capacity
        self._weigh = weigh
        self._queue: deque[T] = deque()
        self._weight = 0
        self._error: BaseException | None = None
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        context = copy_context()  # it has the memory limit of the run
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="rlpost-read", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        """Yield the items; `close` if the consumer stops early."""
        try:
            while self._wait():
                yield self._pop()  # without a name, so that the consumer alone has the item
        finally:
            self.close()
        if self._error is not None:
            raise self._error

    def _wait(self) -> bool:
        """Return whether there is another item."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended)
            return bool(self._queue)

    def _pop(self) -> T:
        with self._changed:
            item = self._queue.popleft()
            self._weight -= self._weigh(item)
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """Stop the thread and join it."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        """Fill the queue until the last item, an error, or `close`."""
        error: BaseException | None = None
        try:
            for item in self._items:
                with self._changed:
                    self._queue.append(item)
                    self._weight += self._weigh(item)
                    del item
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._weight < self._capacity or self._stopped)
                    if self._stopped:
                        break
        except BaseException as raised:  # noqa: BLE001 - raised again in the consumer's thread
            error = raised
        with self._changed:
            self._error, self._ended = error, True
            self._changed.notify_all()


def prefetch(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yield the items, which a thread produces up to `depth` in advance."""
    return iter(Prefetcher(items, depth))


def map_ordered(work: Callable[[T], R], items: Iterator[T], workers: int) -> Iterator[R]:
    """Yield work(item) for each item, in order, computed by up to `workers` threads.

    At most `workers` + 1 results exist at a time. An error is raised in place of its item's result,
    and no further work is started.
    """
    if workers == 1:
        yield from map(work, items)
        return
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="rlpost-work") as pool:
        try:
            for item in items:
                pending.append(pool.submit(copy_context().run, work, item))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
