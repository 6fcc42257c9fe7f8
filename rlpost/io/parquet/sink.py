"""Sinks: output files with a source's columns and new ones.

The source's column chunks are copied if possible (`Sink`), otherwise decoded and encoded
(`RewriteSink`). The output appears under its name when it is complete: it is written beside the
target, synced, and renamed.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.outputs import READ_BYTES, OutputFile, file_errors, publish_files
from rlpost.io.parquet.encode import EncodedRows, Encoder, shared_encoder
from rlpost.io.parquet.footer import (
    MAGIC,
    ColumnChunk,
    ColumnMeta,
    DamagedError,
    EncryptedError,
    FileMeta,
    FooterError,
    RowGroup,
    Struct,
    Wire,
    chunk_extent,
    column_metas,
    file_end,
    read_footer,
)
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.parquet.schemas import add_entries, join_file_metadata, key_values, put_key_values
from rlpost.io.parquet.splice import merge_chunks, splice
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.system import write_all

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path
    from typing import IO

    from rlpost.io.paths import AnyPath


SOURCE_BYTES = 32 << 20  # decoded source bytes in memory at a time
SPOOL_BYTES = 64 << 20  # bytes of pages in memory, before they go to a file
WRITE_BYTES = 1 << 20  # bytes of small pages that are written at a time


class _SpooledRows(NamedTuple):
    """Rows whose bytes begin at an offset in the spool's file."""

    rows: EncodedRows
    begin: int


class PageSpool:
    """The new pages of one row group: in memory while they are small, then in a temporary file.

    A row group may be as large as its file, and so may be its new pages. The temporary file has no
    name, so nothing is left of it however the run ends.

    Args:
        folder: the folder of the temporary file: on the output's disk, which has enough space.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self._folder = folder
        self._parts: list[EncodedRows | _SpooledRows] = []
        self._size = 0  # of the pages in memory
        self._file: IO[bytes] | None = None
        self._end = 0

    def add(self, encoded: EncodedRows) -> None:
        """Add the next rows.

        Raises:
            ReadWriteError: the file cannot be written.
        """
        self.rows += encoded.rows
        self._parts.append(encoded)
        self._size += len(encoded.data)
        if self._size > SPOOL_BYTES:
            with file_errors(self._folder, "cannot be written"):
                self._parts = [*map(self._spooled, self._parts)]
            self._size = 0

    def _spooled(self, part: EncodedRows | _SpooledRows) -> _SpooledRows:
        if isinstance(part, _SpooledRows):
            return part
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        begin, self._end = self._end, self._end + len(part.data)
        write_all(self._file.fileno(), memoryview(part.data), begin)
        return _SpooledRows(part._replace(data=pa.py_buffer(b"")), begin)

    def chunks(self) -> Iterator[tuple[Struct, Iterator[memoryview]]]:
        """Yield metadata and pages of each column chunk."""
        metas = [
            (part.rows if isinstance(part, _SpooledRows) else part).metas for part in self._parts
        ]
        for chunk in zip(*metas, strict=True):
            yield merge_chunks([*chunk]), self._pages(chunk)

    def _pages(self, metas: tuple[Struct, ...]) -> Iterator[memoryview]:
        for part, meta in zip(self._parts, metas, strict=True):
            begin, end = chunk_extent(meta)
            if isinstance(part, EncodedRows):
                yield memoryview(part.data)[begin:end]
                continue
            assert self._file is not None
            for at in range(part.begin + begin, part.begin + end, READ_BYTES):
                size = min(READ_BYTES, part.begin + end - at)
                with file_errors(self._folder, "the temporary file of new pages cannot be read"):
                    data = read_at(self._file.fileno(), size, at)
                    if len(data) < size:
                        raise OSError("it became shorter")
                yield memoryview(data)

    def clear(self) -> None:
        """Remove all rows, and delete the file."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._parts, self._size, self._end, self.rows = [], 0, 0, 0


class Sink:
    """Appends the chunks of new columns to copied ones, row group by row group, in any batches.

    `encode` is the expensive part and thread-safe. The other methods are for one thread, and
    `append` needs what `encode` returned, in the order of the rows.

    Args:
        footer: the footer from `splice`, with kept chunks at their offsets in the output.
        encoder: encodes the new columns.
        output: the file to write, which this object publishes or discards.
        end: the end of the kept data.
    """

    reason: str | None = None
    """Why the source's columns are decoded and encoded; None if they are copied."""

    def __init__(self, footer: Struct, encoder: Encoder, output: OutputFile, end: int) -> None:
        self.output = output
        self.size = 0
        """Bytes of the completed file."""
        self._footer = footer
        self._groups = footer.structs(FileMeta.ROW_GROUPS)
        self._encoder = encoder
        try:
            output.write(0, MAGIC)  # before the copied data
        except BaseException:
            output.discard()  # nobody else can: there is no sink
            raise
        self._end = end
        self._blocks: list[memoryview] = []  # to write before the end
        self._unwritten = 0
        self._current = 0
        self._spool = PageSpool(output.path.parent)

    def encode(self, columns: pa.RecordBatch) -> Any:
        """Encode the next rows' new columns, for `append`."""
        return self._encoder.encode(columns)

    def append(self, row_group: int, encoded: Any) -> None:
        """Add the next rows of a row group of the source."""
        if not encoded.rows:
            return
        while self._current < min(row_group, len(self._groups)):
            self._finish_group()
        if row_group != self._current or encoded.rows > self._missing():
            raise ValueError(f"row group {row_group} gets more rows than it has")
        self._spool.add(encoded)
        if not self._missing():
            self._finish_group()

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with additional key-value entries, and sync the file."""
        while self._current < len(self._groups):
            self._finish_group()
        new = {key.encode(): value.encode() for key, value in metadata.items()}
        put_key_values(self._footer, add_entries(key_values(self._footer), new))
        self._add(memoryview(file_end(self._footer)))
        self._flush()
        self.size = self._end
        self.output.complete()

    def publish(self) -> None:
        """Publish the completed file."""
        publish_files([self.output])

    def abort(self) -> None:
        """Remove the unfinished file; never raises, and does nothing after `publish`."""
        self._spool.clear()
        self.output.discard()

    def _missing(self) -> int:
        """Return the missing rows of the current row group, 0 after the last row group."""
        if self._current == len(self._groups):
            return 0
        return self._groups[self._current].integer(RowGroup.ROWS) - self._spool.rows

    def _finish_group(self) -> None:
        """Write the new chunks of the current row group, which has all of its rows."""
        if self._missing():
            raise ValueError(f"row group {self._current} lacks {self._missing()} rows")
        if not self._spool.rows:
            self._spool.add(self._encoder.no_rows)
        group = self._groups[self._current]
        chunks = group.structs(RowGroup.COLUMNS)
        begins = [begin for begin, stop in map(chunk_extent, column_metas(group)) if stop > begin]
        group.put(RowGroup.OFFSET, Wire.I64, min(begins, default=self._end))
        for meta, pages in self._spool.chunks():
            meta.put(ColumnMeta.DATA_PAGE, Wire.I64, self._end)
            chunk = Struct({ColumnChunk.META: (Wire.STRUCT, meta)})
            chunks.append(chunk.put(ColumnChunk.OFFSET, Wire.I64, 0))
            for page in pages:
                self._add(page)
        group.put_structs(RowGroup.COLUMNS, chunks)
        for total, part in (
            (RowGroup.BYTES, ColumnMeta.UNCOMPRESSED),
            (RowGroup.COMPRESSED, ColumnMeta.COMPRESSED),
        ):
            size = sum(meta.integer(part) for meta in column_metas(group))
            group.put(total, Wire.I64, size)
        self._spool.clear()
        self._current += 1

    def _add(self, block: memoryview) -> None:
        """Add bytes at the end of the file."""
        self._blocks.append(block)
        self._unwritten += len(block)
        self._end += len(block)
        if self._unwritten > WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        blocks = self._blocks
        self.output.write(
            self._end - self._unwritten, blocks[0] if len(blocks) == 1 else b"".join(blocks)
        )
        self._blocks, self._unwritten = [], 0


class RewriteSink(Sink):
    """Decodes a source's columns, and encodes them with the new ones; see `Sink`.

    Args:
        source: reads the source's columns.
        encoder: encodes them and the new ones.
        output: the file to write.
        reason: why the source's columns are not copied.
    """

    def __init__(
        self, source: SourceReader, encoder: Encoder, output: OutputFile, reason: str
    ) -> None:
        super().__init__(source.footer(encoder), encoder, output, len(MAGIC))
        self.reason = reason
        self._source = source

    def encode(self, columns: pa.RecordBatch) -> Any:
        """Return the batch: `append` encodes it with the source's columns."""
        return columns

    def append(self, row_group: int, encoded: Any) -> None:
        """Read, encode and add the next rows of a row group."""
        while encoded.num_rows:
            rows = self._source.read(row_group, encoded.num_rows)
            new = encoded.slice(0, rows.num_rows)
            schema = pa.schema([*rows.schema, *new.schema])
            joined = pa.RecordBatch.from_arrays([*rows.columns, *new.columns], schema=schema)
            super().append(row_group, super().encode(joined))
            encoded = encoded.slice(rows.num_rows)


class SourceReader:
    """Reads a source's kept columns in batches of bounded size.

    Raises:
        DataError: the file is damaged or no Parquet file.
    """

    def __init__(self, path: AnyPath, keep: Collection[str] | None, drop: Collection[str]) -> None:
        self._path = path
        with self._errors():
            self._reader = ParquetReader(path)
            self._file = self._reader.file
            schema = self._file.schema_arrow
        kept = [f for f in schema if (keep is None or f.name in keep) and f.name not in drop]
        self.fields = pa.schema(kept)
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None  # None after a row group's last rows

    def footer(self, encoder: Encoder) -> Struct:
        """Return FileMetaData with the source's rows and key-values, and the encoder's columns."""
        metadata = self._file.metadata
        groups = [
            Struct().put(RowGroup.ROWS, Wire.I64, metadata.row_group(group).num_rows)
            for group in range(metadata.num_row_groups)
        ]
        footer = Struct(encoder.footer).put_structs(FileMeta.ROW_GROUPS, groups)
        footer.put(FileMeta.ROWS, Wire.I64, metadata.num_rows)
        with self._errors():
            put_key_values(footer, join_file_metadata(metadata.metadata or {}, [], encoder.fields))
        return footer

    def read(self, row_group: int, most: int) -> pa.RecordBatch:
        """Read the next rows of a row group, at least one and at most `most`."""
        with self._errors():
            if row_group != self._group:
                self._open(row_group)
            while self._batch is not None and not self._batch.num_rows:
                self._batch = next(self._batches, None)
        if self._batch is None:
            raise DataError(
                f"{self._path}: row group {row_group} has fewer rows than its footer; the file is "
                "damaged"
            )
        rows = self._batch.slice(0, most)
        self._batch = self._batch.slice(most)
        return rows

    def _open(self, row_group: int) -> None:
        group = self._file.metadata.row_group(row_group)
        rows = SOURCE_BYTES * group.num_rows // max(group.total_byte_size, 1)
        most = min(max(rows, 1), 1 << 16)
        self._batches = self._reader.batches(most, row_group, self.fields.names)
        self._group, self._batch = row_group, pa.record_batch({})

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except MemoryError:  # an ArrowException, too, but not about the data
            raise
        except (pa.ArrowException, OSError, FooterError, UnicodeDecodeError) as error:
            raise DataError(f"{self._path}: cannot be read as Parquet: {error}") from None


def open_sink(
    source: AnyPath,
    target: AnyPath | OutputFile,
    fields: pa.Schema,
    *,
    drop: Collection[str] = (),
    keep: Collection[str] | None = None,
    constant: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> Sink:
    """Open a sink for one file.

    Args:
        source: the Parquet file whose columns come first in the output; it may be the target.
        target: the file to write, replaced if it exists; or its staged file.
        fields: the new columns, in order.
        drop: top-level columns of the source to omit.
        keep: the only columns of the source to keep; None for all.
        constant: new columns with few distinct values, such as advantages that are equal for all
            tokens of a response; see `Encoder`.
        aliases: new column -> new column with the same values; encoded once, and `encode` needs
            only the latter.

    Raises:
        UsageError: a new column has the name of a kept one.
        DataError: the source is damaged or no Parquet file.
        ReadWriteError: the source cannot be opened or is encrypted, or the target's folder is
            not writable.
    """

    def encoder(fields: pa.Schema) -> Encoder:
        return shared_encoder(fields, frozenset(constant), frozenset((aliases or {}).items()))

    sink = _spliced(source, target, encoder(fields), keep, drop)
    if isinstance(sink, Sink):
        return sink
    reader = SourceReader(source, keep, drop)
    _check_names(source, reader.fields.names, fields)
    joined = encoder(pa.schema([*reader.fields, *fields]))
    return RewriteSink(reader, joined, _opened(target), sink)


def _spliced(
    source: AnyPath,
    target: AnyPath | OutputFile,
    encoder: Encoder,
    keep: Collection[str] | None,
    drop: Collection[str],
) -> Sink | str:
    """Open a sink that copies the kept columns; return the reason if that is impossible."""
    with file_errors(source, "cannot be read"), ExitStack() as opened:
        file, size = open_file(source)
        opened.callback(close_file, file)
        try:
            footer, end = read_footer(file, size)
            names, ranges = splice(footer, end, encoder, keep, drop)
        except EncryptedError as error:
            raise ReadWriteError(f"{source}: {error}; decrypt the file first") from None
        except DamagedError as error:
            raise DataError(f"{source}: the file is damaged: {error}") from None
        except FooterError as error:
            return str(error)
        _check_names(source, names, encoder.fields)
        output = _opened(target)
        kept = max((span.at + span.size for span in ranges), default=len(MAGIC))
        sink = Sink(footer, encoder, output, kept)
        opened.pop_all()
        output.copy(file, ranges)
        return sink


def _opened(target: AnyPath | OutputFile) -> OutputFile:
    return target if isinstance(target, OutputFile) else OutputFile(target)


def _check_names(source: AnyPath, names: Collection[str], fields: pa.Schema) -> None:
    for name in fields.names:
        if name in names:
            raise UsageError(
                f"{source}: the column `{name}` exists already; drop it, or choose another name "
                "for the new column"
            )
