"""Encoding of record batches as Parquet pages, and their transfer between processes.

Pages without a dictionary are self-contained: the pages of several batches in sequence are a column
chunk. So memory is bounded by the encoded size, threads encode batches independently, and row
groups get the source's size whatever the size of the batches.

Most new columns are lists of floats without nulls. Their pages are encoded here: levels are
run-length encoded at a few bytes a row, where pyarrow takes 5 ns for every token. Floats and bools
without nulls are encoded here, too, and pyarrow encodes everything else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.io.arrow import to_numpy
from rlpost.io.parquet.footer import (
    MAGIC,
    TAIL,
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    RowGroup,
    Struct,
    Wire,
    decode,
    encode,
    statistics,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


PAGE_VALUES = 1 << 18  # 1 MB of float32, pyarrow's default page size
MOST_VALUES = 1 << 27  # of one list: the size of a page has 31 bits
_PLAIN, _RLE, _SPLIT = 0, 3, 9  # encodings; the last is BYTE_STREAM_SPLIT
_FLOAT, _DOUBLE = 4, 5


def split_pages(offsets: np.ndarray) -> Iterator[np.ndarray]:
    """Split offsets by pages: of at most PAGE_VALUES values and rows, or of one row."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + PAGE_VALUES, side="right")) - 1
        last = min(max(last, first + 1), first + PAGE_VALUES)
        yield offsets[first : last + 1]
        first = last


def repetition_levels(lengths: np.ndarray) -> bytes:
    """Encode repetition levels: 0 for the first value of each row, 1 for the others."""
    counts = np.stack([np.ones_like(lengths), np.maximum(lengths - 1, 0)], axis=1)
    return _runs(counts.ravel(), np.tile([0, 1], len(lengths)))


def definition_levels(lengths: np.ndarray, empty: int, deepest: int) -> bytes:
    """Encode definition levels: `deepest` for every value, `empty` for every empty row."""
    if lengths.all():
        return _runs(lengths.sum(keepdims=True), np.array([deepest]))
    return _runs(np.maximum(lengths, 1), np.where(lengths, deepest, empty))


def _runs(counts: np.ndarray, levels: np.ndarray) -> bytes:
    """Encode runs of levels below 256 by Parquet's RLE: varint of 2 * count, then the level."""
    header = counts.astype(np.int64) << 1
    shifted = header[:, None] >> np.arange(0, 35, 7)
    cells = np.empty((len(counts), 6), np.uint8)
    cells[:, :5] = shifted & 127 | (shifted > 127) << 7  # noqa: PLR2004
    cells[:, 5] = levels
    present = np.column_stack([shifted > 0, counts > 0])
    return cells[present].tobytes()


def plain_scalars(values: np.ndarray) -> bytes:
    """Encode values by PLAIN: bools are bits, from the lowest on."""
    if values.dtype == np.bool_:
        return np.packbits(values, bitorder="little").tobytes()
    return values.tobytes()


def min_max(values: np.ndarray) -> list[bytes]:
    """Return the least and the greatest value, in PLAIN encoding; in Parquet, -0 is below 0.

    Returns [] if there are no values, or if one is NaN.
    """
    if not len(values):
        return []
    low, high = values.min(keepdims=True), values.max(keepdims=True)
    if values.dtype != np.bool_:
        if np.isnan(low[0]):
            return []
        low, high = np.where(low == 0, -np.zeros_like(low), low), high + np.zeros_like(high)
    return [plain_scalars(low), plain_scalars(high)]


def length_prefixed(data: bytes) -> bytes:
    """Prefix levels by their length, as in version 1 data pages."""
    return struct.pack("<I", len(data)) + data


def byte_planes(values: np.ndarray) -> np.ndarray:
    """Encode floats by BYTE_STREAM_SPLIT: the first byte of all values, then the second, ..."""
    words = values.view(f"u{values.itemsize}")
    planes = np.empty((values.itemsize, len(values)), np.uint8)
    for index, plane in enumerate(planes):
        plane[:] = words >> words.dtype.type(8 * index)
    return planes.ravel()


def page_header(uncompressed: int, compressed: int, values: int, encoding: int) -> bytes:
    """Encode the header of a version 1 data page with RLE levels."""
    data = Struct().put(1, Wire.I32, values).put(2, Wire.I32, encoding)
    data.put(3, Wire.I32, _RLE).put(4, Wire.I32, _RLE)
    page = Struct().put(1, Wire.I32, 0).put(2, Wire.I32, uncompressed)
    return encode(page.put(3, Wire.I32, compressed).put(5, Wire.STRUCT, data))


@dataclass(frozen=True, slots=True)
class ColumnPages:
    """The pages of one leaf column for some rows; the offsets in `meta` are not set yet."""

    meta: Struct
    pages: list[Any]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The pages of some rows: of each leaf column, in the order of the schema."""

    rows: int
    columns: list[ColumnPages]


class Encoder:
    """Encodes record batches of one schema; thread-safe.

    Args:
        fields: the columns; names are unique.
        constant: names of columns with few distinct values. Floats of other columns are encoded by
            BYTE_STREAM_SPLIT: varying floats get smaller and faster to read.
        aliases: name -> name of a column with the same values; encoded once, stored twice.
        codec: a compression codec of pyarrow, or "none".
        level: the compression level, None for the codec's default.
    """

    def __init__(
        self,
        fields: pa.Schema,
        *,
        constant: Collection[str] = (),
        aliases: Mapping[str, str] | None = None,
        codec: str = "zstd",
        level: int | None = 1,
    ) -> None:
        self.fields = fields
        self._aliases = dict(aliases or {})
        self._encoded_fields = [field for field in fields if field.name not in self._aliases]
        self._options: dict[str, Any] = {
            "compression": codec,
            "compression_level": level,
            "use_dictionary": False,
            "store_schema": False,
        }
        _, self.footer = self._write(pa.Table.from_batches([], schema=fields))
        bare = [
            meta.without(ColumnMeta.STATISTICS, ColumnMeta.ENCODING_STATS)
            for meta in _metas(self.footer)
        ]
        self._leaves = _by_column(bare)
        split = {
            _dotted(meta)
            for name, metas in self._leaves.items()
            for meta in metas
            if name not in constant and meta.integer(ColumnMeta.TYPE) in (_FLOAT, _DOUBLE)
        }
        scalars = [_dotted(metas[0]) for metas in self._leaves.values() if _is_scalar(metas)]
        self._options |= {
            "column_encoding": dict.fromkeys(split - {*scalars}, "BYTE_STREAM_SPLIT"),
            "write_statistics": scalars,
        }
        self._split = split

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode a batch with the columns of the schema; aliases may be missing.

        Raises:
            ValueError: a column is missing, or has another type than in the schema.
        """
        arrays = {field.name: _column(batch, field) for field in self._encoded_fields}
        columns: dict[str, list[ColumnPages]] = {}
        rest = []
        for field in self._encoded_fields:
            if _has_plain_lists(arrays[field.name]):
                (leaf,) = self._leaves[field.name]
                columns[field.name] = [self._lists(arrays[field.name], field, leaf)]
            elif _has_plain_scalars(arrays[field.name]):
                (leaf,) = self._leaves[field.name]
                columns[field.name] = [self._scalars(arrays[field.name], field, leaf)]
            else:
                rest.append(field)
        if rest:
            others = [arrays[field.name] for field in rest]
            columns |= self._by_pyarrow(pa.Table.from_arrays(others, schema=pa.schema(rest)))
        for alias, name in self._aliases.items():
            columns[alias] = [_renamed(leaf, alias) for leaf in columns[name]]
        ordered = [leaf for field in self.fields for leaf in columns[field.name]]
        return EncodedRows(batch.num_rows, ordered)

    @property
    def empty_batch(self) -> pa.RecordBatch:
        """A batch without rows."""
        return pa.RecordBatch.from_pylist([], self.fields)

    def _write(self, table: pa.Table) -> tuple[memoryview, Struct]:
        out = pa.BufferOutputStream()
        pq.write_table(table, out, row_group_size=max(table.num_rows, 1), **self._options)
        data = memoryview(out.getvalue())
        length = struct.unpack("<I", data[-TAIL : -len(MAGIC)])[0]
        footer, _ = decode(bytes(data[-TAIL - length : -TAIL]))
        return data, footer

    def _compressed(self, data: bytes) -> bytes:
        codec, level = self._options["compression"], self._options["compression_level"]
        if codec == "none":
            return data
        compressor = pa.Codec({"lz4": "lz4_raw"}.get(codec, codec), compression_level=level)
        return bytes(compressor.compress(data, asbytes=True))

    def _by_pyarrow(self, table: pa.Table) -> dict[str, list[ColumnPages]]:
        data, footer = self._write(table)
        columns: dict[str, list[ColumnPages]] = {}
        for chunk in _chunks(footer):
            meta = chunk.struct(ColumnChunk.META)
            pages = ColumnPages(meta, [_bytes_of(meta, data)])
            columns.setdefault(_path(meta)[0].decode(), []).append(pages)
        return columns

    def _lists(self, array: pa.Array, field: pa.Field, leaf: Struct) -> ColumnPages:
        """Encode a column of lists of floats without nulls."""
        offsets, span = _span(array)
        values = to_numpy(span)
        split = _dotted(leaf) in self._split
        empty = int(field.nullable)
        deepest = empty + 1 + int(field.type.value_field.nullable)
        pages, sizes = [], [0, 0]
        for rows in split_pages(offsets):
            lengths = np.diff(rows)
            floats = values[rows[0] : rows[-1]]
            body = b"".join(
                (
                    length_prefixed(repetition_levels(lengths)),
                    length_prefixed(definition_levels(lengths, empty, deepest)),
                    (byte_planes(floats) if split else floats).data,
                )
            )
            packed = self._compressed(body)
            count = int(np.maximum(lengths, 1).sum())
            header = page_header(len(body), len(packed), count, _SPLIT if split else _PLAIN)
            pages += [header, packed]
            sizes = [sizes[0] + len(header) + len(body), sizes[1] + len(header) + len(packed)]
        levels = int(np.maximum(np.diff(offsets), 1).sum())
        meta = Struct(leaf).put(ColumnMeta.VALUES, Wire.I64, levels)
        meta.put_list(ColumnMeta.ENCODINGS, Wire.I32, [_SPLIT if split else _PLAIN, _RLE])
        meta.put(ColumnMeta.UNCOMPRESSED, Wire.I64, sizes[0]).put(
            ColumnMeta.COMPRESSED, Wire.I64, sizes[1]
        )
        return ColumnPages(meta, pages)

    def _scalars(self, array: pa.Array, field: pa.Field, leaf: Struct) -> ColumnPages:
        """Encode a column of floats or bools without nulls, as one page."""
        values = to_numpy(array)
        ones = np.array([len(values)])
        levels = length_prefixed(definition_levels(ones, 0, 1)) if field.nullable else b""
        body = levels + plain_scalars(values)
        packed = self._compressed(body)
        header = page_header(len(body), len(packed), len(values), _PLAIN)
        meta = Struct(leaf).put(ColumnMeta.VALUES, Wire.I64, len(values))
        meta.put_list(ColumnMeta.ENCODINGS, Wire.I32, [_PLAIN, _RLE])
        meta.put(ColumnMeta.UNCOMPRESSED, Wire.I64, len(header) + len(body))
        meta.put(ColumnMeta.COMPRESSED, Wire.I64, len(header) + len(packed))
        meta.put(ColumnMeta.STATISTICS, Wire.STRUCT, statistics(0, min_max(values)))
        return ColumnPages(meta, [header, packed])


def _chunks(footer: Struct) -> list[Struct]:
    (group,) = footer.structs(FileMeta.ROW_GROUPS)
    return group.structs(RowGroup.COLUMNS)


def _metas(footer: Struct) -> list[Struct]:
    return [chunk.struct(ColumnChunk.META) for chunk in _chunks(footer)]


def _bytes_of(meta: Struct, data: memoryview) -> memoryview:
    start = meta.integer(ColumnMeta.DATA_PAGE)
    return data[start : start + meta.integer(ColumnMeta.COMPRESSED)]


def _path(meta: Struct) -> list[bytes]:
    return meta.values_of(ColumnMeta.PATH, Wire.BINARY)


def _dotted(meta: Struct) -> str:
    return b".".join(_path(meta)).decode()


def _by_column(metas: list[Struct]) -> dict[str, list[Struct]]:
    columns: dict[str, list[Struct]] = {}
    for meta in metas:
        columns.setdefault(_path(meta)[0].decode(), []).append(meta)
    return columns


def _is_scalar(metas: list[Struct]) -> bool:
    return len(metas) == 1 and len(_path(metas[0])) == 1


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in batch.schema.names:
        raise ValueError(f"column {field.name!r} of {field.type} is missing")
    array = batch.column(field.name)
    if array.type != field.type:
        raise ValueError(f"column {field.name!r} is {array.type}, {field.type} is needed")
    return array


def _has_plain_scalars(array: pa.Array) -> bool:
    """Return whether a column has floats or bools, at least one, and no nulls."""
    kind = array.type
    simple = pa.types.is_float32(kind) or pa.types.is_float64(kind) or pa.types.is_boolean(kind)
    return simple and bool(len(array)) and not array.null_count


def _has_plain_lists(array: pa.Array) -> bool:
    """Return whether a column has lists of floats, without nulls and without huge lists."""
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or array.null_count:
        return False
    if not (pa.types.is_float32(kind.value_type) or pa.types.is_float64(kind.value_type)):
        return False
    offsets, values = _span(array)
    return not values.null_count and np.diff(offsets).max(initial=0) < MOST_VALUES


def _span(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return a list column's offsets, from 0 on, and their values: a slice shares its parent's."""
    offsets = to_numpy(array.offsets)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return offsets - offsets[0], values


def _renamed(leaf: ColumnPages, name: str) -> ColumnPages:
    path = [name.encode(), *_path(leaf.meta)[1:]]
    return replace(leaf, meta=Struct(leaf.meta).put_list(ColumnMeta.PATH, Wire.BINARY, path))
