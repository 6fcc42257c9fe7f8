"""A remote file that is sent while it is made and appears when it is complete."""

from __future__ import annotations

import os
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.leftovers import settled, undo_at_exit
from rlpost.parallel import in_order
from rlpost.parquet.ranges import close_file
from rlpost.parquet.staged import STEP, Run, Staged, naming, read_run, steps, write_all
from rlpost.parquet.transfers import transfer_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.parquet.places import Place, Remote
    from rlpost.parquet.ranges import Opened

_READERS = 3  # ranges of the source that are fetched at a time


def stage(target: Place) -> Staged | Upload:
    """Begin a file that takes its target's name when it is complete; raises as those two."""
    return Staged(target) if isinstance(target, Path) else Upload(target)


class Upload:
    """What `Staged` is for a local target: the same methods, for a remote one.

    A thread sends the file from its first byte on: what is copied first, and then what is written.
    Until it gets to that, it lies in a temporary file.

    Raises:
        ReadWriteError: from every method: the store does not take the file, or the disk is full.
    """

    def __init__(self, target: Remote) -> None:
        self.target = target
        self.runs: list[Run] = []
        self._source: Opened | None = None
        self._transfer = transfer_to(target)
        self._published = False
        undo_at_exit(self, self._remove)
        try:
            file, name = tempfile.mkstemp(prefix="rlpost-")
        except OSError as error:
            self._transfer.abort()
            settled(self)
            with naming(Path(tempfile.gettempdir()), "cannot be written"):
                raise error from None
        self._file: int | None = file
        self.path = Path(name)
        """Where the waiting bytes lie; who neither writes nor copies may write all of it there."""
        self._head = b""
        self._base: int | None = None  # offset, in the target, of the first waiting byte
        self._written = 0
        self._ended = self._stopped = False
        self._changed = threading.Condition()
        self._sending: Future[None] | None = None

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes behind what was written or copied, and return the offset behind them."""
        assert self._file is not None
        if self._sending is not None and self._sending.done():
            self._sending.result()  # it failed: there is more to send
        if at == 0:
            self._head = bytes(data)
            return at + len(data)
        self._base = at if self._base is None else self._base
        with naming(self.path, "cannot be written"):
            done = write_all(self._file, data, at - self._base)
        with self._changed:
            self._written = at - self._base + done
            self._changed.notify_all()
        self._begin()
        return at + done

    def copy(self, source: Opened, runs: list[Run]) -> None:
        """Begin to send bytes of an open file, in a thread, once; the file is closed here."""
        self._source, self.runs = source, runs
        self._begin()

    def original(self, run: Run) -> bytes:
        """Bytes of the file that is copied from."""
        assert self._source is not None
        return read_run(self._source, run, self.target)

    def complete(self) -> None:
        """Wait until everything is sent; nothing has the target's name yet."""
        assert self._file is not None
        if self._base is None and self._source is None:
            self._written = os.fstat(self._file).st_size
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._begin().result()
        self._release()

    def publish(self) -> None:
        """Let the file appear under the target's name."""
        self._transfer.finish()
        self._published = True
        settled(self)

    def discard(self) -> None:
        """Stop sending, and remove what was sent unless it is published; never raises."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._sending is not None:
            self._sending.exception()
        self._remove()
        settled(self)

    def _remove(self) -> None:
        if not self._published:
            self._transfer.abort()
        self._release()

    def _begin(self) -> Future[None]:
        if self._sending is None:
            pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-send")
            expected = sum(run.size for run in self.runs)
            self._sending = pool.submit(self._transfer.send, self._pieces(), expected)
            pool.shutdown(wait=False)
        return self._sending

    def _pieces(self) -> Iterator[bytes]:
        """All bytes, in order, as they come to be known."""
        yield self._head
        if self._source is not None:
            yield from in_order(self._fetched, steps(self.runs), _READERS)
        assert self._file is not None
        sent, ended = 0, False
        while not ended:
            written, ended = self._more_than(sent)
            while sent < written and not self._stopped:
                yield os.pread(self._file, min(STEP, written - sent), sent)
                sent = min(sent + STEP, written)

    def _more_than(self, sent: int) -> tuple[int, bool]:
        """Wait until there is a step more to send; how much is written, and whether that is all."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._ended or self._written >= sent + STEP
            )
            return self._written, self._ended or self._stopped

    def _fetched(self, step: Run) -> bytes:
        """Some bytes of the source; none once nobody wants them."""
        if self._stopped:
            return b""
        return self.original(step)

    def _release(self) -> None:
        if self._source is not None:
            source, self._source = self._source, None
            close_file(source)
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
                self.path.unlink()
