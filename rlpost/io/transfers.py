"""Transfers: the bytes of a remote object are sent so that it appears whole or not at all."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rlpost.io.paths import remote_errors
from rlpost.io.stores import HTTP_SCHEMES, MAX_PARTS, PART_BYTES, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlpost.io.paths import RemotePath
    from rlpost.io.stores import ObjectInfo


SMALL_BYTES = 1 << 20  # an object that is sent in one request costs as much as completing an upload
IN_FLIGHT = 3  # parts that are sent at a time
_ABORT_SECONDS = 1.0  # to wait for obstore to abort an upload: a process that is stopped has 1.3
_CANNOT = "cannot be written"
Read = Callable[[int, int], bytes]
"""Returns bytes from an offset on when they are written; fewer at the end of the file."""


class Transfer:
    """Sends a file to an object, which appears on `finish`, or never after `abort`.

    A large file goes to S3, Google Cloud Storage and Azure in parts while it is written; any other
    one goes to its store in one request when it is complete. obstore completes an upload when the
    iterator of its parts ends, and aborts it if the iterator raises. So the iterator waits at its
    end for `finish` or `abort`, in a thread. What killed processes left is aborted by the next
    upload to S3, removed by Azure after a week, and by Google by a lifecycle rule.

    Args:
        target: the object.
        path: the file.
        read: returns its bytes.

    Raises:
        ReadWriteError: from `send`, `check` and `finish`, after the client's retries.
    """

    def __init__(self, target: RemotePath, path: Path, read: Read) -> None:
        self.target = target
        self._path, self._read = path, read
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._sent, self._decided = threading.Event(), threading.Event()
        self._in_parts = self._publish = False
        self._size = 0  # of what is sent in parts
        self._before: ObjectInfo | None = None

    def begin(self, expected: int) -> None:
        """Begin to send parts while the file is written, if the store takes parts.

        Args:
            expected: about how many bytes there will be.
        """
        store = self.target.store
        takes_parts = isinstance(store, ObjectStore) and self.target.scheme not in HTTP_SCHEMES
        if self._thread is None and takes_parts:
            # A factor of 3: new columns may have twice the size of the kept ones.
            size = max(PART_BYTES, 3 * expected // MAX_PARTS)
            self._thread = threading.Thread(
                target=self._run, args=(store, size), name="rlpost-upload", daemon=True
            )
            self._thread.start()

    def check(self) -> None:
        """Raise what went wrong until now."""
        if self._error is not None:
            raise self._error

    def send(self, expected: int) -> bool:
        """Send the complete file, or all of it that may be sent; return whether `finish` needs it.

        Args:
            expected: as of `begin`.
        """
        self.begin(expected)
        if self._thread is not None:
            self._sent.wait()
            self.check()
        return not self._in_parts

    def finish(self) -> None:
        """Make the object appear."""
        if self._in_parts:
            self._publish = True
            self._decided.set()
            assert self._thread is not None
            self._thread.join()
            if not self._is_complete():
                self.check()
        else:
            with remote_errors(self.target, _CANNOT):
                self.target.store.put(self.target.path, self._path)
        self.target.forget()

    def abort(self) -> None:
        """Remove what was sent; never raises."""
        self._decided.set()
        if self._in_parts and self._thread is not None:
            self._thread.join(_ABORT_SECONDS)
            if self._thread.is_alive():  # it waits for a part
                self.target.store.abort_uploads(self.target.path, {self.target.name})

    def _run(self, store: ObjectStore, size: int) -> None:
        """Send parts of equal size, which some stores require; leave a small file to `finish`."""
        try:
            first = self._read(0, size)
            if len(first) > SMALL_BYTES or len(first) == size:
                self._in_parts, self._before = True, self.target.info()
                self.target.store.abort_uploads(self.target.path, {self.target.name})
                with remote_errors(self.target, _CANNOT):
                    parts = self._until_decided(self._parts(first, size))
                    store.put_parts(self.target.path, parts, size, IN_FLIGHT)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._error = error
        self._sent.set()

    def _parts(self, part: bytes, size: int) -> Iterator[bytes]:
        """Yield the parts of the file from its first on."""
        while part:
            self._size += len(part)
            yield part
            part = self._read(self._size, size) if len(part) == size else b""

    def _until_decided(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Yield full parts, and the last one when the object may appear."""
        # obstore keeps an incomplete part in memory; here a file has it until then
        with tempfile.TemporaryFile(prefix="rlpost-") as file:
            last = b""
            for part in parts:
                if last:
                    yield last
                last = part
            file.write(last)
            last = b""
            self._sent.set()
            self._decided.wait()
            if not self._publish:
                raise InterruptedError("the upload is aborted")
            file.seek(0)
            yield file.read()

    def _is_complete(self) -> bool:
        """Return whether the object is there, though perhaps the last response was lost."""
        if self._error is None:
            return True
        self.target.forget()
        with suppress(Exception):
            info, before = self.target.info(), self._before
            return info is not None and info.size == self._size and info != before
        return False
