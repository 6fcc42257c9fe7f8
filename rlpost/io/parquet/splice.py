"""Splicing: copying a source's column chunks unchanged, and appending chunks of new columns.

Kept columns are not decoded. The output is the source's data, byte for byte, then the new columns'
chunks, row group by row group, and one footer with both schemas. If all columns are kept, their
offsets do not change, so the copy can start before anything else. If some are dropped, the kept
chunks and Bloom filters are compacted. The output has no page indexes. New pages are spooled until
their row group is full: the pages of a column chunk must be contiguous.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from rlpost.io.parquet.footer import (
    MAGIC,
    TAIL,
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    RowGroup,
    Struct,
    Wire,
    file_end,
)
from rlpost.io.parquet.splice_plan import (
    add_key_values,
    chunk_extent,
    column_metas,
    merge_chunks,
    shift_offsets,
)
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.staged import READ_BYTES, ByteRange, file_errors, write_all
from rlpost.io.uploads import OutputFile, stage_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import IO

    import pyarrow as pa

    from rlpost.io.parquet.encode import ColumnPages, EncodedRows, Encoder
    from rlpost.io.paths import AnyPath


SPOOL_BYTES = 64 << 20  # bytes of pages in memory, before they go to a file


class _SpooledPages(NamedTuple):
    """Consecutive pages in the spool's file."""

    begin: int
    size: int


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
        self._spooled: list[EncodedRows] = []  # in the file
        self._pending: list[EncodedRows] = []  # the rows behind them, in memory
        self._size = 0
        self._file: IO[bytes] | None = None
        self._end = 0

    def add(self, encoded: EncodedRows) -> None:
        """Add the next rows.

        Raises:
            ReadWriteError: the file cannot be written.
        """
        self.rows += encoded.rows
        self._pending.append(encoded)
        self._size += sum(map(len, (page for pages in _distinct(encoded) for page in pages)))
        if self._size > SPOOL_BYTES:
            with file_errors(self._folder, "cannot be written"):
                self._spooled += [self._write(rows) for rows in self._pending]
            self._pending, self._size = [], 0

    def take(self) -> list[EncodedRows]:
        """Remove and return all rows, in order; read their pages by `bytes_of`."""
        encoded = self._spooled + self._pending
        self._spooled, self._pending, self._size, self.rows = [], [], 0, 0
        return encoded

    def bytes_of(self, column: ColumnPages) -> Iterator[bytes | memoryview]:
        """Read the pages of a column of rows that `take` returned."""
        for page in column.pages:
            if not isinstance(page, _SpooledPages):
                yield page
                continue
            assert self._file is not None
            for done in range(0, page.size, READ_BYTES):
                with file_errors(self._folder, "the temporary file of new pages cannot be read"):
                    size = min(READ_BYTES, page.size - done)
                    data = read_at(self._file.fileno(), size, page.begin + done)
                    if len(data) < size:
                        raise OSError("it became shorter")
                yield data

    def clear(self) -> None:
        """Delete the file: the rows that `take` returned are no longer needed."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, encoded: EncodedRows) -> EncodedRows:
        """Write the pages of some rows to the file."""
        spooled = {id(pages): [self._write_pages(pages)] for pages in _distinct(encoded)}
        columns = [replace(column, pages=spooled[id(column.pages)]) for column in encoded.columns]
        return replace(encoded, columns=columns)

    def _write_pages(self, pages: list[bytes | memoryview]) -> _SpooledPages:
        if self._file is None:
            self._file, self._end = tempfile.TemporaryFile(dir=self._folder), 0  # noqa: SIM115
        begin = self._end
        for page in pages:
            self._end += write_all(self._file.fileno(), page, self._end)
        return _SpooledPages(begin, self._end - begin)


def _distinct(encoded: EncodedRows) -> list[list[bytes | memoryview]]:
    """Return the lists of pages, each once: columns with the same values share one list."""
    return list({id(column.pages): column.pages for column in encoded.columns}.values())


def start_copy(source: AnyPath, target: AnyPath) -> OutputFile | None:
    """Start to copy all data of a Parquet file to a staged output that keeps all columns.

    Args:
        source: the file.
        target: the output.

    Returns:
        The staged file, for `open_sink`; None if the source is no Parquet file.

    Raises:
        ReadWriteError: the source cannot be read, or the target's folder is not writable.
    """
    with file_errors(source, "cannot be read"):
        file, size = open_file(source)
        tail = read_at(file, min(TAIL, size), max(size - TAIL, 0))
    length = int.from_bytes(tail[:4], "little")
    end = size - TAIL - length
    if tail[4:] != MAGIC or end < len(MAGIC):
        close_file(file)
        return None
    with ExitStack() as undo:
        undo.callback(close_file, file)
        staged = stage_file(target)
        undo.callback(staged.discard)
        staged.write(0, MAGIC)  # before the copied data
        undo.pop_all()
    staged.copy(file, data_range(end))
    return staged


def data_range(end: int) -> list[ByteRange]:
    """Return the range of all data of a file whose footer begins at `end`."""
    return [ByteRange(len(MAGIC), end - len(MAGIC), len(MAGIC))]


def compact(groups: list[Struct]) -> list[ByteRange]:
    """Move chunks, then Bloom filters, to the beginning of the file; return the ranges to copy.

    Args:
        groups: the source's row groups, with the kept chunks; changed in place.
    """
    end = len(MAGIC)
    ranges: list[ByteRange] = []
    for group in groups:
        for meta in sorted(column_metas(group), key=chunk_extent):
            begin, stop = chunk_extent(meta)
            shift_offsets(meta, end - begin)
            ranges.append(ByteRange(begin, stop - begin, end))
            end += stop - begin
    for meta in (
        meta for group in groups for meta in column_metas(group) if ColumnMeta.BLOOM in meta
    ):
        size = meta.integer(ColumnMeta.BLOOM_LENGTH)
        ranges.append(ByteRange(meta.integer(ColumnMeta.BLOOM), size, end))
        meta.put(ColumnMeta.BLOOM, Wire.I64, end)
        end += size
    return _merge_adjacent(ranges)


def _merge_adjacent(ranges: list[ByteRange]) -> list[ByteRange]:
    """Merge ranges that are adjacent in the source."""
    merged: list[ByteRange] = []
    for span in ranges:
        if merged and merged[-1].begin + merged[-1].size == span.begin:
            merged[-1] = merged[-1]._replace(size=merged[-1].size + span.size)
        else:
            merged.append(span)
    return merged


class SpliceSink:
    """Appends the chunks of new columns to copied ones; see `Sink`.

    Pages are spooled until their row group is full.

    Args:
        footer: the footer from `plan_splice`, with kept chunks at their offsets in the output.
        encoder: encodes the new columns.
        output: the file to write, whose copy of the kept data was started; published or discarded
            by this object.
        end: the end of the kept data.
    """

    def __init__(
        self,
        footer: Struct,
        encoder: Encoder,
        output: OutputFile,
        end: int,
    ) -> None:
        self.reason: str | None = None
        self._footer = footer
        self._groups = footer.structs(FileMeta.ROW_GROUPS)
        self._encoder = encoder
        self._output = output
        self.size = 0
        try:
            output.write(0, MAGIC)  # before the copied data
        except BaseException:
            output.discard()  # nobody else can: there is no sink
            raise
        self._end = end
        self._current = 0
        self._spool = PageSpool(output.path.parent)

    @property
    def output(self) -> OutputFile:
        """The file that is written."""
        return self._output

    def encode(self, columns: pa.RecordBatch) -> EncodedRows:
        """Encode new columns; thread-safe."""
        return self._encoder.encode(columns)

    def append(self, row_group: int, encoded: EncodedRows) -> None:
        """Add the next rows of a row group."""
        if not encoded.rows:
            return
        while self._current < min(row_group, len(self._groups)):
            self._finish_group()
        if row_group != self._current or encoded.rows > self._missing():
            raise ValueError(f"row group {row_group} gets more rows than it has")
        self._spool.add(encoded)
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
        """Rename the completed file to the target."""
        self._output.publish()

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with additional key-value entries, and sync the file."""
        while self._current < len(self._groups):
            self._finish_group()
        add_key_values(self._footer, metadata)
        self.size = self._output.write(self._end, file_end(self._footer))
        self._output.complete()

    def abort(self) -> None:
        """Remove the unfinished file; does nothing after `close`, or when called again."""
        self._spool.clear()
        self._output.discard()

    def _missing(self) -> int:
        """Return the missing rows of the current row group, 0 after the last row group."""
        if self._current == len(self._groups):
            return 0
        return self._groups[self._current].integer(RowGroup.ROWS) - self._spool.rows

    def _finish_group(self) -> None:
        """Write the new chunks of the current row group, which has all of its rows."""
        if self._missing():
            raise ValueError(f"row group {self._current} lacks {self._missing()} rows")
        encoded = self._spool.take() or [self._encoder.encode(self._encoder.empty_batch)]
        group = self._begin_group()
        for parts in zip(*(rows.columns for rows in encoded), strict=True):
            meta = merge_chunks([part.meta for part in parts])
            meta.put(ColumnMeta.DATA_PAGE, Wire.I64, self._end)
            self._add_chunk(meta, chain.from_iterable(map(self._spool.bytes_of, parts)))
        self._end_group(group)
        self._spool.clear()

    def _begin_group(self) -> Struct:
        """Return the current row group, with the offset of its first chunk."""
        group = self._groups[self._current]
        group.put_list(RowGroup.COLUMNS, Wire.STRUCT, group.structs(RowGroup.COLUMNS))
        begins = [begin for begin, stop in map(chunk_extent, column_metas(group)) if stop > begin]
        group.put(RowGroup.OFFSET, Wire.I64, min(begins, default=self._end))
        return group

    def _add_chunk(self, meta: Struct, pages: Iterable[bytes | memoryview]) -> None:
        """Write a chunk of the current row group, whose offsets are set."""
        chunk = Struct({ColumnChunk.META: (Wire.STRUCT, meta)}).put(ColumnChunk.OFFSET, Wire.I64, 0)
        self._groups[self._current].structs(RowGroup.COLUMNS).append(chunk)
        for page in pages:
            self._end = self._output.write(self._end, page)

    def _end_group(self, group: Struct) -> None:
        """Set the sizes of the current row group, which has all of its chunks."""
        metas = column_metas(group)
        for total, part in (
            (RowGroup.BYTES, ColumnMeta.UNCOMPRESSED),
            (RowGroup.COMPRESSED, ColumnMeta.COMPRESSED),
        ):
            group.put(total, Wire.I64, sum(meta.integer(part) for meta in metas))
        self._current += 1
