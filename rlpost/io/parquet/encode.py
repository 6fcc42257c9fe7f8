"""Encoding of new columns as Parquet, by pyarrow: a file in memory, a row group for each batch.

Pages without a dictionary are self-contained: the pages of several batches in sequence are a column
chunk. So memory is bounded by the encoded size, threads encode batches independently, and row
groups get the source's size whatever the size of the batches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.io.parquet.footer import (
    FOOTER,
    MAGIC,
    TAIL,
    ColumnMeta,
    FileMeta,
    RowGroup,
    Spine,
    Struct,
    Wire,
    chunk_extent,
    column_metas,
    decode,
    encoded,
    shift_chunk,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


_CHUNKS: Spine = {FileMeta.ROW_GROUPS: FOOTER[FileMeta.ROW_GROUPS]}


class EncodedRows(NamedTuple):
    """The pages of some rows: of each leaf column, in the order of the schema."""

    rows: int
    metas: list[Struct]
    """Metadata of the column chunks; their offsets are those in `data`."""
    data: pa.Buffer


class Encoder:
    """Encodes record batches of one schema; thread-safe.

    Args:
        fields: the columns; names are unique.
        constant: names of columns with few distinct values. Floats of other columns are encoded by
            BYTE_STREAM_SPLIT: varying floats get smaller and faster to read.
        aliases: name -> name of a column with the same values; encoded once, stored twice.
    """

    def __init__(
        self,
        fields: pa.Schema,
        *,
        constant: Collection[str] = (),
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.fields = fields
        self._aliases = dict(aliases or {})
        self._encoded = pa.schema([field for field in fields if field.name not in self._aliases])
        self._options: dict[str, Any] = {
            "compression": "zstd",
            "compression_level": 1,
            "use_dictionary": False,
            "store_schema": False,
            "write_batch_size": 1 << 18,  # values of a page, 1 MB of float32
        }
        empty = self._file(fields, [pa.Table.from_batches([], schema=fields)])
        leaves = pq.read_metadata(pa.BufferReader(empty)).schema
        leaves = [leaves.column(index) for index in range(len(leaves))]
        self._options["write_statistics"] = [x.path for x in leaves if not x.max_repetition_level]
        self._options["column_encoding"] = {
            leaf.path: "BYTE_STREAM_SPLIT"
            for leaf in leaves
            if leaf.max_repetition_level and leaf.physical_type in ("FLOAT", "DOUBLE")
            if leaf.path.partition(".")[0] not in {*constant, *self._aliases}
        }
        self.footer = _footer_of(empty)
        """FileMetaData with the schema, its column orders, and one empty row group."""

    def encode(self, batches: Sequence[pa.RecordBatch]) -> list[EncodedRows]:
        """Encode batches with the columns of the schema, each by itself; aliases may be missing.

        Raises:
            ValueError: a column is missing, or has another type than in the schema.
        """
        names = self._encoded.names
        for batch in batches:
            missing = {*names} - {*batch.schema.names}
            if missing or batch.select(names).schema != self._encoded:
                raise ValueError(f"columns {batch.schema} came; {self._encoded} are needed")
        tables = [pa.Table.from_batches([batch.select(names)]) for batch in batches]
        data = self._file(self._encoded, tables)
        groups = _footer_of(data, _CHUNKS).structs(FileMeta.ROW_GROUPS)
        return [self._rows(group, data) for group in groups]

    @property
    def no_rows(self) -> EncodedRows:
        """No rows, encoded."""
        columns = [pa.nulls(0, field.type) for field in self._encoded]
        return self.encode([pa.RecordBatch.from_arrays(columns, schema=self._encoded)])[0]

    def _rows(self, group: Struct, data: pa.Buffer) -> EncodedRows:
        """Return the rows of a row group of a file in memory."""
        extents = [chunk_extent(meta) for meta in column_metas(group)]
        begin = max(min(begin for begin, _ in extents), len(MAGIC)) - len(MAGIC)
        end = max(end for _, end in extents)
        metas: dict[str, list[Struct]] = {}
        for meta in column_metas(group):
            shift_chunk(meta, -begin)
            metas.setdefault(_path(meta)[0], []).append(meta)
        for alias, name in self._aliases.items():
            metas[alias] = [_renamed(meta, alias) for meta in metas[name]]
        ordered = [meta for name in self.fields.names for meta in metas[name]]
        rows = data.slice(begin, max(end - begin, 0))
        return EncodedRows(group.integer(RowGroup.ROWS), ordered, rows)

    def _file(self, schema: pa.Schema, tables: Sequence[pa.Table]) -> pa.Buffer:
        """Return a file in memory with a row group for each table."""
        out = pa.BufferOutputStream()
        with pq.ParquetWriter(out, schema, **self._options) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
        return out.getvalue()


def _footer_of(file: pa.Buffer, spine: Spine = FOOTER) -> Struct:
    tail = file.slice(len(file) - TAIL).to_pybytes()
    length = int.from_bytes(tail[: -len(MAGIC)], "little")
    return decode(file.slice(len(file) - TAIL - length, length).to_pybytes(), spine)[0]


def _path(meta: Struct) -> list[str]:
    """Return the path of a column chunk in the schema."""
    parts = meta.parts(ColumnMeta.PATH, Wire.BINARY)
    return [Struct({1: (Wire.BINARY, part)}).binary(1).decode() for part in parts]


def _renamed(meta: Struct, name: str) -> Struct:
    path = [encoded(Wire.BINARY, part.encode()) for part in (name, *_path(meta)[1:])]
    return Struct(meta).put_parts(ColumnMeta.PATH, Wire.BINARY, path)


@lru_cache(8)
def shared_encoder(
    fields: pa.Schema, constant: frozenset[str], aliases: frozenset[tuple[str, str]]
) -> Encoder:
    """Return an encoder, which all files with the same new columns share."""
    return Encoder(fields, constant=constant, aliases=dict(sorted(aliases)))
