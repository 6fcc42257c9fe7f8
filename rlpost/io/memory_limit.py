"""The memory that a run may use, and the error for data that does not fit into it."""

from __future__ import annotations

import math
import mmap
import re
import resource
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import NotEnoughMemoryError, UsageError
from rlpost.io.system import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_SHARE = 0.75
"""Share of the machine's memory, or of the limit of its container, that a run may use."""
_COPIES, _CHUNKS = 8, 8
"""Work on a chunk needs at most so many times its decoded bytes, and so many chunks are in memory
at a time: those of the workers, and what is read ahead."""
_SMALLEST = 1 << 18
"""Decoded bytes of a chunk that is worth its overhead."""
_LARGEST = 1 << 30
"""Decoded bytes of a chunk, at most."""
_ROW = 256
"""Bytes of a response besides its decoded columns: numbers of measures and stages, measured."""
_PROGRAM = 64 << 20  # measured: what is imported after the first data, and memory of threads
_THREADS = 512 << 20  # address space of threads and pools of libraries
_SCARCE = 256 << 20  # address space that a library may need at once
_LEAST = 64 << 20  # bytes for data, if no limit is set and the process uses all of the default
_MARGIN = 1.1  # of a limit that an error names: what the program uses varies from run to run
_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("B", 1000), ("IB", 1024))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]?I?B|)", re.IGNORECASE)


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on the memory of this process.

    Args:
        size: bytes that the process may use.
        text: the limit as it was typed; empty for the default.
    """

    size: int
    text: str = ""

    @cached_property
    def used(self) -> int:
        """The bytes that the program needs: those before it reads any data, and some more."""
        return _resident() + _PROGRAM

    @cached_property
    def addresses(self) -> float:
        """The bytes that data may use of the address space under `ulimit -v`; else infinite.

        Libraries end the process when they get no more, for their threads, too.
        """
        return max(free_addresses() - _THREADS, 0) / 2

    @property
    def room(self) -> int:
        """Return the bytes that data may use."""
        room = max(self.size - self.used, 0 if self.text else _LEAST)
        return int(min(room, self.addresses))

    def check(self, needed: float, where: str) -> None:
        """Raise NotEnoughMemoryError if data needs more memory than there is room for.

        Args:
            needed: bytes, with all copies that the work on the data makes.
            where: the file and what is read of it, which begins the error.
        """
        if needed <= self.room:
            return
        from rlpost.display.text import size  # noqa: PLC0415 - only the error needs it

        limit = f"--max-memory {self.text}" if self.text else "the default of --max-memory"
        if self.addresses <= self.room + 1:
            raise NotEnoughMemoryError(
                f"{where}: needs about {size(int(needed))} of memory, and `ulimit -v` leaves "
                f"{size(self.room)} for data",
                tip="raise it; --max-memory limits memory without it",
            )
        raise NotEnoughMemoryError(
            f"{where}: needs about {size(int(needed))} of memory, and {limit} leaves "
            f"{size(self.room)} for data (the program itself needs {size(self.used)})",
            tip=f"--max-memory {1 + int(_MARGIN * (self.used + needed) / 1e6)}MB  # permits it; "
            "smaller rows need less",
        )


class KeptMemory:
    """Counts the bytes of what a run keeps of every response, such as keys.

    Args:
        where: the input and what is kept of it, which begins the error.
        copies: how many times as much a run needs in the end, as measured.
        rows: all responses, of which the error names the memory.
    """

    def __init__(self, where: str, copies: int, rows: int) -> None:
        self._where = where
        self._copies = copies
        self._limit = memory_limit()
        self._bytes = 0
        self._rows, self._seen = rows, 0

    def add(self, size: int, rows: int) -> None:
        """Add bytes of the next rows; raise NotEnoughMemoryError if all no longer fit."""
        self._bytes += size
        self._seen += rows
        needed = self._copies * self._bytes
        if needed > self._limit.room:
            self._limit.check(needed * max(1, self._rows / self._seen), self._where)


_current: ContextVar[MemoryLimit | None] = ContextVar("memory_limit", default=None)


def memory_limit() -> MemoryLimit:
    """Return the limit of the current run, else the default."""
    return _current.get() or _default()


@cache
def _default() -> MemoryLimit:
    return MemoryLimit(parse_limit(None))


def rows_that_fit(size: int, rows: int, most: int, where: str) -> int:
    """Return the rows of a chunk: `most`, or as many as fit into the memory of the run.

    Args:
        size: decoded bytes of some rows.
        rows: of that size, at least 1.
        most: rows of a chunk.
        where: the rows, which begins an error.

    Raises:
        NotEnoughMemoryError: a row, or the smallest chunk, does not fit.
    """
    size += _ROW * rows
    limit, row = memory_limit(), size / rows
    limit.check(_COPIES * max(row, _CHUNKS * min(size, _SMALLEST)), where)
    return max(1, min(most, int(size_of_chunk() / row))) if size else most


def size_of_chunk() -> float:
    """Return the most decoded bytes of a chunk: Arrow's texts have offsets of 32 bits."""
    return min(memory_limit().room / (_COPIES * _CHUNKS), _LARGEST)


@contextmanager
def limited_memory(size: str | int | None) -> Iterator[None]:
    """Set the limit of what runs in the block, in its threads, too; None changes nothing.

    Raises:
        UsageError: as `parse_limit`.
    """
    if size is None:
        yield
        return
    token = _current.set(MemoryLimit(parse_limit(str(size)), str(size)))
    try:
        yield
    finally:
        _current.reset(token)


def parse_limit(size: str | None) -> int:
    """Return a limit in bytes: `4GB`, `500MiB`, or `50%` of the memory of the machine.

    A container's limit counts as the memory of the machine. None is the default share.

    Raises:
        UsageError: it is no size, or 0, or a percentage of more than 100.
    """
    if size is None:
        return int(DEFAULT_SHARE * _memory())
    match = _SIZE.fullmatch(size.strip())
    number = float(match[1]) if match else 0.0
    if match is None or not 0 < number < float("inf") or (match[2] == "%" and number > 100):  # noqa: PLR2004
        raise UsageError(f"--max-memory {size}: a size is needed, such as 4GB, 500MB or 50%")
    return int(number / 100 * _memory() if match[2] == "%" else number * _UNITS[match[2].upper()])


def _memory() -> int:
    """Return the bytes of the machine, or of the limit of its container; many if unknown."""
    total, _, limit = memory()
    return min(total or sys.maxsize, limit or sys.maxsize)


def _resident() -> int:
    """Return the bytes that this process uses now; 0 if the system does not report them."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * mmap.PAGESIZE
    return 0


def free_addresses() -> float:
    """Return the bytes of address space that this process may still take; infinite if any."""
    with suppress(OSError, ValueError):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            return max(limit - pages * mmap.PAGESIZE, 0)
    return math.inf


def check_addresses() -> None:
    """Raise MemoryError where a library would end the process, with an exit code of its own."""
    if free_addresses() < _SCARCE:
        raise MemoryError


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: several libraries have no exception class for it."""
    named = isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))
    return named or free_addresses() < _SCARCE  # where imports fail with any error


_NO_MEMORY = re.compile(
    r"can't (allocate memory|start new thread)|cannot allocate memory|failed to map|out of memory"
    r"|not enough memory|std::bad_alloc",
    re.IGNORECASE,
)
