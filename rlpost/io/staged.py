"""Staged files: written beside their targets, and renamed to them when they are complete."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from rlpost.cleanups import unregister_cleanup
from rlpost.errors import ReadWriteError
from rlpost.io.locks import open_locked
from rlpost.io.ranges import close_file, read_at
from rlpost.io.system import RENAMES_OPEN_FILES, copy_range, sync_data, write_all
from rlpost.io.threads import map_ordered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rlpost.io.paths import AnyPath
    from rlpost.io.ranges import OpenFile, RemoteFile


READ_BYTES = 8 << 20  # of a request to a remote source at a time
COPY_BYTES = 64 << 20  # of a local copy at a time, so that a stop is heard
SMALL_BYTES = 1 << 20  # what is copied without a thread
_REQUESTS = 4  # at a time
_SHORTER = "the source became shorter during the copy; run again when no other process writes it"


class ByteRange(NamedTuple):
    """Consecutive bytes to copy."""

    begin: int
    """Offset in the source."""
    size: int
    at: int
    """Offset in the target."""


def split_ranges(ranges: Sequence[ByteRange]) -> Iterator[ByteRange]:
    """Split ranges into ranges of at most READ_BYTES."""
    for begin, size, at in ranges:
        for done in range(0, size, READ_BYTES):
            yield ByteRange(begin + done, min(READ_BYTES, size - done), at + done)


@contextmanager
def file_errors(path: AnyPath, what: str) -> Iterator[None]:
    """Convert an OSError to a ReadWriteError that names the file and what failed."""
    try:
        yield
    except OSError as error:
        raise ReadWriteError(f"{path}: {what}: {error.strerror or error}") from None


def read_range(source: OpenFile, span: ByteRange, target: AnyPath) -> bytes:
    """Read all bytes of a range; raises ReadWriteError about the target if there are fewer."""
    with file_errors(target, "cannot be written"):
        data = read_at(source, span.size, span.begin)
        if len(data) != span.size:
            raise OSError(_SHORTER)
    return data


class StagedFile:
    """A local file that is written beside its target, and renamed to it when it is complete.

    It is locked as long as it has its temporary name. The end of a `with` block discards it unless
    it was renamed.

    Raises:
        ReadWriteError: from every method: the folder is not writable, or the disk is full.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._stopped = False
        self.ranges: list[ByteRange] = []
        """What `copy` copies."""
        self._source: OpenFile | None = None
        self._copying: Future[None] | None = None
        if target.exists() and not target.is_file():
            raise ReadWriteError(f"{target}: cannot be written: not a regular file")
        self._file: int | None = None
        with self._errors():
            self.path, self._file = open_locked(target)
        self._exists = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes at an offset; return the offset behind them."""
        assert self._file is not None
        with self._errors():
            done = write_all(self._file, data, at)
        return at + done

    def copy(self, source: OpenFile, ranges: list[ByteRange]) -> None:
        """Copy ranges of an open file, in a thread unless they are small; call it at most once.

        The source is closed by this object. The thread syncs the copied bytes, so that `complete`
        has little left to sync. Small ranges of a local file are copied by `complete`.
        """
        self._source, self.ranges = source, ranges
        if isinstance(source, int) and sum(span.size for span in ranges) <= SMALL_BYTES:
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-copy")
        self._copying = pool.submit(self._copy, source, ranges, sync=True)
        pool.shutdown(wait=False)

    def _copy(self, source: OpenFile, ranges: Sequence[ByteRange], *, sync: bool) -> None:
        assert self._file is not None
        if not isinstance(source, int):
            self._copy_remote(source, ranges)
            return
        with self._errors():
            for begin, size, at in ranges:
                done = 0
                while done < size and not self._stopped:
                    most = min(COPY_BYTES, size - done)
                    copied = copy_range(source, self._file, most, begin + done, at + done)
                    if not copied:
                        raise OSError(_SHORTER)
                    done += copied
            if sync and not self._stopped:
                sync_data(self._file)

    def _copy_remote(self, source: RemoteFile, ranges: Sequence[ByteRange]) -> None:
        """Copy from a remote file, several requests at a time."""

        def fetch(span: ByteRange) -> tuple[ByteRange, bytes]:
            return span, b"" if self._stopped else read_at(source, span.size, span.begin)

        for span, data in map_ordered(fetch, split_ranges(ranges), _REQUESTS):
            if not self._stopped:
                self.write(span.at, data)

    def complete(self) -> None:
        """Wait for the copy, then sync the file; it has its temporary name and its lock."""
        assert self._file is not None
        if self._copying is not None:
            self._copying.result()
        elif self._source is not None:
            self._copy(self._source, self.ranges, sync=False)
        with self._errors():
            os.fsync(self._file)
        self._close_source()

    def rename(self) -> None:
        """Rename the completed file to the target; the caller must sync the folder."""
        with self._errors():
            if not RENAMES_OPEN_FILES:
                self._close()
            self.path.replace(self.target)
        self._exists = False
        unregister_cleanup(self.path)
        self._close()

    def discard(self) -> None:
        """Stop the copy, and remove the file unless it was renamed; never raises."""
        self._stopped = True
        if self._copying is not None:
            self._copying.exception()
        if self._exists and RENAMES_OPEN_FILES:  # before its lock goes
            self._remove()
        self._close()
        if self._exists:
            self._remove()
        unregister_cleanup(self.path)
        self._close_source()

    def _remove(self) -> None:
        self._exists = False
        with suppress(OSError):
            self.path.unlink()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)

    def _close_source(self) -> None:
        if self._source is not None:
            close_file(self._source)
        self._source = None

    def _errors(self) -> AbstractContextManager[None]:
        return file_errors(self.target, "cannot be written")


class StandardOutput:
    """Standard output, written as a `StagedFile` is; what is written cannot be discarded.

    Raises:
        BrokenPipeError: the reader closed it.
    """

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes behind those that were written; return the offset behind them."""
        buffer = getattr(sys.stdout, "buffer", None)  # a notebook has text alone
        if buffer is None:
            sys.stdout.write(bytes(data).decode())
        else:
            sys.stdout.flush()
            buffer.write(data)
        return at + len(data)

    def flush(self) -> None:
        """Send what is in the buffer."""
        sys.stdout.flush()
