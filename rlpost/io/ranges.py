"""Ranged reads of local and remote files, and prefetching for Arrow's reads of remote ones.

A request to an object store takes tens of milliseconds, whatever its size. So a reader announces
the extents that it will read, and threads fetch them in advance, some megabytes a request.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlpost.errors import ReadWriteError
from rlpost.io.paths import RemotePath, remote_errors
from rlpost.io.stores import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from rlpost.io.paths import AnyPath
    from rlpost.io.stores import ObjectInfo


REQUEST_BYTES = 4 << 20  # bytes of a request
TAIL_BYTES = 64 << 10  # at the end of a file, read at once: the footer, or all of a small file
_TAILS = 1 << 10  # ends of files in memory: each file is opened several times in a run
PREFETCH = 1  # blocks to fetch in advance, behind the block that is read
REQUESTS = 8  # at a time


class RemoteFile:
    """A remote file, open for reading; thread-safe.

    Raises:
        ReadWriteError: it cannot be read, or it became shorter.
    """

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        self.info = path.info() or FOLDER
        self.size = self.info.size

    def read_at(self, size: int, at: int) -> bytes:
        """Return the bytes at an offset."""
        if not size:
            return b""
        begin = max(self.size - TAIL_BYTES, 0)
        if at < begin or self.info.changed is None:
            return _read(self.path, size, at)
        data = _tail(self.path, self.info)[at - begin : at - begin + size]
        return data if len(data) == size else _read(self.path, size, at)  # raises: it is shorter


@lru_cache(_TAILS)
def _tail(path: RemotePath, info: ObjectInfo) -> bytes:
    """Return the end of a file in a state."""
    begin = max(info.size - TAIL_BYTES, 0)
    return _read(path, info.size - begin, begin)


def _read(path: RemotePath, size: int, at: int) -> bytes:
    with remote_errors(path, "cannot be read"):
        data = path.store.read(path.path, at, at + size)
    if len(data) != size:
        raise ReadWriteError(
            f"{path}: changed during the run; run again when no other process writes it"
        )
    return data


OpenFile = int | RemoteFile
"""A file that is open for reading: the descriptor of a local file, or a remote file."""


def open_file(path: AnyPath) -> tuple[OpenFile, int]:
    """Open a file; return it and its size.

    Raises:
        OSError: a local file cannot be opened.
        ReadWriteError: a remote file cannot be opened.
    """
    if isinstance(path, Path):
        file = os.open(path, os.O_RDONLY)
        return file, os.fstat(file).st_size
    remote = RemoteFile(path)
    return remote, remote.size


def arrow_file(path: Path, mode: Literal["rb", "wb"] = "rb") -> pa.OSFile:
    """Open a local file with pyarrow, which accepts a name that is not UTF-8 as bytes only."""
    import pyarrow as pa  # noqa: PLC0415 - completion reads names of columns without it

    return pa.OSFile(os.fsencode(path), mode)


def read_at(file: OpenFile, size: int, at: int) -> bytes:
    """Return bytes at an offset of an open file; raises as `open_file`."""
    return os.pread(file, size, at) if isinstance(file, int) else file.read_at(size, at)


@contextmanager
def opened(path: AnyPath) -> Iterator[tuple[OpenFile, int]]:
    """Open a file for the block; yield it and its size. Raises as `open_file`."""
    file, size = open_file(path)
    try:
        yield file, size
    finally:
        close_file(file)


def close_file(file: OpenFile) -> None:
    """Close a file that `open_file` opened."""
    if isinstance(file, int):
        os.close(file)


class _Extent:
    """Bytes that will be read from begin to end, fetched in blocks of REQUEST_BYTES."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self._blocks: dict[int, Future[bytes]] = {}

    def fetch(self, number: int, file: RemoteFile, pool: ThreadPoolExecutor) -> None:
        """Request a block, unless it is requested already or lies behind the end."""
        begin = self.begin + number * REQUEST_BYTES
        if begin < self.end and number not in self._blocks:
            size = min(REQUEST_BYTES, self.end - begin)
            self._blocks[number] = pool.submit(file.read_at, size, begin)

    def read(self, at: int, stop: int, file: RemoteFile, pool: ThreadPoolExecutor) -> bytes:
        """Return bytes of the extent, and drop the blocks before them."""
        first, last = (at - self.begin) // REQUEST_BYTES, (stop - 1 - self.begin) // REQUEST_BYTES
        for number in range(first, last + 1 + PREFETCH):
            self.fetch(number, file, pool)
        data = b"".join(self._blocks[number].result() for number in range(first, last + 1))
        for number in [number for number in self._blocks if number < first]:
            del self._blocks[number]
        begin = at - self.begin - first * REQUEST_BYTES
        return data[begin : begin + stop - at]


class PrefetchedFile(io.RawIOBase):
    """A remote file with a position, for `pyarrow.PythonFile`; not thread-safe.

    At most 1 + PREFETCH blocks of each announced extent are in memory.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0
        self._extents: dict[int, list[_Extent]] = {}
        self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="rlpost-fetch")

    def announce(self, key: int, extents: Iterable[tuple[int, int]]) -> None:
        """Start to fetch extents (begin, end) that will be read next."""
        if key not in self._extents:
            self._extents[key] = [_Extent(begin, end) for begin, end in extents]
            for extent in self._extents[key]:
                extent.fetch(0, self._file, self._pool)

    def forget(self, key: int) -> None:
        """Drop the extents that were announced with lower keys."""
        self._extents = {other: kept for other, kept in self._extents.items() if other >= key}

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes from the position on."""
        size = self._file.size if size is None or size < 0 else size
        at, stop = self._at, min(self._at + size, self._file.size)
        self._at = max(at, stop)
        announced = (extent for extents in self._extents.values() for extent in extents)
        extent = next((e for e in announced if e.begin <= at < stop <= e.end), None)
        if extent is None:
            return self._file.read_at(max(stop - at, 0), at)
        return extent.read(at, stop, self._file, self._pool)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}
        self._at = base[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Cancel pending requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._extents = {}
        super().close()
