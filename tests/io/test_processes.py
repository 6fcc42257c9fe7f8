"""Processes that compute: results in order, errors, and the end of a process."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.io.processes import Processes, map_here


def scaled(shared, item):
    """Yield as many numbers as the item, with the process that computed them."""
    for i in range(item):
        yield shared * i, os.getpid()


def failing(shared, item):
    yield item
    if item == shared:
        raise DataError(f"item {item}")


def killed(shared, item):
    yield item
    if item == shared:
        os.kill(os.getpid(), signal.SIGKILL)


def greedy(shared, item):
    yield item
    if os.getpid() != shared:
        raise NotEnoughMemoryError("too large for this process")
    yield -item


def mistaken(_shared, item):
    return iter([item.nothing])


def _collect(results, items):
    for item in items:  # also those before an error
        results.append(item)


def assert_threads_end(count):
    end = time.monotonic() + 10
    while threading.active_count() > count and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= count


def test_results_are_those_of_one_process_in_order():
    items = [3, 0, 5, 1, 4, 2]
    with Processes(2) as processes:
        results = [*processes.map(scaled, 10, iter(items)), *processes.map(scaled, 7, iter([2]))]
    here = [*map_here(scaled, 10, iter(items)), *map_here(scaled, 7, iter([2]))]
    assert [value for value, _ in results] == [value for value, _ in here]
    assert os.getpid() not in {process for _, process in results}


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (failing, DataError, "^item 5$"),
        (killed, ReadWriteError, "a worker process ended by signal SIGKILL"),
    ],
)
def test_an_error_follows_the_results_before_it_and_ends_all(work, error, message):
    threads = threading.active_count()
    results = []
    with Processes(2) as processes, pytest.raises(error, match=message):
        _collect(results, processes.map(work, 5, iter(range(100))))
    assert results == [0, 1, 2, 3, 4, 5]
    assert_threads_end(threads)


def test_a_reader_that_stops_early_ends_all():
    threads = threading.active_count()
    with Processes(2) as processes:
        results = processes.map(failing, None, iter(range(1000)))
        assert [next(results), next(results)] == [0, 1]
        results.close()
    assert_threads_end(threads)


def test_an_item_too_large_for_a_process_is_computed_here():
    with Processes(2) as processes:
        results = [*processes.map(greedy, os.getpid(), iter([1, 2, 3]))]
    assert results == [1, -1, 2, -2, 3, -3]


def test_a_mistake_has_the_traceback_of_its_process():
    with Processes(1) as processes, pytest.raises(RuntimeError, match="in mistaken"):
        list(processes.map(mistaken, None, iter([1])))
