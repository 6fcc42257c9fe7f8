"""Sinks: output files with a source's columns, whose chunks are copied, and new ones."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.outputs import READ_BYTES, OutputFile, file_errors
from rlpost.io.parquet.encode import EncodedRows, Encoder, shared_encoder
from rlpost.io.parquet.footer import (
    MAGIC,
    ColumnChunk,
    ColumnMeta,
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
from rlpost.io.parquet.schemas import add_entries, key_values, put_key_values
from rlpost.io.parquet.splice import merge_chunks, splice
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.system import write_all

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import IO

    from rlpost.io.parquet.footer import DecodedFooter
    from rlpost.io.paths import AnyPath


SPOOL_BYTES = 64 << 20  # bytes of pages in memory, before they go to a file
WRITE_BYTES = 1 << 20  # bytes of small pages that are written at a time


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
        self._parts: list[tuple[EncodedRows, int | None]] = []  # where they begin in the file
        self._size = 0  # of the pages in memory
        self._file: IO[bytes] | None = None
        self._end = 0

    def add(self, encoded: EncodedRows) -> None:
        """Add the next rows.

        Raises:
            ReadWriteError: the file cannot be written.
        """
        self.rows += encoded.rows
        self._parts.append((encoded, None))
        self._size += len(encoded.data)
        if self._size > SPOOL_BYTES:
            with file_errors(self._folder, "cannot be written"):
                self._parts = [*map(self._spooled, self._parts)]
            self._size = 0

    def _spooled(self, part: tuple[EncodedRows, int | None]) -> tuple[EncodedRows, int]:
        """Return rows whose bytes are in the file."""
        rows, begin = part
        if begin is not None:
            return rows, begin
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        begin, self._end = self._end, self._end + len(rows.data)
        write_all(self._file.fileno(), memoryview(rows.data), begin)
        return rows._replace(data=pa.py_buffer(b"")), begin

    def chunks(self) -> Iterator[tuple[Struct, Iterator[memoryview]]]:
        """Yield metadata and pages of each column chunk."""
        for metas in zip(*(rows.metas for rows, _ in self._parts), strict=True):
            yield merge_chunks([*metas]), self._pages(metas)

    def _pages(self, metas: tuple[Struct, ...]) -> Iterator[memoryview]:
        for (rows, offset), meta in zip(self._parts, metas, strict=True):
            begin, end = chunk_extent(meta)
            if offset is None:
                yield memoryview(rows.data)[begin:end]
                continue
            assert self._file is not None
            for at in range(offset + begin, offset + end, READ_BYTES):
                size = min(READ_BYTES, offset + end - at)
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

    def __init__(
        self,
        footer: Struct,
        encoder: Encoder,
        output: OutputFile,
        end: int,
    ) -> None:
        self.output = output
        self.size = 0
        """Bytes of the completed file."""
        self._footer = footer
        self._groups = footer.structs(FileMeta.ROW_GROUPS)
        self._encoder = encoder
        output.write(0, MAGIC)  # before the copied data
        self._end = end
        self._blocks: list[memoryview] = []  # to write before the end
        self._unwritten = 0
        self._current = 0
        self._spool = PageSpool(output.path.parent)

    def encode(self, columns: Sequence[pa.RecordBatch]) -> list[EncodedRows]:
        """Encode new columns of the next rows, each part for an `append`."""
        return self._encoder.encode(columns)

    def append(self, row_group: int, encoded: EncodedRows) -> None:
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

    def abort(self) -> None:
        """Remove the unfinished file; never raises, and does nothing after its publication."""
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


def open_sink(
    source: AnyPath,
    target: AnyPath | OutputFile,
    fields: pa.Schema,
    *,
    drop: Collection[str] = (),
    keep: Collection[str] | None = None,
    constant: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    decoded: DecodedFooter | None = None,
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
        decoded: the source's footer, if it was read already; changed in place.

    Raises:
        UsageError: a new column has the name of a kept one.
        DataError: the source is damaged or no Parquet file, or its columns cannot be copied.
        ReadWriteError: the source cannot be opened or is encrypted, or the target's folder is
            not writable.
    """
    output = target if isinstance(target, OutputFile) else OutputFile(target)
    encoder = shared_encoder(fields, frozenset(constant), frozenset((aliases or {}).items()))
    with file_errors(source, "cannot be read"), ExitStack() as undo:
        undo.callback(output.discard)
        file, size = open_file(source)
        undo.callback(close_file, file)
        try:
            footer, end = read_footer(file, size, decoded)
            kept = splice(footer, end, encoder, keep, drop)
        except EncryptedError as error:
            raise ReadWriteError(f"{source}: {error}; decrypt the file first") from None
        except FooterError as error:
            raise DataError(
                f"{source}: its columns cannot be copied: {error}",
                tip="write the file again with another program",
            ) from None
        for name in fields.names:
            if name in kept.names:
                raise UsageError(
                    f"{source}: the column `{name}` exists already; drop it, or choose another "
                    "name for the new column"
                )
        end = max((span.at + span.size for span in kept.ranges), default=len(MAGIC))
        sink = Sink(footer, encoder, output, end)
        undo.pop_all()
        output.copy(file, kept.ranges)
        return sink
