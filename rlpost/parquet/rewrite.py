"""Rewriting: where chunks cannot be copied, the source's columns are decoded and encoded anew."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.parquet.footer import Element, FileMeta, FooterError, Group, Struct, Wire
from rlpost.parquet.indexes import indexed_groups_of
from rlpost.parquet.plan import plan
from rlpost.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rlpost.parquet.encode import Encoder
    from rlpost.parquet.places import Place
    from rlpost.parquet.sink import Sink
    from rlpost.parquet.staged import Staged
    from rlpost.parquet.upload import Upload

READ_BYTES = 32 << 20  # decoded source bytes that are held at a time


class SourceRows:
    """A source's kept columns, decoded a bounded piece at a time.

    Raises:
        DataError: the file is damaged or no Parquet file.
    """

    def __init__(self, path: Place, keep: Collection[str] | None, drop: Collection[str]) -> None:
        self._path = path
        with self._naming():
            self._reader = ParquetReader(path)
            self._file = self._reader.file
            schema = self._file.schema_arrow
        kept = [f for f in schema if (keep is None or f.name in keep) and f.name not in drop]
        self.fields = pa.schema(kept)
        self.indexed = indexed_groups_of(self._file.metadata)
        """Row groups that have page indexes."""
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: pa.RecordBatch | None = None  # None behind a row group's last rows

    def skeleton(self, encoder: Encoder) -> Struct:
        """Return FileMetaData with the source's row groups and key-values and no column."""
        metadata = self._file.metadata
        root = Struct().put(Element.NAME, Wire.BINARY, b"schema")
        groups = [
            Struct().put(Group.ROWS, Wire.I64, metadata.row_group(group).num_rows)
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
        with self._naming():
            plan(footer, 0, encoder, None, ())
        return footer

    def take(self, row_group: int, most: int) -> pa.RecordBatch:
        """Return the next rows of a row group, at least one and at most `most`."""
        with self._naming():
            if row_group != self._group:
                self._open(row_group)
            while self._batch is not None and not self._batch.num_rows:
                self._batch = next(self._batches, None)
        if self._batch is None:
            raise DataError(
                f"{self._path}: row group {row_group} has fewer rows than the footer says; "
                "the file is damaged"
            )
        taken = self._batch.slice(0, most)
        self._batch = self._batch.slice(most)
        return taken

    def _open(self, row_group: int) -> None:
        group = self._file.metadata.row_group(row_group)
        rows = READ_BYTES * group.num_rows // max(group.total_byte_size, 1)
        most = min(max(rows, 1), 1 << 16)
        self._batches = self._reader.batches(most, row_group, self.fields.names)
        self._group, self._batch = row_group, pa.record_batch({})

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, FooterError, UnicodeDecodeError) as error:
            raise DataError(f"{self._path}: cannot be read as Parquet: {error}") from None


class RewriteSink:
    """Decodes a source's columns and encodes them anew beside the new ones; see `Sink`.

    Args:
        rows: the source.
        inner: writes a file that copies no column.
        reason: why the source's columns are not copied.
    """

    def __init__(self, rows: SourceRows, inner: Sink, reason: str) -> None:
        self.reason = reason
        self._rows = rows
        self._inner = inner

    @property
    def output(self) -> Staged | Upload:
        """The file that is written."""
        return self._inner.output

    def encode(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch itself: it is encoded with the source's columns."""
        return columns

    def append(self, row_group: int, encoded: pa.RecordBatch) -> None:
        """Read, encode and add the next rows of a row group."""
        while encoded.num_rows:
            rows = self._rows.take(row_group, encoded.num_rows)
            new = encoded.slice(0, rows.num_rows)
            schema = pa.schema([*rows.schema, *new.schema])
            arrays = [*rows.columns, *new.columns]
            self._inner.write(row_group, pa.RecordBatch.from_arrays(arrays, schema=schema))
            encoded = encoded.slice(rows.num_rows)

    def write(self, row_group: int, columns: pa.RecordBatch) -> None:
        """Read, encode and add the next rows of a row group."""
        self.append(row_group, columns)

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the footer with these entries added, and sync the file."""
        self._inner.complete(metadata)

    def publish(self) -> None:
        """Give the completed file the target's name."""
        self._inner.publish()

    def close(self, metadata: Mapping[str, str]) -> None:
        """Complete the file and publish it."""
        self._inner.close(metadata)

    def abort(self) -> None:
        """Remove what was written."""
        self._inner.abort()
