"""Splicing: a source's column chunks are copied as they are, new ones are put behind them.

Nothing that stays is decoded. The output is the source's data, byte for byte, then the new columns'
chunks, row group by row group; one footer joins both schemas. Where all columns stay, not even
their offsets change, so copying needs to know nothing and can start before anything else does.
Where some are left out, the others' chunks close ranks, and with them their Bloom filters and page
indexes. Where the source has page indexes, the new columns have them, too.

Encoded rows that wait until their row group is full: a chunk's pages must follow one another.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from rlpost.io.parquet.footer import (
    MAGIC,
    TAIL,
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    FooterError,
    RowGroup,
    Struct,
    Wire,
    file_end,
)
from rlpost.io.parquet.indexes import (
    NewIndex,
    drop_indexes,
    existing_indexes,
    new_indexes,
    shifted_offset_indexes,
)
from rlpost.io.parquet.splice_plan import (
    add_key_values,
    chunk_extent,
    column_metas,
    merge_chunks,
    shift_offsets,
)
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.staged import READ_BYTES, ByteRange, StagedFile, file_errors, split_ranges, write_all
from rlpost.io.threads import map_ordered
from rlpost.io.uploads import Upload, stage_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path
    from typing import IO

    import pyarrow as pa

    from rlpost.io.parquet.encode import ColumnPages, EncodedRows, Encoder
    from rlpost.io.paths import AnyPath
    from rlpost.io.ranges import OpenFile


ROOM = 64 << 20  # bytes of pages that wait in memory


class _Lying(NamedTuple):
    """Pages that lie in the file, one behind another."""

    begin: int
    size: int


class PageSpool:
    """The new pages of one row group, in memory as long as they are few, then in a file.

    A row group may be as large as its file, and what is made of it with it. The file has no name,
    so nothing is left of it whatever ends the run.

    Args:
        folder: where the file is, if one is needed: on the disk that has room for the output.
    """

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self._folder = folder
        self._parts: list[EncodedRows] = []
        self._held: list[EncodedRows] = []  # those behind them, in memory
        self._size = 0
        self._file: IO[bytes] | None = None
        self._end = 0

    def add(self, encoded: EncodedRows) -> None:
        """Take the next rows.

        Raises:
            ReadWriteError: the file cannot be written.
        """
        self.rows += encoded.rows
        self._held.append(encoded)
        self._size += sum(map(len, (page for pages in _distinct(encoded) for page in pages)))
        if self._size > ROOM:
            with file_errors(self._folder, "cannot be written"):
                self._parts += [self._laid(part) for part in self._held]
            self._held, self._size = [], 0

    def take(self) -> list[EncodedRows]:
        """All rows, in order; the pages are for `bytes_of`, and nothing waits any more."""
        parts = self._parts + self._held
        self._parts, self._held, self._size, self.rows = [], [], 0, 0
        return parts

    def bytes_of(self, piece: ColumnPages) -> Iterator[bytes | memoryview]:
        """The pages of a piece that `take` gave."""
        for page in piece.pages:
            if not isinstance(page, _Lying):
                yield page
                continue
            assert self._file is not None
            for done in range(0, page.size, READ_BYTES):
                with file_errors(self._folder, "what waits there cannot be read"):
                    some = min(READ_BYTES, page.size - done)
                    data = os.pread(self._file.fileno(), some, page.begin + done)
                    if len(data) < some:
                        raise OSError("it became shorter")
                yield data

    def clear(self) -> None:
        """Give the file's room back; what `take` gave is not needed any more."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _laid(self, encoded: EncodedRows) -> EncodedRows:
        """The same rows with their pages in the file."""
        lying = {id(pages): [self._put(pages)] for pages in _distinct(encoded)}
        pieces = [replace(piece, pages=lying[id(piece.pages)]) for piece in encoded.pieces]
        return replace(encoded, pieces=pieces)

    def _put(self, pages: list[bytes | memoryview]) -> _Lying:
        if self._file is None:
            self._file, self._end = tempfile.TemporaryFile(dir=self._folder), 0  # noqa: SIM115
        begin = self._end
        for page in pages:
            self._end += write_all(self._file.fileno(), page, self._end)
        return _Lying(begin, self._end - begin)


def _distinct(encoded: EncodedRows) -> list[list[bytes | memoryview]]:
    """The lists of pages, each once: columns that hold the same values share theirs."""
    return list({id(piece.pages): piece.pages for piece in encoded.pieces}.values())


def start_copy(source: AnyPath, target: AnyPath) -> StagedFile | Upload | None:
    """Begin to copy a Parquet file's data, all of it, to where an output that keeps it is staged.

    Returns:
        The staged file, for `open_sink`; None where the source is no Parquet file.

    Raises:
        ReadWriteError: the source cannot be read, or the target's folder not written.
    """
    with file_errors(source, "cannot be read"):
        file, size = open_file(source)
        tail = read_at(file, min(TAIL, size), max(size - TAIL, 0))
    length = int.from_bytes(tail[:4], "little")
    end = size - TAIL - length
    if tail[4:] != MAGIC or end < len(MAGIC):
        close_file(file)
        return None
    try:
        staged = stage_file(target)
    except BaseException:
        close_file(file)
        raise
    staged.write(0, MAGIC)  # in front of what is copied
    staged.copy(file, data_range(end))
    return staged


def data_range(end: int) -> list[ByteRange]:
    """All data of a file whose footer begins at `end`."""
    return [ByteRange(len(MAGIC), end - len(MAGIC), len(MAGIC))]


def compact(file: OpenFile, groups: list[Struct]) -> tuple[list[ByteRange], list[NewIndex] | None]:
    """Move what belongs to kept columns, so that nothing is between it.

    Page indexes are left out where one is damaged.

    Args:
        file: the source.
        groups: its row groups, with the chunks that stay; changed in place.

    Returns:
        What to copy for that; and the OffsetIndexes, which no copy would be true of: None where the
        indexes are left out. ColumnIndexes are still where they were.

    Raises:
        OSError, ReadWriteError: the source can't be read.
    """
    chunks = [(chunk, group) for group in groups for chunk in group.structs(RowGroup.COLUMNS)]
    before = [chunk_extent(chunk.struct(ColumnChunk.META))[0] for chunk, _ in chunks]
    runs = _closed(groups)
    moved = []
    for (chunk, group), begin in zip(chunks, before, strict=True):
        after = chunk_extent(chunk.struct(ColumnChunk.META))
        moved.append((chunk, after[0] - begin, after, group.integer(RowGroup.ROWS)))
    try:
        offsets = shifted_offset_indexes(file, moved)
    except FooterError:
        drop_indexes(groups)
        return _joined(runs), None
    return _joined(runs), offsets


def _closed(groups: list[Struct]) -> list[ByteRange]:
    """Move chunks and Bloom filters to where the file begins."""
    end = len(MAGIC)
    runs: list[ByteRange] = []
    for group in groups:
        for meta in sorted(column_metas(group), key=chunk_extent):
            begin, stop = chunk_extent(meta)
            shift_offsets(meta, end - begin)
            runs.append(ByteRange(begin, stop - begin, end))
            end += stop - begin
    for meta in (
        meta for group in groups for meta in column_metas(group) if ColumnMeta.BLOOM in meta
    ):
        size = meta.integer(ColumnMeta.BLOOM_LENGTH)
        runs.append(ByteRange(meta.integer(ColumnMeta.BLOOM), size, end))
        meta.put(ColumnMeta.BLOOM, Wire.I64, end)
        end += size
    return runs


def _joined(runs: list[ByteRange]) -> list[ByteRange]:
    """The same with neighbours as one."""
    joined: list[ByteRange] = []
    for run in runs:
        if joined and joined[-1].begin + joined[-1].size == run.begin:
            joined[-1] = joined[-1]._replace(size=joined[-1].size + run.size)
        else:
            joined.append(run)
    return joined


_READERS = 4  # runs of page indexes that are read at a time


class SpliceSink:
    """Writes new columns' chunks behind kept ones, which are copied; see `Sink`.

    Encoded pages wait until their row group is full, and page indexes for the end of the file.

    Args:
        footer: what `plan` made of the source's, with kept chunks where they are in the output.
        encoder: makes the new columns' pages.
        output: the file to write, with the copy of what is kept begun; published or discarded here.
        end: where the kept data ends.
        indexed: the row groups in which new columns have page indexes, too; `encoder` must know.
        moved: kept columns' OffsetIndexes that are still to be written; the other indexes that
            kept chunks point to are copied, from where they are in the source.
    """

    def __init__(
        self,
        footer: Struct,
        encoder: Encoder,
        output: StagedFile | Upload,
        end: int,
        indexed: Collection[int] = (),
        moved: Collection[NewIndex] = (),
    ) -> None:
        self.reason: str | None = None
        self._footer = footer
        self._groups = footer.structs(FileMeta.ROW_GROUPS)
        self._encoder = encoder
        self._indexed = indexed
        self._indexes = list(moved)
        self._output = output
        output.write(0, MAGIC)
        self._end = end
        self._current = 0
        self._waiting = PageSpool(output.path.parent)

    @property
    def output(self) -> StagedFile | Upload:
        """The file that is written."""
        return self._output

    def encode(self, columns: pa.RecordBatch) -> EncodedRows:
        """Encode new columns; any thread may."""
        return self._encoder.encode(columns)

    def append(self, row_group: int, encoded: EncodedRows) -> None:
        """Add the next rows of a row group."""
        if not encoded.rows:
            return
        while self._current < min(row_group, len(self._groups)):
            self._finish_group()
        if row_group != self._current or encoded.rows > self._missing():
            raise ValueError(f"row group {row_group} got more rows than it has")
        self._waiting.add(encoded)
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
        self._write_indexes()
        add_key_values(self._footer, metadata)
        self._output.write(self._end, file_end(self._footer))
        self._output.complete()

    def abort(self) -> None:
        """Remove what was written; harmless after `close` and when called again."""
        self._waiting.clear()
        self._output.discard()

    def _missing(self) -> int:
        """Count the rows that the current row group still lacks; there are none behind the last."""
        if self._current == len(self._groups):
            return 0
        return self._groups[self._current].integer(RowGroup.ROWS) - self._waiting.rows

    def _write_indexes(self) -> None:
        """Put all page indexes behind one another: some readers read whatever is between them.

        Where the copy has kept ones in front of the new columns, those bytes are there twice.
        """
        runs = []
        at = self._end
        for chunk, field, begin, size in existing_indexes(self._groups):
            runs.append(ByteRange(begin, size, at))
            chunk.put(field, Wire.I64, at)
            at += size
        for data in map_ordered(self._output.read_source, split_ranges(_joined(runs)), _READERS):
            self._end = self._output.write(self._end, data)
        for field in (ColumnChunk.COLUMN_INDEX, ColumnChunk.OFFSET_INDEX):
            for chunk, _, data in (index for index in self._indexes if index.field == field):
                chunk.put(field, Wire.I64, self._end).put(field + 1, Wire.I32, len(data))
                self._end = self._output.write(self._end, data)

    def _finish_group(self) -> None:
        """Write the new chunks of a row group that has all of its rows."""
        if self._missing():
            raise ValueError(f"row group {self._current} lacks {self._missing()} rows")
        group = self._groups[self._current]
        parts = self._waiting.take() or [self._encoder.encode(self._encoder.nothing)]
        columns = group.structs(RowGroup.COLUMNS)
        begins = [begin for begin, stop in map(chunk_extent, column_metas(group)) if stop > begin]
        group.put(RowGroup.OFFSET, Wire.I64, min(begins, default=self._end))
        for pieces in zip(*(part.pieces for part in parts), strict=True):
            meta = merge_chunks([piece.meta for piece in pieces])
            meta.put(ColumnMeta.DATA_PAGE, Wire.I64, self._end)
            chunk = Struct({ColumnChunk.META: (Wire.STRUCT, meta)}).put(
                ColumnChunk.OFFSET, Wire.I64, 0
            )
            columns.append(chunk)
            if self._current in self._indexed:
                indexed = [page for piece in pieces for page in piece.index]
                self._indexes += new_indexes(chunk, self._end, indexed)
            for page in chain.from_iterable(map(self._waiting.bytes_of, pieces)):
                self._end = self._output.write(self._end, page)
        group.put_list(RowGroup.COLUMNS, Wire.STRUCT, columns)
        metas = column_metas(group)
        for total, part in (
            (RowGroup.BYTES, ColumnMeta.UNCOMPRESSED),
            (RowGroup.COMPRESSED, ColumnMeta.COMPRESSED),
        ):
            group.put(total, Wire.I64, sum(meta.integer(part) for meta in metas))
        self._current += 1
        self._waiting.clear()
