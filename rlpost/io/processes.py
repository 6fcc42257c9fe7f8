"""Processes that compute: a parallel map of functions that hold Python's lock, in order.

A process is a new interpreter, so neither a fork of threads nor the import of the user's script
can harm it. It ends when its input does, so it does not outlive a program that was killed.
"""

from __future__ import annotations

import json
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from importlib.abc import MetaPathFinder
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from rlpost.errors import NotEnoughMemoryError, ReadWriteError, RlpostError
from rlpost.io.memory_limit import MemoryLimit, limited_memory, memory_limit
from rlpost.io.threads import Prefetcher, prefetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")

_AHEAD = 32 << 20  # bytes of the results of an item that a process computes in advance
_PIPE = 1 << 20  # bytes: fewer switches between processes than with the default
_GRACE = 10  # seconds from the end of a process's output to its own
_SIZE = struct.Struct("<Q")
_START = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import json, sys; "
    "sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from rlpost.io.processes import serve; serve()"
)


def map_here(work: Callable[[S, T], Iterator[R]], shared: S, items: Iterator[T]) -> Iterator[R]:
    """Yield the results of work(shared, item) for each item, in order."""
    for item in items:
        yield from work(shared, item)


class Processes:
    """Maps items by processes; `map` has the results of `map_here`.

    Args:
        number: of processes, which start with the first item.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._all: list[_Process] = []
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._alone = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for process in self._all:
            process.kill()

    def map(
        self, work: Callable[[S, T], Iterator[R]], shared: S, items: Iterator[T]
    ) -> Iterator[R]:
        """Yield the results of work(shared, item) for each item, in order.

        Memory is bounded: each process has one item, and about 32 MiB of its results.

        Args:
            work: a function of a module, by whose name a process imports it.
            shared: is sent to each process once.
            items: a thread iterates over them.

        Raises:
            NotEnoughMemoryError: an item does not fit, although nothing else is computed.
            ReadWriteError: a process ended early.
        """
        running: deque[Prefetcher[_Answer]] = deque()

        def started() -> Iterator[Prefetcher[_Answer]]:
            for item in items:
                process = self._free_process()
                if self._closed:
                    return
                results = self._results(process, (work, shared, item))
                running.append(Prefetcher(results, _AHEAD, _weight))
                yield running[-1]

        calls, whole = prefetch(started(), 2 * self._number), False
        try:
            for call in calls:
                for result in call:
                    yield result.value
                running.popleft()
            whole = True
        finally:
            if not whole:  # its threads wait for processes, and for a reader of their results
                self.__exit__()
                for call in [*running]:
                    call.close()
                calls.close()  # type: ignore[attr-defined]

    def _free_process(self) -> _Process:
        if not self._all:
            share = memory_limit().room // (self._number + 1)
            for _ in range(self._number):
                self._all.append(_Process(share))
                self._idle.put(self._all[-1])
        return self._idle.get()

    def _results(self, process: _Process, call: _Call) -> Iterator[_Answer]:
        count = 0
        try:
            for result in process.run(call):
                yield result
                count += 1
        except (
            NotEnoughMemoryError
        ):  # of its share; nothing else of this size is computed meanwhile
            work, shared, item = call
            with self._alone:
                for number, value in enumerate(work(shared, item)):
                    if number >= count:
                        yield _Answer(value, 0)
        finally:
            self._idle.put(process)


_Call = tuple["Callable[[Any, Any], Iterator[Any]]", Any, Any]


class _Answer(NamedTuple):
    value: Any
    size: int


def _weight(result: _Answer) -> int:
    return result.size


class _Process:
    """One interpreter, which runs `serve`."""

    def __init__(self, memory: int) -> None:
        self._shared: object = self  # nothing was sent
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=_PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._memory: int | None = memory

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()
        with suppress(OSError):  # what it has not read
            self._input.close()

    def run(self, call: _Call) -> Iterator[_Answer]:
        """Yield the results of a call; raise its error."""
        work, shared, item = call
        try:
            if self._memory is not None:
                self._input.write(json.dumps(sys.path).encode() + b"\n")
                _send(self._input, ("memory", self._memory))
                self._memory = None
            if shared is not self._shared:
                _send(self._input, ("shared", shared))
                self._shared = shared
            _send(self._input, ("call", (work, item)))
            while True:
                kind, value, size = _receive(self._output)
                if kind == "end":
                    return
                if kind == "error":
                    raise value
                yield _Answer(value, size)
        except (EOFError, OSError, ValueError):  # it ended, or `kill` closed its files
            raise self._ended() from None

    def _ended(self) -> ReadWriteError:
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return ReadWriteError(
            f"a worker process ended {how}; the system does that if memory runs out",
            tip="--workers 1  # reads without such processes",
        )


def _send(file: IO[bytes], value: object) -> None:
    """Write a value; large buffers, such as those of Arrow, are not copied before."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    parts = [memoryview(data), *(one.raw() for one in buffers)]
    file.write(b"".join(_SIZE.pack(size) for size in (len(parts), *map(len, parts))))
    for part in parts:
        file.write(part)
    file.flush()


def _receive(file: IO[bytes]) -> tuple[str, Any, int]:
    """Read the kind of a message, its value, and the bytes of both."""
    (count,) = _SIZE.unpack(_exactly(file, _SIZE.size))
    sizes = [size for (size,) in _SIZE.iter_unpack(_exactly(file, count * _SIZE.size))]
    data, *buffers = (_exactly(file, size) for size in sizes)
    kind, value = pickle.loads(data, buffers=buffers)  # noqa: S301 - of this program
    return kind, value, sum(sizes)


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


class _WithoutPandas(MetaPathFinder):
    """Hides pandas from pyarrow, which imports it in half a second and 50 MB if it is installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def serve() -> None:
    """Run the calls that arrive on the standard input, until it ends."""
    sys.meta_path.insert(0, _WithoutPandas())
    source, target = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what libraries print is no result
    shared = None
    with suppress(EOFError, BrokenPipeError):
        _, memory, _ = _receive(source)
        with limited_memory(memory + MemoryLimit(0).used):
            while True:
                kind, value, _ = _receive(source)
                if kind == "shared":
                    shared = value
                    continue
                for message in _answers(shared, *value):
                    _send(target, message)


def _answers(
    shared: Any, work: Callable[[Any, Any], Iterator[Any]], item: Any
) -> Iterator[tuple[str, Any]]:
    """Yield the messages of a call: its results, then its error or its end."""
    try:
        for result in work(shared, item):
            yield "result", result
    except RlpostError as error:
        yield "error", error
    except MemoryError:
        yield "error", NotEnoughMemoryError("there is not enough memory")
    except Exception:  # noqa: BLE001 - a mistake of this program, which the other process raises
        yield "error", RuntimeError(traceback.format_exc())
    else:
        yield "end", None
