"""Writing: new columns are put behind a file's own ones, by splicing where that is possible.

The output appears under its name only when it is complete: it is written beside the target, synced,
and renamed.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.parquet.footer import (
    MAGIC,
    Chunk,
    DamagedError,
    EncryptedError,
    FileMeta,
    FooterError,
    Group,
    Meta,
    Struct,
    Wire,
    load,
    seal,
)
from rlpost.parquet.rewrite import Encoded, Encoder, RewriteSink, SourceRows
from rlpost.parquet.splice import add_key_values, extent, joined_meta, metas_of, move, plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

COPY_STEP = 64 << 20
_NO_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class Sink(Protocol):
    """Takes new columns row group by row group, each in as many batches as one likes.

    `write` is `append` of `encode`. `encode` is the expensive part and may run in any thread; the
    rest is for one thread, and `append` takes batches in the order of the rows.
    """

    @property
    def reason(self) -> str | None:
        """Why the source's columns are decoded and encoded anew; None if they are copied."""

    def encode(self, columns: pa.RecordBatch) -> Any:
        """Prepare the next rows' new columns for `append`."""

    def append(self, row_group: int, encoded: Any) -> None:
        """Add the next rows of a row group of the source."""

    def write(self, row_group: int, columns: pa.RecordBatch) -> None:
        """Encode and add the next rows of a row group of the source."""

    def close(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with these key-value entries added, sync, rename to the target."""

    def abort(self) -> None:
        """Remove what was written; never raises, and does nothing after `close`."""


def open_sink(
    source: Path,
    target: Path,
    fields: pa.Schema,
    *,
    drop: Collection[str] = (),
    keep: Collection[str] | None = None,
    constant: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    force_rewrite: bool = False,
    codec: str = "zstd",
    level: int | None = None,
) -> Sink:
    """Open a sink for one file.

    Args:
        source: the Parquet file whose columns come first in the output; it may be the target.
        target: the file to write; replaced if it exists.
        fields: the new columns, in order.
        drop: source columns, by top-level name, that the output lacks.
        keep: the only source columns that the output has; None for all.
        constant: new columns that repeat few values, such as advantages that are the same for all
            tokens of a response: they are encoded in the way that suits them.
        aliases: new column -> new column that has the same values; encoded once, and `write` needs
            only the latter.
        force_rewrite: decode and encode the source's columns even where copying would do.
        codec: compression of new columns (all, in a rewrite), "none" for none.
        level: its level; None for 1 with zstd and for the codec's own default otherwise.

    Raises:
        UsageError: a new column has the name of a kept one.
        DataError: the source is damaged or no Parquet file.
        ReadWriteError: the source cannot be opened or is encrypted, or the target's folder is
            not writable.
    """
    encoder = partial(
        Encoder,
        constant=constant,
        aliases=aliases,
        codec=codec,
        level=1 if codec == "zstd" and level is None else level,
    )
    spliced: SpliceSink | str = "it was asked for"
    if not force_rewrite:
        spliced = _splice(source, target, encoder(fields), keep, drop)
    if not isinstance(spliced, str):
        return spliced
    rows = SourceRows(source, keep, drop)
    _check_names(source, rows.fields.names, fields)
    joined = encoder(pa.schema([*rows.fields, *fields]))
    inner = SpliceSink(rows.skeleton(joined), joined, Staged(target), None)
    return RewriteSink(rows, inner, spliced)


def _splice(
    source: Path,
    target: Path,
    encoder: Encoder,
    keep: Collection[str] | None,
    drop: Collection[str],
) -> SpliceSink | str:
    """Open a sink that copies, or say why there can be none."""
    with _naming(source, "cannot be read"), ExitStack() as opened:
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, file)
        try:
            footer, end = load(file, os.fstat(file).st_size)
            names = plan(footer, end, encoder, keep, drop)
        except EncryptedError as error:
            raise ReadWriteError(f"{source}: {error}; decrypt the file first") from None
        except DamagedError as error:
            raise DataError(f"{source}: the file is damaged: {error}") from None
        except FooterError as error:
            return str(error)
        _check_names(source, names, encoder.fields)
        sink = SpliceSink(footer, encoder, Staged(target), file)
        opened.pop_all()
        return sink


def _check_names(source: Path, names: Collection[str], fields: pa.Schema) -> None:
    for name in fields.names:
        if name in names:
            raise UsageError(
                f"{source}: a column `{name}` is there already; replace it or name the new one "
                "otherwise"
            )


@contextmanager
def _naming(path: Path, what: str) -> Iterator[None]:
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

    def publish(self) -> None:
        """Sync the file, close it, and give it the target's name."""
        assert self._file is not None
        with self._naming():
            os.fsync(self._file)
            self.path.replace(self.target)
            file, self._file = self._file, None
            os.close(file)

    def stop(self) -> None:
        """Let a copy in another thread end soon."""
        self._stopped = True

    def discard(self) -> None:
        """Remove the file unless it is published; no other thread may use it any more."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)
            with suppress(OSError):
                self.path.unlink()

    def _naming(self) -> AbstractContextManager[None]:
        return _naming(self.target, "cannot be written")


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
        """Write the footer with these entries added, and publish the file."""
        while self._current < len(self._groups):
            self._finish_group()
        self._copy_blooms()
        self._pool.shutdown()
        for copy in self._copies:
            copy.result()
        add_key_values(self._footer, metadata)
        self._output.write(self._end, seal(self._footer))
        self._output.publish()
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
