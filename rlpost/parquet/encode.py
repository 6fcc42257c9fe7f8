"""Encoding: record batches become Parquet pages.

Pages without a dictionary stand for themselves, so the pages of several batches, put one after
another, are one column chunk. That keeps memory bounded by the encoded size, lets any thread
encode any batch, and makes row groups as large as the source's out of batches of any size.

Lists of floats without nulls are nearly all that is written, and get pages made here: their levels
are runs, so they cost a few bytes a row, where pyarrow spends 5 ns on every token. The rest, and
lists with nulls, are pyarrow's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.parquet.footer import (
    MAGIC,
    TAIL,
    FileMeta,
    Meta,
    Struct,
    Wire,
    decode,
    encode,
)
from rlpost.parquet.plan import metas_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


PAGE_VALUES = 1 << 18  # 1 MB of float32, pyarrow's own page size
MOST_VALUES = 1 << 27  # in one list: a page's size has 31 bits
_PLAIN, _RLE, _SPLIT = 0, 3, 9
_FLOAT, _DOUBLE = 4, 5


@dataclass(frozen=True, slots=True)
class Piece:
    """One leaf column's pages for some rows; no offset in `meta` is meaningful yet."""

    meta: Struct
    pages: list[Any]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Some rows of the new columns: one piece a leaf, in the order of the schema."""

    rows: int
    pieces: list[Piece]


class Encoder:
    """Turns record batches of one schema into pages; safe to call from several threads.

    Args:
        fields: the columns; names are unique.
        constant: names of columns that repeat few values; the others' floats are stored with
            BYTE_STREAM_SPLIT, which makes floats that vary smaller and quicker to read.
        aliases: name -> name of the column that holds the same values; encoded once, stored twice.
        codec: a compression that pyarrow knows, "none" for none.
        level: its level, None for its default.
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
        self._own = [field for field in fields if field.name not in self._aliases]
        self._options: dict[str, Any] = {
            "compression": codec,
            "compression_level": level,
            "use_dictionary": False,
            "store_schema": False,
        }
        _, self.footer = self._write(fields.empty_table())
        bare = [meta.without(Meta.STATISTICS, Meta.ENCODING_STATS) for meta in _metas(self.footer)]
        self._leaves = _by_column(bare)
        split = {
            _dotted(meta)
            for name, metas in self._leaves.items()
            for meta in metas
            if name not in constant and meta.integer(Meta.TYPE) in (_FLOAT, _DOUBLE)
        }
        scalars = [_dotted(metas[0]) for metas in self._leaves.values() if _is_scalar(metas)]
        self._options |= {
            "column_encoding": dict.fromkeys(split - {*scalars}, "BYTE_STREAM_SPLIT"),
            "write_statistics": scalars,
        }
        self._split = split

    def encode(self, columns: pa.RecordBatch) -> Encoded:
        """Encode a batch that has every column of the schema; aliases may be missing.

        Raises:
            ValueError: a column is missing or has another type than the schema says.
        """
        arrays = {field.name: _column(columns, field) for field in self._own}
        pieces: dict[str, list[Piece]] = {}
        rest = []
        for field in self._own:
            if _has_plain_lists(arrays[field.name]):
                (leaf,) = self._leaves[field.name]
                pieces[field.name] = [self._lists(arrays[field.name], field, leaf)]
            else:
                rest.append(field)
        if rest:
            batch = [arrays[field.name] for field in rest]
            pieces |= self._by_pyarrow(pa.Table.from_arrays(batch, schema=pa.schema(rest)))
        for alias, name in self._aliases.items():
            pieces[alias] = [_renamed(piece, alias) for piece in pieces[name]]
        ordered = [piece for field in self.fields for piece in pieces[field.name]]
        return Encoded(columns.num_rows, ordered)

    @property
    def nothing(self) -> pa.RecordBatch:
        """A batch of no rows."""
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
        own = pa.Codec({"lz4": "lz4_raw"}.get(codec, codec), compression_level=level)
        return bytes(own.compress(data, asbytes=True))

    def _by_pyarrow(self, table: pa.Table) -> dict[str, list[Piece]]:
        data, footer = self._write(table)
        pieces: dict[str, list[Piece]] = {}
        for name, metas in _by_column(_metas(footer)).items():
            pieces[name] = [Piece(meta, [_bytes_of(meta, data)]) for meta in metas]
        return pieces

    def _lists(self, array: pa.Array, field: pa.Field, leaf: Struct) -> Piece:
        """Make the pages of a column of lists of floats, where nothing is null."""
        offsets, span = _span(array)
        values = span.to_numpy()
        split = _dotted(leaf) in self._split
        empty = int(field.nullable)
        deepest = empty + 1 + int(field.type.value_field.nullable)
        pages, sizes = [], [0, 0]
        for rows in _pages_of(offsets):
            lengths = np.diff(rows)
            floats = values[rows[0] : rows[-1]]
            body = b"".join(
                (
                    _prefixed(_repetition_levels(lengths)),
                    _prefixed(_definition_levels(lengths, empty, deepest)),
                    (_byte_planes(floats) if split else floats).data,
                )
            )
            packed = self._compressed(body)
            count = int(np.maximum(lengths, 1).sum())
            header = _page_header(len(body), len(packed), count, _SPLIT if split else _PLAIN)
            pages += [header, packed]
            sizes = [sizes[0] + len(header) + len(body), sizes[1] + len(header) + len(packed)]
        levels = int(np.maximum(np.diff(offsets), 1).sum())
        meta = Struct(leaf).put(Meta.VALUES, Wire.I64, levels)
        meta.put_list(Meta.ENCODINGS, Wire.I32, [_SPLIT if split else _PLAIN, _RLE])
        meta.put(Meta.UNCOMPRESSED, Wire.I64, sizes[0]).put(Meta.COMPRESSED, Wire.I64, sizes[1])
        return Piece(meta, pages)


def _metas(footer: Struct) -> list[Struct]:
    (group,) = footer.structs(FileMeta.ROW_GROUPS)
    return metas_of(group)


def _bytes_of(meta: Struct, data: memoryview) -> memoryview:
    start = meta.integer(Meta.DATA_PAGE)
    return data[start : start + meta.integer(Meta.COMPRESSED)]


def _path(meta: Struct) -> list[bytes]:
    return meta.values_of(Meta.PATH, Wire.BINARY)


def _dotted(meta: Struct) -> str:
    return b".".join(_path(meta)).decode()


def _by_column(metas: list[Struct]) -> dict[str, list[Struct]]:
    columns: dict[str, list[Struct]] = {}
    for meta in metas:
        columns.setdefault(_path(meta)[0].decode(), []).append(meta)
    return columns


def _is_scalar(metas: list[Struct]) -> bool:
    return len(metas) == 1 and len(_path(metas[0])) == 1


def _column(columns: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name not in columns.schema.names:
        raise ValueError(f"column {field.name!r} of {field.type} is missing")
    array = columns.column(field.name)
    if array.type != field.type:
        raise ValueError(f"column {field.name!r} is {array.type}, {field.type} is needed")
    return array


def _has_plain_lists(array: pa.Array) -> bool:
    """Whether a column is lists of floats, with no null at either level and no giant list."""
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or array.null_count:
        return False
    if not (pa.types.is_float32(kind.value_type) or pa.types.is_float64(kind.value_type)):
        return False
    offsets, values = _span(array)
    return not values.null_count and np.diff(offsets).max(initial=0) < MOST_VALUES


def _span(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return a list column's offsets, from 0 on, and its own values: a slice shares others'."""
    offsets = array.offsets.to_numpy()
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return offsets - offsets[0], values


def _renamed(piece: Piece, name: str) -> Piece:
    path = [name.encode(), *_path(piece.meta)[1:]]
    return Piece(Struct(piece.meta).put_list(Meta.PATH, Wire.BINARY, path), piece.pages)


def _pages_of(offsets: np.ndarray) -> Iterator[np.ndarray]:
    """Cut offsets at rows, so that a page has at most PAGE_VALUES values or one row."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + PAGE_VALUES, side="right")) - 1
        last = min(max(last, first + 1), first + PAGE_VALUES)
        yield offsets[first : last + 1]
        first = last


def _repetition_levels(lengths: np.ndarray) -> bytes:
    """Encode 0 for the first value of each row and 1 for the others."""
    counts = np.stack([np.ones_like(lengths), np.maximum(lengths - 1, 0)], axis=1)
    return _runs(counts.ravel(), np.tile([0, 1], len(lengths)))


def _definition_levels(lengths: np.ndarray, empty: int, deepest: int) -> bytes:
    """Encode `deepest` for every value and `empty` for every empty row."""
    if lengths.all():
        return _runs(lengths.sum(keepdims=True), np.array([deepest]))
    return _runs(np.maximum(lengths, 1), np.where(lengths, deepest, empty))


def _runs(counts: np.ndarray, levels: np.ndarray) -> bytes:
    """Encode runs of levels below 256 in Parquet's RLE: the varint of 2 * count, then the level."""
    header = counts.astype(np.int64) << 1
    shifted = header[:, None] >> np.arange(0, 35, 7)
    cells = np.empty((len(counts), 6), np.uint8)
    cells[:, :5] = shifted & 127 | (shifted > 127) << 7  # noqa: PLR2004
    cells[:, 5] = levels
    present = np.column_stack([shifted > 0, counts > 0])
    return cells[present].tobytes()


def _prefixed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _byte_planes(values: np.ndarray) -> np.ndarray:
    """Lay out floats as BYTE_STREAM_SPLIT does: every value's first byte, then every second."""
    words = values.view(f"u{values.itemsize}")
    planes = np.empty((values.itemsize, len(values)), np.uint8)
    for place, plane in enumerate(planes):
        plane[:] = words >> words.dtype.type(8 * place)
    return planes.ravel()


def _page_header(uncompressed: int, compressed: int, values: int, encoding: int) -> bytes:
    data = Struct().put(1, Wire.I32, values).put(2, Wire.I32, encoding)
    data.put(3, Wire.I32, _RLE).put(4, Wire.I32, _RLE)
    page = Struct().put(1, Wire.I32, 0).put(2, Wire.I32, uncompressed)
    return encode(page.put(3, Wire.I32, compressed).put(5, Wire.STRUCT, data))
