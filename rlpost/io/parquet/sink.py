"""Sinks: output files with a source's columns and new ones.

The source's column chunks are copied if possible (`SpliceSink`), otherwise decoded and encoded
(`RewriteSink`). The output appears under its name when it is complete: it is written beside the
target, synced, and renamed.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.parquet.encode import Encoder
from rlpost.io.parquet.footer import (
    MAGIC,
    DamagedError,
    EncryptedError,
    FileMeta,
    FooterError,
    RowGroup,
    SchemaElement,
    Struct,
    Wire,
    read_footer,
)
from rlpost.io.parquet.reader import ParquetReader
from rlpost.io.parquet.splice import SpliceSink, compact, data_range
from rlpost.io.parquet.splice_plan import plan_splice
from rlpost.io.ranges import close_file, open_file
from rlpost.io.staged import file_errors
from rlpost.io.uploads import stage_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rlpost.io.parquet.footer import DecodedFooter
    from rlpost.io.paths import AnyPath
    from rlpost.io.uploads import OutputFile


READ_BYTES = 32 << 20  # decoded source bytes in memory at a time


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

    def footer_without_columns(self, encoder: Encoder) -> Struct:
        """Return FileMetaData with the source's row groups and key-values, but no columns."""
        metadata = self._file.metadata
        root = Struct().put(SchemaElement.NAME, Wire.BINARY, b"schema")
        groups = [
            Struct().put(RowGroup.ROWS, Wire.I64, metadata.row_group(group).num_rows)
            for group in range(metadata.num_row_groups)
        ]
        pairs = [
            Struct().put(1, Wire.BINARY, key).put(2, Wire.BINARY, value)
            for key, value in (metadata.metadata or {}).items()
        ]
        footer = Struct().put(FileMeta.VERSION, Wire.I32, 2)
        footer.put(FileMeta.ROWS, Wire.I64, metadata.num_rows)
        footer.put_list(FileMeta.SCHEMA, Wire.STRUCT, [root])
        footer.put_list(FileMeta.ROW_GROUPS, Wire.STRUCT, groups)
        footer.put_list(FileMeta.KEY_VALUES, Wire.STRUCT, pairs)
        footer[FileMeta.CREATED_BY] = encoder.footer[FileMeta.CREATED_BY]
        with self._errors():
            plan_splice(footer, 0, encoder, None, ())
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
        rows = READ_BYTES * group.num_rows // max(group.total_byte_size, 1)
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


class RewriteSink:
    """Decodes a source's columns, and encodes them with the new ones; see `Sink`.

    Args:
        source: reads the source's columns.
        inner: the sink of a file without copied columns.
        reason: why the source's columns are not copied.
    """

    def __init__(self, source: SourceReader, inner: Sink, reason: str) -> None:
        self.reason = reason
        self._source = source
        self._inner = inner

    @property
    def output(self) -> OutputFile:
        """The file that is written."""
        return self._inner.output

    @property
    def size(self) -> int:
        """Bytes of the completed file."""
        return self._inner.size

    def encode(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch: `append` encodes it with the source's columns."""
        return columns

    def append(self, row_group: int, encoded: pa.RecordBatch) -> None:
        """Read, encode and add the next rows of a row group."""
        while encoded.num_rows:
            rows = self._source.read(row_group, encoded.num_rows)
            new = encoded.slice(0, rows.num_rows)
            schema = pa.schema([*rows.schema, *new.schema])
            arrays = [*rows.columns, *new.columns]
            self._inner.write(row_group, pa.RecordBatch.from_arrays(arrays, schema=schema))
            encoded = encoded.slice(rows.num_rows)

    def write(self, row_group: int, columns: pa.RecordBatch) -> None:
        """Read, encode and add the next rows of a row group."""
        self.append(row_group, columns)

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with additional key-value entries, and sync the file."""
        self._inner.complete(metadata)

    def publish(self) -> None:
        """Rename the completed file to the target."""
        self._inner.publish()

    def close(self, metadata: Mapping[str, str]) -> None:
        """Complete the file and publish it."""
        self._inner.close(metadata)

    def abort(self) -> None:
        """Remove the unfinished file."""
        self._inner.abort()


class Sink(Protocol):
    """Writes new columns, row group by row group, each in any number of batches.

    `write` is `append` of `encode`. `encode` is the expensive part and thread-safe. The other
    methods are for one thread, and `append` needs the batches in the order of their rows.
    """

    @property
    def reason(self) -> str | None:
        """Why the source's columns are decoded and encoded; None if they are copied."""

    @property
    def output(self) -> OutputFile:
        """The file that is written."""

    @property
    def size(self) -> int:
        """Bytes of the completed file."""

    def encode(self, columns: pa.RecordBatch) -> Any:
        """Encode the next rows' new columns, for `append`."""

    def append(self, row_group: int, encoded: Any) -> None:
        """Add the next rows of a row group of the source."""

    def write(self, row_group: int, columns: pa.RecordBatch) -> None:
        """Encode and add the next rows of a row group of the source."""

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with additional key-value entries, and sync the file."""

    def publish(self) -> None:
        """Rename the completed file to the target."""

    def close(self, metadata: Mapping[str, str]) -> None:
        """Complete the file and publish it."""

    def abort(self) -> None:
        """Remove the unfinished file; never raises, and does nothing after `close`."""


def encoder_for(
    fields: pa.Schema,
    *,
    constant: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    codec: str = "zstd",
    level: int | None = None,
) -> Encoder:
    """Return the encoder of a sink that `open_sink` opens with the same arguments."""
    level = 1 if codec == "zstd" and level is None else level
    pairs = frozenset((aliases or {}).items())
    return _encoder(fields, frozenset(constant), pairs, codec, level)


@lru_cache(8)
def _encoder(
    fields: pa.Schema,
    constant: frozenset[str],
    aliases: frozenset[tuple[str, str]],
    codec: str,
    level: int | None,
) -> Encoder:
    """Return an encoder, which all files with the same new columns share."""
    return Encoder(
        fields,
        constant=constant,
        aliases=dict(sorted(aliases)),
        codec=codec,
        level=level,
    )


def open_sink(
    source: AnyPath,
    target: AnyPath,
    fields: pa.Schema,
    *,
    drop: Collection[str] = (),
    keep: Collection[str] | None = None,
    constant: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    force_rewrite: bool = False,
    codec: str = "zstd",
    level: int | None = None,
    begun: OutputFile | None = None,
    decoded: DecodedFooter | None = None,
) -> Sink:
    """Open a sink for one file.

    Args:
        source: the Parquet file whose columns come first in the output; it may be the target.
        target: the file to write; replaced if it exists.
        fields: the new columns, in order.
        drop: top-level columns of the source to omit.
        keep: the only columns of the source to keep; None for all.
        constant: new columns with few distinct values, such as advantages that are equal for all
            tokens of a response; see `Encoder`.
        aliases: new column -> new column with the same values; encoded once, and `write` needs
            only the latter.
        force_rewrite: decode and encode the source's columns even if they can be copied.
        codec: compression of new columns (in a rewrite, of all columns), or "none".
        level: its level; None for 1 with zstd, and for the default of other codecs.
        begun: the copy that `start_copy` started; valid only if no column is dropped.
        decoded: the footer of the source, if it was decoded already; it is changed.

    Raises:
        UsageError: a new column has the name of a kept one.
        DataError: the source is damaged or no Parquet file.
        ReadWriteError: the source cannot be opened or is encrypted, or the target's folder is
            not writable.
    """
    encoder = partial(encoder_for, constant=constant, aliases=aliases, codec=codec, level=level)
    spliced: SpliceSink | str = "a rewrite was requested"
    with ExitStack() as undo:
        if begun is not None:
            undo.callback(begun.discard)
        if not force_rewrite:
            spliced = _splice(source, target, encoder(fields), keep, drop, begun, decoded)
        if not isinstance(spliced, str):
            undo.pop_all()
            return spliced
    reader = SourceReader(source, keep, drop)
    _check_names(source, reader.fields.names, fields)
    joined = encoder(pa.schema([*reader.fields, *fields]))
    footer = reader.footer_without_columns(joined)
    inner = SpliceSink(footer, joined, stage_file(target), len(MAGIC))
    return RewriteSink(reader, inner, spliced)


def _splice(
    source: AnyPath,
    target: AnyPath,
    encoder: Encoder,
    keep: Collection[str] | None,
    drop: Collection[str],
    begun: OutputFile | None,
    decoded: DecodedFooter | None,
) -> SpliceSink | str:
    """Open a sink that copies the kept columns; return the reason if that is impossible."""
    with file_errors(source, "cannot be read"), ExitStack() as opened:
        file, size = open_file(source)
        opened.callback(close_file, file)
        try:
            footer, end = read_footer(file, size, decoded)
            names, all_kept = plan_splice(footer, end, encoder, keep, drop)
        except EncryptedError as error:
            raise ReadWriteError(f"{source}: {error}; decrypt the file first") from None
        except DamagedError as error:
            raise DataError(f"{source}: the file is damaged: {error}") from None
        except FooterError as error:
            return str(error)
        _check_names(source, names, encoder.fields)
        groups = footer.structs(FileMeta.ROW_GROUPS)
        ranges = data_range(end) if all_kept else compact(groups)
        kept = max((span.at + span.size for span in ranges), default=len(MAGIC))
        if begun is not None:
            if begun.ranges != ranges:
                raise ReadWriteError(
                    f"{source}: changed during the run; run again when no other process writes it"
                )
            return SpliceSink(footer, encoder, begun, kept)
        staged = stage_file(target)
        sink = SpliceSink(footer, encoder, staged, kept)
        opened.pop_all()
        staged.copy(file, ranges)
        return sink


def _check_names(source: AnyPath, names: Collection[str], fields: pa.Schema) -> None:
    for name in fields.names:
        if name in names:
            raise UsageError(
                f"{source}: the column `{name}` exists already; drop it, or choose another name "
                "for the new column"
            )
