"""Uploads: remote files, sent while they are written, that appear when complete."""

from __future__ import annotations

import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.cleanups import register_cleanup, unregister_cleanup
from rlpost.io.ranges import close_file, read_at
from rlpost.io.staged import (
    READ_BYTES,
    ByteRange,
    StagedFile,
    file_errors,
    read_range,
    split_ranges,
)
from rlpost.io.system import write_all
from rlpost.io.threads import map_ordered
from rlpost.io.transfers import transfer_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.paths import AnyPath, RemotePath
    from rlpost.io.ranges import OpenFile


_REQUESTS = 3  # to a remote source, at a time


def stage_file(target: AnyPath | OutputFile) -> OutputFile:
    """Open a file that appears under its target's name when it is complete, if it is not open."""
    if isinstance(target, OutputFile):
        return target
    return StagedFile(target) if isinstance(target, Path) else Upload(target)


class Upload:
    """The counterpart of `StagedFile`, for a remote target; it has `publish` in place of `rename`.

    A thread sends the file from its first byte on: first the copied bytes, then the written ones,
    which are in a temporary file until then.

    Raises:
        ReadWriteError: from every method: the upload failed, or the disk is full.
    """

    def __init__(self, target: RemotePath) -> None:
        self.target = target
        self.ranges: list[ByteRange] = []
        self._source: OpenFile | None = None
        self._transfer = transfer_to(target)
        self._published = False
        register_cleanup(self, self._remove)
        try:
            file, name = tempfile.mkstemp(prefix="rlpost-")
        except OSError as error:
            self._transfer.abort()
            unregister_cleanup(self)
            with file_errors(Path(tempfile.gettempdir()), "cannot be written"):
                raise error from None
        self._file: int | None = file
        self.path = Path(name)
        """The temporary file; callers that do not `write` or `copy` may write all bytes here."""
        self._head = b""
        self._base: int | None = None  # offset in the target of the temporary file's first byte
        self._written = 0
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        self._sending: Future[None] | None = None

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes behind the written and copied ones; return the offset behind them."""
        assert self._file is not None
        if self._sending is not None and self._sending.done():
            self._sending.result()  # raises: the thread only ends before `complete` if it fails
        if at == 0:
            self._head = bytes(data)
            return at + len(data)
        self._base = at if self._base is None else self._base
        with file_errors(self.path, "cannot be written"):
            done = write_all(self._file, data, at - self._base)
        with self._changed:
            self._written = at - self._base + done
            self._changed.notify_all()
        self._start()
        return at + done

    def copy(self, source: OpenFile, ranges: list[ByteRange]) -> None:
        """Start a thread that sends ranges of an open file; call it at most once.

        The source is closed by this object.
        """
        self._source, self.ranges = source, ranges
        self._start()

    def complete(self) -> None:
        """Wait until everything is sent; the object does not exist yet."""
        assert self._file is not None
        if self._base is None and self._source is None:
            self._written = os.fstat(self._file).st_size
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._start().result()
        self._release()

    def publish(self) -> None:
        """Make the object appear under the target's name."""
        self._transfer.finish()
        self._published = True
        unregister_cleanup(self)

    def discard(self) -> None:
        """Stop the thread, and remove what was sent unless it is published; never raises."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._sending is not None:
            self._sending.exception()
        self._remove()
        unregister_cleanup(self)

    def _remove(self) -> None:
        if not self._published:
            self._transfer.abort()
        self._release()

    def _start(self) -> Future[None]:
        if self._sending is None:
            pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-send")
            expected = sum(span.size for span in self.ranges)
            self._sending = pool.submit(self._transfer.send, self._blocks(), expected)
            pool.shutdown(wait=False)
        return self._sending

    def _blocks(self) -> Iterator[bytes]:
        """Yield all bytes, in order, as soon as they are available."""
        yield self._head
        if self._source is not None:
            yield from map_ordered(self._fetch, split_ranges(self.ranges), _REQUESTS)
        assert self._file is not None
        sent, ended = 0, False
        while not ended:
            written, ended = self._wait_for_more(sent)
            while sent < written and not self._stopped:
                yield read_at(self._file, min(READ_BYTES, written - sent), sent)
                sent = min(sent + READ_BYTES, written)

    def _wait_for_more(self, sent: int) -> tuple[int, bool]:
        """Wait for READ_BYTES more to send; return the bytes written, and whether that is all."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._ended or self._written >= sent + READ_BYTES
            )
            return self._written, self._ended or self._stopped

    def _fetch(self, span: ByteRange) -> bytes:
        """Read bytes of the source; none after `discard`."""
        assert self._source is not None
        return b"" if self._stopped else read_range(self._source, span, self.target)

    def _release(self) -> None:
        if self._source is not None:
            source, self._source = self._source, None
            close_file(source)
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
                self.path.unlink()


OutputFile = StagedFile | Upload
"""A file that appears under its target's name when it is complete."""
