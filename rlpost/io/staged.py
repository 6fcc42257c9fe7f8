"""A file that is written beside its target and takes its name when it is complete."""

from __future__ import annotations

import errno
import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from rlpost.errors import ReadWriteError
from rlpost.io.locks import temporary_name
from rlpost.io.ranges import close_file, read_at
from rlpost.io.shutdown import register_cleanup, unregister_cleanup
from rlpost.io.threads import map_ordered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rlpost.io.paths import AnyPath
    from rlpost.io.ranges import OpenFile, RemoteFile


COPY_BYTES = 64 << 20
READ_BYTES = 8 << 20  # bytes of a request to a remote source
_REQUESTS = 4  # at a time
_NO_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class ByteRange(NamedTuple):
    """Bytes that are copied together: where they begin, how many, and where they go."""

    begin: int
    size: int
    at: int


def split_ranges(runs: Sequence[ByteRange]) -> Iterator[ByteRange]:
    """The same bytes, at most STEP together."""
    for begin, size, at in runs:
        for done in range(0, size, READ_BYTES):
            yield ByteRange(begin + done, min(READ_BYTES, size - done), at + done)


@contextmanager
def file_errors(path: AnyPath, what: str) -> Iterator[None]:
    """Turn an OSError into one that says which file and what failed."""
    try:
        yield
    except OSError as error:
        raise ReadWriteError(f"{path}: {what}: {error.strerror or error}") from None


def read_range(source: OpenFile, run: ByteRange, target: AnyPath) -> bytes:
    """All bytes of a run; raises ReadWriteError of the target where there are fewer."""
    with file_errors(target, "cannot be written"):
        data = read_at(source, run.size, run.begin)
        if len(data) != run.size:
            raise OSError("the source became shorter while it was copied")
    return data


class StagedFile:
    """A file that is written beside its target and takes its name when it is complete.

    Raises:
        ReadWriteError: from every method: the target's folder or disk does not take the file.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._stopped = False
        self.runs: list[ByteRange] = []
        self._source: OpenFile | None = None
        self._copying: Future[None] | None = None
        if target.exists() and not target.is_file():
            raise ReadWriteError(f"{target}: cannot be written: it is no regular file")
        self.path = target.with_name(temporary_name(target.name, secrets.token_hex(4)))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        register_cleanup(self.path, self.path.unlink)
        with self._naming():
            self._file: int | None = os.open(self.path, flags, 0o666)
        self._there = True
        self.summing = False
        """Whether `sums` are kept; they take time."""
        self.sums: list[tuple[int, int, int]] = []
        """Where `write` wrote, how many bytes, and their CRC-32: to read them again by."""

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes at an offset, and return the offset behind them."""
        assert self._file is not None
        with self._naming():
            done = write_all(self._file, data, at)
        if self.summing:
            self.sums.append((at, done, crc32(data)))
        return at + done

    def copy(self, source: OpenFile, runs: list[ByteRange]) -> None:
        """Begin to copy bytes of an open file, in a thread, once; the file is closed here.

        They go on to the disk at once, so that little is left to sync when the rest is written.
        """
        self._source, self.runs = source, runs
        pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-copy")
        self._copying = pool.submit(self._copy, source, runs)
        pool.shutdown(wait=False)

    def _copy(self, source: OpenFile, runs: Sequence[ByteRange]) -> None:
        assert self._file is not None
        if not isinstance(source, int):
            self._fetch(source, runs)
            return
        with self._naming():
            for begin, size, at in runs:
                done = 0
                while done < size and not self._stopped:
                    step = min(size - done, COPY_BYTES)
                    copied = _copy_some(source, self._file, begin + done, step, at + done)
                    if not copied:
                        raise OSError("the source became shorter while it was copied")
                    done += copied
            if not self._stopped:
                os.fdatasync(self._file)

    def _fetch(self, source: RemoteFile, runs: Sequence[ByteRange]) -> None:
        """Copy from a remote file, some requests at a time."""

        def fetched(step: ByteRange) -> tuple[int, bytes]:
            return step.at, b"" if self._stopped else read_at(source, step.size, step.begin)

        for at, data in map_ordered(fetched, split_ranges(runs), _REQUESTS):
            if not self._stopped:
                self.write(at, data)

    def original(self, run: ByteRange) -> bytes:
        """Bytes of the file that is copied from."""
        assert self._source is not None
        return read_range(self._source, run, self.target)

    def complete(self) -> None:
        """Wait for the copy, sync and close the file: it is whole, under its own name."""
        assert self._file is not None
        if self._copying is not None:
            self._copying.result()
        with self._naming():
            os.fsync(self._file)
            file, self._file = self._file, None
            os.close(file)
        self._release()

    def publish(self) -> None:
        """Give the completed file the target's name, for good: the folder is synced, too."""
        self.rename()
        with self._naming():
            sync_folder(self.target.parent)

    def rename(self) -> None:
        """Give the completed file the target's name; the folder is the caller's to sync."""
        with self._naming():
            self.path.replace(self.target)
        self.keep()

    def keep(self) -> None:
        """Let the completed file stay under its own name: `discard` does not remove it."""
        self._there = False
        unregister_cleanup(self.path)

    def discard(self) -> None:
        """Stop copying, and remove the file unless it is published; never raises."""
        self._stopped = True
        if self._copying is not None:
            self._copying.exception()
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
        if self._there:
            self._there = False
            with suppress(OSError):
                self.path.unlink()
        unregister_cleanup(self.path)
        self._release()

    def _release(self) -> None:
        if self._source is not None:
            close_file(self._source)
        self._source = None

    def _naming(self) -> AbstractContextManager[None]:
        return file_errors(self.target, "cannot be written")


def write_all(file: int, data: bytes | memoryview, at: int) -> int:
    """Write bytes at an offset of an open file, and return how many they are; or OSError."""
    with memoryview(data) as left:
        done = 0
        while done < len(left):
            done += os.pwrite(file, left[done:], at + done)
    return done


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the disk, where its file system can; raises OSError."""
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # it may be written to and not be read
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(file)


def _copy_some(source: int, target: int, begin: int, size: int, at: int) -> int:
    """Copy some bytes between files, in the kernel where it can; return how many, 0 at the end."""
    try:
        return os.copy_file_range(source, target, size, begin, at)
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
    return os.pwrite(target, os.pread(source, size, begin), at)
