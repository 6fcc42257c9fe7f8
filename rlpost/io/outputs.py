"""Output files: written under a temporary name, complete when others see them, or undone.

Every file that rlpost writes for others is an `OutputFile`. A local one is written beside its
target and renamed; what goes to a store is written to the system's temporary folder and sent
meanwhile. The temporary file is locked as long as it is there (`rlpost.io.locks`).
"""

from __future__ import annotations

import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from rlpost.cleanups import published, register_cleanup, unregister_cleanup
from rlpost.errors import ReadWriteError
from rlpost.io.locks import UPLOAD, claim, open_locked, remove_uploads
from rlpost.io.paths import check_replaceable
from rlpost.io.ranges import close_file, read_at
from rlpost.io.shutdown import installed, signals_deferred
from rlpost.io.system import (
    allow_open_files,
    copy_range,
    is_same_file,
    sync_data,
    sync_folder,
    write_all,
)
from rlpost.io.threads import map_ordered
from rlpost.io.transfers import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from rlpost.io.paths import AnyPath
    from rlpost.io.ranges import OpenFile, RemoteFile


T = TypeVar("T")

READ_BYTES = 8 << 20  # of a request to a remote source at a time
COPY_BYTES = 64 << 20  # of a local copy at a time, so that a stop is heard
SMALL_BYTES = 1 << 20  # what is copied without a thread
_REQUESTS = 4  # to a remote source at a time
_PUBLISHED = 8  # objects that are published at a time
_OTHER_FILES = 256  # that are open beside the outputs
_SHORTER = "the source became shorter during the copy; run again when no other process writes it"


class ByteRange(NamedTuple):
    """Consecutive bytes to copy."""

    begin: int
    """Offset in the source."""
    size: int
    at: int
    """Offset in the target."""


@contextmanager
def file_errors(path: AnyPath, what: str) -> Iterator[None]:
    """Convert an OSError to a ReadWriteError that names the file and what failed."""
    try:
        yield
    except OSError as error:
        raise ReadWriteError(f"{path}: {what}: {error.strerror or error}") from None


class OutputFile:
    """A file that appears under its target's name when it is complete and published.

    The end of a `with` block discards it unless it was published. The bytes of an object are sent
    in order, while they are copied and written.

    Raises:
        ReadWriteError: from every method: the folder is not writable, the disk is full, or a
            request failed.
    """

    def __init__(self, target: AnyPath) -> None:
        self.target = target
        self.ranges: list[ByteRange] = []
        """What `copy` copies."""
        self._file: int | None = None
        self._source: OpenFile | None = None
        self._copying: Future[None] | None = None
        self._transfer: Transfer | None = None
        self._copied = self._written = 0  # where the bytes end that are copied and written
        self._copies = self._ended = self._stopped = False
        self._changed = threading.Condition()
        if isinstance(target, Path):
            if target.exists() and not target.is_file():
                raise ReadWriteError(f"{target}: cannot be written: not a regular file")
            with self._errors():
                self.path, self._file = open_locked(target)
            self._exists = True
            return
        place = Path(tempfile.gettempdir()) / UPLOAD
        remove_uploads(place.parent)
        with file_errors(place.parent, "cannot be written"):
            self.path, self._file = open_locked(place, 0o600)
        self._exists = True
        self._transfer = Transfer(target, self.path, self._read)
        register_cleanup(self._transfer, self._transfer.abort)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.discard()

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes at an offset, those of an object in order; return the offset behind them.

        Callers that neither `write` nor `copy` may write all bytes to the file at `path`.
        """
        assert self._file is not None
        if self._transfer is not None:
            self._transfer.check()
        with self._errors():
            end = at + write_all(self._file, data, at)
        with self._changed:
            self._written = end
            self._changed.notify_all()
        if at:  # what is copied comes behind the first bytes
            self._send_early()
        return end

    def copy(self, source: OpenFile, ranges: list[ByteRange]) -> None:
        """Copy ranges of an open file, in a thread unless they are small; call it at most once.

        The source is closed by this object. The thread syncs the copied bytes, so that `complete`
        has little left to sync. Small ranges of a local file are copied by `complete`.
        """
        self._source, self.ranges, self._copies = source, ranges, True
        if not isinstance(source, int) or sum(span.size for span in ranges) > SMALL_BYTES:
            self._copying = _in_thread(partial(self._copy, sync=self._transfer is None))
            self._send_early()

    def _copy(self, *, sync: bool) -> None:
        """Copy the ranges; end early after `discard`."""
        assert self._file is not None
        with self._errors():
            pieces = self._local_pieces if isinstance(self._source, int) else self._remote_pieces
            for end in pieces(self._source, self._file):  # type: ignore[arg-type]
                with self._changed:
                    self._copied = end
                    self._changed.notify_all()
                if self._stopped:
                    return
            if sync:
                sync_data(self._file)
        with self._changed:
            self._copies = False
            self._changed.notify_all()

    def _local_pieces(self, source: int, file: int) -> Iterator[int]:
        """Copy from a local file; yield the offset behind each piece."""
        for begin, size, at in _split(self.ranges, COPY_BYTES):
            done = 0
            while done < size:
                copied = copy_range(source, file, size - done, begin + done, at + done)
                if not copied:
                    raise OSError(_SHORTER)
                done += copied
            yield at + size

    def _remote_pieces(self, source: RemoteFile, file: int) -> Iterator[int]:
        """Copy from a remote file, several requests at a time; yield the offset behind each."""

        def fetch(span: ByteRange) -> tuple[int, bytes]:
            return span.at, b"" if self._stopped else source.read_at(span.size, span.begin)

        for at, data in map_ordered(fetch, _split(self.ranges, READ_BYTES), _REQUESTS):
            yield at + write_all(file, data, at)

    def _send_early(self) -> None:
        """Start to send the bytes, unless the store takes them in one request."""
        if self._transfer is not None:
            self._transfer.begin(self._expected)

    @property
    def _expected(self) -> int:
        """About how many bytes there will be."""
        return sum(span.size for span in self.ranges)

    def _read(self, begin: int, size: int) -> bytes:
        """Return bytes as soon as they are all there; fewer at the end, none after `discard`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._ended or self._ready >= begin + size
            )
            stop = min(begin + size, self._ready)
        if self._stopped:
            return b""
        assert self._file is not None
        return read_at(self._file, stop - begin, begin)

    @property
    def _ready(self) -> int:
        """The end of the bytes that are there without a gap."""
        return self._copied if self._copies else max(self._copied, self._written)

    def complete(self) -> None:
        """Write all bytes to the disk or the store; the target does not change yet."""
        assert self._file is not None
        if self._copying is not None:
            self._copying.result()
        elif self._copies:
            self._copy(sync=False)
        if self._transfer is None:
            with self._errors():
                os.fsync(self._file)
        else:
            with self._changed:
                self._written, self._ended = os.fstat(self._file).st_size, True
                self._changed.notify_all()
            if not self._transfer.send(self._expected):
                self._remove()
        self._close_source()

    def publish(self) -> None:
        """Make the completed file appear; the caller must sync the folder of a local one."""
        if self._transfer is not None:
            self._transfer.finish()
            unregister_cleanup(self._transfer)
            self._transfer = None
            self._remove()
            return
        with self._errors():
            self.path.replace(self.target)  # type: ignore[arg-type]
        self._exists = False
        self._remove()

    def discard(self) -> None:
        """Stop the threads, and remove what was not published; never raises."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._transfer is not None:
            self._transfer.abort()
            unregister_cleanup(self._transfer)
        if self._copying is not None:
            self._copying.exception()
        self._remove()
        self._close_source()

    def _remove(self) -> None:
        """Close the temporary file, and remove it if it is there: before its lock goes."""
        if self._exists:
            self._unlink()
        self._close()
        unregister_cleanup(self.path)

    def _unlink(self) -> None:
        self._exists = False
        with suppress(OSError):
            self.path.unlink()
            return
        if self._file is not None:  # its folder was renamed
            with suppress(OSError):
                moved = Path(f"/proc/self/fd/{self._file}").readlink()
                if is_same_file(moved, self._file):
                    moved.unlink()

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
        local = isinstance(self.target, Path)
        return file_errors(self.target if local else self.path, "cannot be written")


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Call a function in a new thread."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-output")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def _split(ranges: Sequence[ByteRange], most: int) -> Iterator[ByteRange]:
    """Split ranges into ranges of at most some bytes."""
    for begin, size, at in ranges:
        for done in range(0, size, most):
            yield ByteRange(begin + done, min(most, size - done), at + done)


def publish_files(
    files: Sequence[OutputFile],
    before: Callable[[], None] | None = None,
    folders: Iterable[Path] = (),
) -> None:
    """Publish complete files; a signal is deferred until all of them are published.

    Args:
        files: in the order in which local ones are renamed; objects follow.
        before: is called before the first.
        folders: that are synced beside those of the files, since there are new names in them.

    Raises:
        ReadWriteError: a file cannot be renamed; those before it are published, and perhaps some
            objects after it.
    """
    objects: list[OutputFile] = []
    changed = {*folders}
    with signals_deferred():
        if before is not None:
            before()
        for file in files:
            if isinstance(file.target, Path):
                file.publish()
                changed.add(file.target.parent)
            else:
                objects.append(file)
        for _ in map_ordered(OutputFile.publish, iter(objects), _PUBLISHED):
            pass
        for folder in changed:
            with file_errors(folder, "cannot be written"):
                sync_folder(folder)
        if installed():
            published.extend(str(file.target) for file in files)


def write_file(target: Path, data: bytes | memoryview) -> None:
    """Write a local file as a whole, or leave it as it is.

    Args:
        target: the file, in an existing folder.
        data: its content.

    Raises:
        BusyError: another run writes the file.
        ReadWriteError: it cannot be written.
    """
    with OutputFile(target) as file:
        claim({target: file.path})
        file.write(0, data)
        file.complete()
        publish_files([file])


def read_file(path: Path) -> bytes | None:
    """Return the bytes of a regular file; None if there is none.

    Raises:
        ReadWriteError: it cannot be read, or is a folder or a pipe.
    """
    with file_errors(path, "cannot be read"):
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise ReadWriteError(f"{path}: cannot be read: not a regular file")
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


class OutputFiles:
    """Files that are published together: a context manager that undoes what is not published.

    In the block, the folders of all targets exist, no other run can write the targets, and what
    killed runs left of them is removed.

    Args:
        targets: in the order in which they are published.

    Raises:
        ReadWriteError: on entering: a folder cannot be created or written.
        BusyError: on entering: another run writes a file.
    """

    def __init__(self, targets: Iterable[AnyPath]) -> None:
        self.targets = [*targets]
        self._locked: dict[Path, OutputFile] = {}
        self._files: dict[AnyPath, OutputFile] = {}
        self._created: list[Path] = []
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        check_replaceable()
        allow_open_files(len(self.targets) + _OTHER_FILES)
        with ExitStack() as undo:
            for target in self.targets:
                self._create_folders(target, undo)
                if isinstance(target, Path):
                    self._locked[target] = file = OutputFile(target)
                    undo.callback(file.discard)
            claim({target: file.path for target, file in self._locked.items()})
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _create_folders(self, target: AnyPath, undo: ExitStack) -> None:
        """Create the folders of a target that are missing."""
        missing = [folder for folder in target.parents if not folder.exists()]
        try:
            for folder in reversed(missing):
                register_cleanup(folder, folder.rmdir)
                undo.callback(_remove_folder, folder)
                folder.mkdir(exist_ok=True)
                self._created.append(folder)
        except OSError as error:
            raise ReadWriteError(f"{target}: cannot be written: {error.strerror}") from None

    def stage(self, target: AnyPath) -> OutputFile:
        """Return the file of a target, to be written.

        Raises:
            ReadWriteError: it cannot be created.
        """
        file = self._locked[target] if isinstance(target, Path) else OutputFile(target)
        self._files[target] = file
        self._undo.callback(file.discard)
        return file

    def drop(self, target: AnyPath) -> None:
        """Discard the file of a target, which then stays as it is."""
        self._files.pop(target).discard()

    def complete(self) -> None:
        """Sync and close the files.

        Raises:
            ReadWriteError: one cannot be written.
        """
        for file in self._files.values():
            file.complete()

    def publish(self) -> None:
        """Publish the complete files; see `publish_files`."""
        files = [self._files[target] for target in self.targets if target in self._files]
        publish_files(files, folders=[folder.parent for folder in self._created])


def _remove_folder(folder: Path) -> None:
    """Remove a folder that was created, unless a file was published in it."""
    unregister_cleanup(folder)
    with suppress(OSError):
        folder.rmdir()
