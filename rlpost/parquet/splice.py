"""Splicing: a source's column chunks are copied as they are, new ones are put behind them.

Nothing that stays is decoded. Each row group of the output is the kept chunks of the source's row
group, byte for byte, and then the new columns' chunks; one footer joins both schemas and gives the
chunks their new offsets. Bloom filters are copied too. Page indexes are not: readers disagree about
files where only some columns have one.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError
from rlpost.parquet.footer import MAGIC, Chunk, FileMeta, Group, Meta, Struct, Wire, seal
from rlpost.parquet.plan import add_key_values, extent, joined_meta, metas_of, move

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa

    from rlpost.parquet.encode import Encoded, Encoder

COPY_STEP = 64 << 20
_NO_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Turn an OSError into one that says which file and what failed."""
    try:
        yield
    except OSError as error:
        raise ReadWriteError(f"{path}: {what}: {error.strerror or error}") from None


class Staged:
    """A file that is written beside its target and takes its name when it is complete."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._stopped = False
        self.path = target.with_name(
            f".{target.name}.rlpost-{os.getpid()}-{secrets.token_hex(4)}.tmp"
        )
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._naming():
            self._file: int | None = os.open(self.path, flags, 0o666)
        self._there = True

    def write(self, at: int, data: bytes | memoryview) -> int:
        """Write bytes at an offset, and return the offset behind them."""
        assert self._file is not None
        with self._naming(), memoryview(data) as left:
            done = 0
            while done < len(left):
                done += os.pwrite(self._file, left[done:], at + done)
        return at + done

    def copy(self, source: int, begin: int, size: int, at: int) -> None:
        """Copy bytes of an open file to an offset, unless `stop` is called."""
        assert self._file is not None
        with self._naming():
            while size and not self._stopped:
                done = _copy_some(source, self._file, begin, min(size, COPY_STEP), at)
                if not done:
                    raise OSError("the source became shorter while it was copied")
                begin, size, at = begin + done, size - done, at + done

    def complete(self) -> None:
        """Sync and close the file: it is whole, under its own name."""
        assert self._file is not None
        with self._naming():
            os.fsync(self._file)
            file, self._file = self._file, None
            os.close(file)

    def publish(self) -> None:
        """Give the completed file the target's name."""
        with self._naming():
            self.path.replace(self.target)
            self._there = False

    def stop(self) -> None:
        """Let a copy in another thread end soon."""
        self._stopped = True

    def discard(self) -> None:
        """Remove the file unless it is published; no other thread may use it any more."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
        if self._there:
            self._there = False
            with suppress(OSError):
                self.path.unlink()

    def _naming(self) -> AbstractContextManager[None]:
        return naming(self.target, "cannot be written")


def _copy_some(source: int, target: int, begin: int, size: int, at: int) -> int:
    """Copy some bytes between files, in the kernel where it can; return how many, 0 at the end."""
    try:
        return os.copy_file_range(source, target, size, begin, at)
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
    return os.pwrite(target, os.pread(source, size, begin), at)


class SpliceSink:
    """Writes kept columns by copying and new ones by encoding; see `Sink`.

    Copying runs in a thread of its own. Encoded pages wait in memory until their row group is full:
    a chunk's pages must follow one another.

    Args:
        footer: what `plan` made of the source's.
        encoder: makes the new columns' pages.
        output: the file to write; published or discarded here.
        source: the open source file, closed here; None where no column stays.
    """

    def __init__(
        self,
        footer: Struct,
        encoder: Encoder,
        output: Staged,
        source: int | None,
    ) -> None:
        self.reason: str | None = None
        self._footer = footer
        self._groups = footer.structs(FileMeta.ROW_GROUPS)
        self._encoder = encoder
        self._output = output
        self._source = source
        self._end = output.write(0, MAGIC)
        self._current = -1
        self._parts: list[Encoded] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rlpost-copy")
        self._copies: deque[Future[None]] = deque()
        self._begin_group()

    def encode(self, columns: pa.RecordBatch) -> Encoded:
        """Encode new columns; any thread may."""
        return self._encoder.encode(columns)

    def append(self, row_group: int, encoded: Encoded) -> None:
        """Add the next rows of a row group."""
        if not encoded.rows:
            return
        while self._current < min(row_group, len(self._groups)):
            self._finish_group()
        if row_group != self._current or encoded.rows > self._missing():
            raise ValueError(f"row group {row_group} got more rows than it has")
        self._parts.append(encoded)
        if not self._missing():
            self._finish_group()

    def write(self, row_group: int, columns: pa.RecordBatch) -> None:
        """Encode and add the next rows of a row group."""
        self.append(row_group, self.encode(columns))

    def close(self, metadata: Mapping[str, str]) -> None:
        """Complete the file and publish it."""
        self.complete(metadata)
        self.publish()

    def publish(self) -> None:
        """Give the completed file the target's name."""
        self._output.publish()

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with these entries added, and sync the file."""
        while self._current < len(self._groups):
            self._finish_group()
        self._copy_blooms()
        self._pool.shutdown()
        for copy in self._copies:
            copy.result()
        add_key_values(self._footer, metadata)
        self._output.write(self._end, seal(self._footer))
        self._output.complete()
        self._release()

    def abort(self) -> None:
        """Remove what was written; harmless after `close` and when called again."""
        self._output.stop()
        self._pool.shutdown(cancel_futures=True)
        self._output.discard()
        self._release()

    def _release(self) -> None:
        if self._source is not None:
            os.close(self._source)
        self._source = None

    def _missing(self) -> int:
        """Count the rows that the current row group still lacks; there are none behind the last."""
        if self._current == len(self._groups):
            return 0
        rows = sum(part.rows for part in self._parts)
        return self._groups[self._current].integer(Group.ROWS) - rows

    def _begin_group(self) -> None:
        """Give the next row group's kept chunks their places, and start to copy them."""
        self._current += 1
        self._parts = []
        if self._current == len(self._groups):
            return
        group = self._groups[self._current]
        group.put(Group.OFFSET, Wire.I64, self._end)
        runs: list[list[int]] = []
        for meta in sorted(metas_of(group), key=extent):
            begin, stop = extent(meta)
            move(meta, self._end - begin)
            if runs and runs[-1][1] == begin:
                runs[-1][1] = stop
            else:
                runs.append([begin, stop, self._end])
            self._end += stop - begin
        for begin, stop, at in runs:
            self._copy(begin, stop - begin, at)

    def _finish_group(self) -> None:
        """Write the new chunks of a row group that has all of its rows."""
        if self._missing():
            raise ValueError(f"row group {self._current} lacks {self._missing()} rows")
        group = self._groups[self._current]
        parts = self._parts or [self._encoder.encode(self._encoder.nothing)]
        columns = group.structs(Group.COLUMNS)
        for pieces in zip(*(part.pieces for part in parts), strict=True):
            meta = joined_meta([piece.meta for piece in pieces])
            meta.put(Meta.DATA_PAGE, Wire.I64, self._end)
            columns.append(Struct({Chunk.META: (Wire.STRUCT, meta)}).put(Chunk.OFFSET, Wire.I64, 0))
            for piece in pieces:
                for page in piece.pages:
                    self._end = self._output.write(self._end, page)
        group.put_list(Group.COLUMNS, Wire.STRUCT, columns)
        metas = metas_of(group)
        for total, part in ((Group.BYTES, Meta.UNCOMPRESSED), (Group.COMPRESSED, Meta.COMPRESSED)):
            group.put(total, Wire.I64, sum(meta.integer(part) for meta in metas))
        while self._copies and self._copies[0].done():
            self._copies.popleft().result()
        self._begin_group()

    def _copy(self, begin: int, size: int, at: int) -> None:
        assert self._source is not None
        self._copies.append(self._pool.submit(self._output.copy, self._source, begin, size, at))

    def _copy_blooms(self) -> None:
        for group in self._groups:
            for meta in metas_of(group):
                if Meta.BLOOM in meta:
                    size = meta.integer(Meta.BLOOM_LENGTH)
                    self._copy(meta.integer(Meta.BLOOM), size, self._end)
                    meta.put(Meta.BLOOM, Wire.I64, self._end)
                    self._end += size
