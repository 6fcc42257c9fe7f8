"""Ranged reads: open files, local and remote, and a remote one as Arrow reads it.

A request to an object store takes tens of milliseconds whatever it asks for. So what will be read
is announced, and fetched in pieces, a few at a time, before it is asked for.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError
from rlpost.io.paths import SLOW_READ, RemotePath, remote_errors, warn_if_slow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.io.paths import AnyPath


REQUEST_BYTES = 4 << 20  # bytes of a request
PREFETCH = 1  # pieces that are fetched of an extent behind the one that is read
REQUESTS = 8  # at a time


class RemoteFile:
    """A remote file, open for reading; any thread may.

    Raises:
        ReadWriteError: it can't be read, or no longer has the bytes that it had.
    """

    def __init__(self, place: RemotePath) -> None:
        self.place = place
        self.size = place.stat().st_size

    def read_at(self, size: int, at: int) -> bytes:
        """The bytes at an offset."""
        if not size:
            return b""
        with remote_errors(self.place, "cannot be read"), warn_if_slow(self.place.url, SLOW_READ):
            data = bytes(self.place.client.cat_file(self.place.path, start=at, end=at + size))
        if len(data) != size:
            raise ReadWriteError(f"{self.place}: changed while it was read; run again")
        return data


OpenFile = int | RemoteFile
"""A file that is open for reading: a descriptor, or a remote one."""


def open_file(place: AnyPath) -> tuple[OpenFile, int]:
    """Open a file; gives its size, too.

    Raises:
        OSError: a local one can't be opened.
        ReadWriteError: a remote one can't.
    """
    if isinstance(place, Path):
        file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        return file, os.fstat(file).st_size
    remote = RemoteFile(place)
    return remote, remote.size


def read_at(file: OpenFile, size: int, at: int) -> bytes:
    """Bytes at an offset of an open file; raises as `open_file`."""
    return os.pread(file, size, at) if isinstance(file, int) else file.read_at(size, at)


def close_file(file: OpenFile) -> None:
    """Close what `open_file` opened."""
    if isinstance(file, int):
        os.close(file)


class _Extent:
    """Bytes that will be read from their begin to their end, fetched piece by piece."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self._pieces: dict[int, Future[bytes]] = {}

    def fetch(self, number: int, file: RemoteFile, pool: ThreadPoolExecutor) -> None:
        """Ask for a piece, unless that is done or there is none."""
        begin = self.begin + number * REQUEST_BYTES
        if begin < self.end and number not in self._pieces:
            size = min(REQUEST_BYTES, self.end - begin)
            self._pieces[number] = pool.submit(file.read_at, size, begin)

    def take(self, at: int, stop: int, file: RemoteFile, pool: ThreadPoolExecutor) -> bytes:
        """Bytes of the extent; what lies before them is forgotten."""
        first, last = (at - self.begin) // REQUEST_BYTES, (stop - 1 - self.begin) // REQUEST_BYTES
        for number in range(first, last + 1 + PREFETCH):
            self.fetch(number, file, pool)
        data = b"".join(self._pieces[number].result() for number in range(first, last + 1))
        for number in [number for number in self._pieces if number < first]:
            del self._pieces[number]
        begin = at - self.begin - first * REQUEST_BYTES
        return data[begin : begin + stop - at]


class PrefetchedFile(io.RawIOBase):
    """A remote file with a position, for `pyarrow.PythonFile`; for one thread at a time.

    Of each announced extent at most 1 + AHEAD pieces are held.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0
        self._extents: dict[int, list[_Extent]] = {}
        self._pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="rlpost-fetch")

    def announce(self, key: int, extents: Iterable[tuple[int, int]]) -> None:
        """Begin to fetch extents, begin and end of each, that will be read next."""
        if key not in self._extents:
            self._extents[key] = [_Extent(begin, end) for begin, end in extents]
            for extent in self._extents[key]:
                extent.fetch(0, self._file, self._pool)

    def forget(self, key: int) -> None:
        """Forget announced extents of lower keys."""
        self._extents = {other: kept for other, kept in self._extents.items() if other >= key}

    def read(self, size: int | None = -1) -> bytes:
        """Bytes from the position on."""
        size = self._file.size if size is None or size < 0 else size
        at, stop = self._at, min(self._at + size, self._file.size)
        self._at = max(at, stop)
        every = (extent for extents in self._extents.values() for extent in extents)
        extent = next((e for e in every if e.begin <= at < stop <= e.end), None)
        if extent is None:
            return self._file.read_at(max(stop - at, 0), at)
        return extent.take(at, stop, self._file, self._pool)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}
        self._at = base[whence] + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Cancel what is not fetched yet."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._extents = {}
        super().close()
