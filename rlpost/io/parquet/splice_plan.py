"""Splice plans: a source's footer, checked, with the kept columns and the new ones.

The key-value metadata may contain the schema once more, in Arrow's or Spark's format. Their readers
prefer it to Parquet's own schema, so it gets the new columns, too.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from rlpost.io.parquet.footer import (
    MAGIC,
    ColumnChunk,
    ColumnMeta,
    DamagedError,
    EncryptedError,
    FileMeta,
    FooterError,
    RowGroup,
    SchemaElement,
    Struct,
    Wire,
    merge_statistics,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class NewColumns(Protocol):
    """The new columns of a file, such as an `Encoder`."""

    @property
    def fields(self) -> pa.Schema:
        """Their Arrow schema."""

    @property
    def footer(self) -> Struct:
        """FileMetaData with their schema and column orders."""


ARROW_SCHEMA = b"ARROW:schema"
SOURCE_KEY = b"rlpost.source"  # the input of an output of --skip-existing
SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
}


def decode_arrow_schema(value: bytes) -> pa.Schema:
    """Decode an Arrow schema from key-value metadata, or FooterError."""
    try:
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(value)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FooterError(f"its Arrow schema cannot be read ({error})") from None


def encode_arrow_schema(schema: pa.Schema) -> bytes:
    """Encode an Arrow schema; the inverse of `decode_arrow_schema`."""
    return base64.b64encode(schema.serialize())


def join_arrow_schema(value: bytes, names: Sequence[str], fields: pa.Schema) -> bytes:
    """Select columns of an encoded Arrow schema and append new ones, or FooterError."""
    schema = decode_arrow_schema(value)
    missing = [name for name in names if schema.get_field_index(name) < 0]
    if missing:
        raise FooterError(f"its Arrow schema lacks {missing[0]!r}, or has it twice")
    kept = (schema.field(name) for name in names)
    return encode_arrow_schema(pa.schema([*kept, *fields], schema.metadata))


def join_table_metadata(
    metadata: Mapping[bytes, bytes], names: Sequence[str], fields: pa.Schema
) -> dict[bytes, bytes]:
    """Select columns of the Spark schema in a table's metadata, if any, and append new ones."""
    joined = dict(metadata)
    value = joined.pop(SPARK_SCHEMA, None)
    schema = None if value is None else join_spark_schema(value, names, fields)
    return joined if schema is None else {**joined, SPARK_SCHEMA: schema}


def join_spark_schema(value: bytes, names: Sequence[str], fields: pa.Schema) -> bytes | None:
    """Select columns of an encoded Spark schema and append new ones.

    Returns:
        None if that is impossible; Spark uses Parquet's own schema then.
    """
    try:
        schema = json.loads(value)
        by_name = {field["name"]: field for field in schema["fields"]}
        kept = [by_name[name] for name in names]
        new = [_spark_field(field.name, field.type, null=field.nullable) for field in fields]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return json.dumps({**schema, "fields": [*kept, *new]}, separators=(",", ":")).encode()


def _spark_field(name: str, kind: pa.DataType, *, null: bool) -> dict[str, Any]:
    return {"name": name, "type": _spark_type(kind), "nullable": null, "metadata": {}}


def _spark_type(kind: pa.DataType) -> str | dict[str, Any]:
    """Return a column's type in Spark's JSON; KeyError if Spark has no simple type for it."""
    if pa.types.is_list(kind):
        inner = kind.value_field
        element = {"elementType": _spark_type(inner.type), "containsNull": inner.nullable}
        return {"type": "array", **element}
    return _SPARK_TYPES[kind]


_ORDERED = {0: "<?", 4: "<f", 5: "<d"}  # integers may be unsigned, or not numbers
_OFFSETS = (ColumnMeta.DATA_PAGE, ColumnMeta.INDEX_PAGE, ColumnMeta.DICTIONARY_PAGE)


class SplicePlan(NamedTuple):
    """What the output keeps of a source."""

    names: list[str]
    """The kept columns."""
    all_kept: bool
    """Whether these are all columns."""


def plan_splice(
    footer: Struct, end: int, new: NewColumns, keep: Collection[str] | None, drop: Collection[str]
) -> SplicePlan:
    """Check a footer against its file, remove dropped columns, and add new ones to its schema.

    The row groups get the chunks of the kept columns; `SpliceSink` adds the others. Page indexes
    are left out: some readers need them for all columns of a row group, or for none.

    Args:
        footer: FileMetaData; changed in place.
        end: the offset of the footer, and so the end of column chunks.
        new: the new columns.
        keep: names of the top-level columns to keep, None for all.
        drop: names of the columns to drop.

    Raises:
        DamagedError: a column chunk is outside of the file.
        EncryptedError: a column is encrypted.
        FooterError: the file cannot be spliced, but may be readable.
    """
    elements = footer.structs(FileMeta.SCHEMA)
    columns = _top_level(elements)
    kept = [c for c in columns if (keep is None or c.name in keep) and c.name not in drop]
    leaves = [leaf for column in kept for leaf in column.leaves]
    count = sum(len(column.leaves) for column in columns)
    groups = footer.structs(FileMeta.ROW_GROUPS)
    extents = [extent for group in groups for extent in _extents(group, count, end)]
    _check_overlap(extents)
    for group in groups:
        _select_columns(group, leaves)
    added = new.footer.structs(FileMeta.SCHEMA)[1:]
    root = Struct(elements[0]).put(SchemaElement.CHILDREN, Wire.I32, len(kept) + len(new.fields))
    schema = [root, *(element for column in kept for element in column.elements), *added]
    footer.put_list(FileMeta.SCHEMA, Wire.STRUCT, schema)
    orders = footer.structs(FileMeta.COLUMN_ORDERS)
    footer.pop(FileMeta.COLUMN_ORDERS, None)
    if len(orders) == count:
        orders = [orders[leaf] for leaf in leaves]
        orders += new.footer.structs(FileMeta.COLUMN_ORDERS)
        footer.put_list(FileMeta.COLUMN_ORDERS, Wire.STRUCT, orders)
    names = [column.name for column in kept]
    _join_kept_schemas(footer, names, new.fields)
    return SplicePlan(names, len(kept) == len(columns))


def _join_kept_schemas(footer: Struct, names: list[str], fields: pa.Schema) -> None:
    """Update the schemas in the key-value metadata to the kept and the new columns."""
    pairs = footer.structs(FileMeta.KEY_VALUES)
    for pair in [*pairs]:
        key = pair.binary(1)
        if key == ARROW_SCHEMA:
            pair.put(2, Wire.BINARY, join_arrow_schema(pair.binary(2), names, fields))
        elif key == SPARK_SCHEMA:
            joined = join_spark_schema(pair.binary(2, b""), names, fields)
            if joined is None:
                pairs.remove(pair)
            else:
                pair.put(2, Wire.BINARY, joined)


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    elements: list[Struct]
    leaves: range


def _top_level(elements: list[Struct]) -> list[_Column]:
    """Group the flattened schema tree by top-level column."""
    columns: list[_Column] = []
    at, leaf = 1, 0
    while at < len(elements):
        begin, first, pending = at, leaf, 1
        while pending > 0:
            if at == len(elements):
                raise FooterError("its schema ends too early")
            pending += max(elements[at].integer(SchemaElement.CHILDREN, 0), 0) - 1
            leaf += SchemaElement.TYPE in elements[at]
            at += 1
        name = elements[begin].binary(SchemaElement.NAME)
        try:
            columns.append(_Column(name.decode(), elements[begin:at], range(first, leaf)))
        except UnicodeDecodeError:
            raise FooterError(f"the column name {name!r} is not UTF-8") from None
    if not elements or elements[0].integer(SchemaElement.CHILDREN, 0) != len(columns):
        raise FooterError(
            f"its schema has {len(columns)} columns, which is not their stated number"
        )
    return columns


def chunk_extent(meta: Struct) -> tuple[int, int]:
    """Return begin and end of a column chunk."""
    size = meta.integer(ColumnMeta.COMPRESSED)
    begin = min((at for f in _OFFSETS if (at := meta.integer(f, 0)) > 0), default=0)
    return begin, begin + size


def _extents(group: Struct, leaves: int, end: int) -> list[tuple[int, int]]:
    """Return begin and end of a row group's chunks and Bloom filters; raise if one is invalid."""
    chunks = group.structs(RowGroup.COLUMNS)
    if len(chunks) != leaves or group.integer(RowGroup.ROWS) < 0:
        raise FooterError(f"a row group has {len(chunks)} columns, the schema has {leaves}")
    extents = []
    for chunk in chunks:
        if ColumnChunk.CRYPTO in chunk:
            raise EncryptedError("some of its columns are encrypted")
        if ColumnChunk.FILE_PATH in chunk:
            raise FooterError("some of its columns are in other files")
        meta = chunk.struct(ColumnChunk.META)
        begin, stop = chunk_extent(meta)
        last = max(meta.integer(offset, 0) for offset in _OFFSETS)
        if stop != begin and not len(MAGIC) <= begin <= last < stop <= end:
            raise DamagedError(f"a column chunk at bytes {begin} to {stop} is not in its data")
        bloom = meta.integer(ColumnMeta.BLOOM, 0)
        filtered = bloom + meta.integer(ColumnMeta.BLOOM_LENGTH, 0)
        if not len(MAGIC) <= bloom < filtered <= end:
            meta.pop(ColumnMeta.BLOOM, None)
            bloom = filtered = 0
        extents += [(begin, stop), (bloom, filtered)]
    return extents


def _check_overlap(extents: list[tuple[int, int]]) -> None:
    """Raise if extents overlap: copying each of them could make a small file huge."""
    last = 0
    for begin, stop in sorted(extents):
        if begin < last and stop > begin:
            raise FooterError("some of its column chunks overlap")
        last = max(last, stop)


def _select_columns(group: Struct, leaves: list[int]) -> None:
    """Reduce a row group to some of its columns, with pointers to kept data only."""
    chunks = group.structs(RowGroup.COLUMNS)
    kept = []
    for leaf in leaves:
        meta = Struct({ColumnChunk.META: chunks[leaf][ColumnChunk.META]})
        kept.append(meta.put(ColumnChunk.OFFSET, Wire.I64, 0))
    group.put_list(RowGroup.COLUMNS, Wire.STRUCT, kept)
    indexes = {leaf: index for index, leaf in enumerate(leaves)}
    order = []
    for column in group.structs(RowGroup.SORTING):
        if column.integer(1) not in indexes:
            break  # without a dropped column, rows are sorted by the columns before it only
        order.append(Struct(column).put(1, Wire.I32, indexes[column.integer(1)]))
    group.pop(RowGroup.SORTING, None)
    if order:
        group.put_list(RowGroup.SORTING, Wire.STRUCT, order)


def column_metas(group: Struct) -> list[Struct]:
    """Return the metadata of a row group's column chunks."""
    return [chunk.struct(ColumnChunk.META) for chunk in group.structs(RowGroup.COLUMNS)]


def shift_offsets(meta: Struct, delta: int) -> None:
    """Shift a column chunk's offsets."""
    for offset in _OFFSETS:
        if meta.integer(offset, 0) > 0:
            meta.put(offset, Wire.I64, meta.integer(offset) + delta)


def add_key_values(footer: Struct, metadata: Mapping[str, str]) -> None:
    """Set key-value entries of FileMetaData, and of its Arrow schema, which pyarrow prefers.

    What an input says about its own input is not true of the output, and is left out.
    """
    new = {key.encode(): value.encode() for key, value in metadata.items()}
    replaced = {*new, SOURCE_KEY}
    pairs = [pair for pair in footer.structs(FileMeta.KEY_VALUES) if pair.binary(1) not in replaced]
    for pair in pairs:
        if pair.binary(1) == ARROW_SCHEMA and new:
            schema = decode_arrow_schema(pair.binary(2))
            kept = {k: v for k, v in (schema.metadata or {}).items() if k != SOURCE_KEY}
            schema = schema.with_metadata(kept | new)
            pair.put(2, Wire.BINARY, encode_arrow_schema(schema))
    pairs += [Struct().put(1, Wire.BINARY, k).put(2, Wire.BINARY, v) for k, v in new.items()]
    footer.pop(FileMeta.KEY_VALUES, None)
    if pairs:
        footer.put_list(FileMeta.KEY_VALUES, Wire.STRUCT, pairs)


def merge_chunks(metas: list[Struct]) -> Struct:
    """Return the metadata of a column chunk that consists of these chunks, in order."""
    if len(metas) == 1:
        return Struct(metas[0])
    merged = metas[0].without(ColumnMeta.STATISTICS, ColumnMeta.ENCODING_STATS, 16, 17)
    for total in (ColumnMeta.VALUES, ColumnMeta.UNCOMPRESSED, ColumnMeta.COMPRESSED):
        merged.put(total, Wire.I64, sum(meta.integer(total) for meta in metas))
    encodings = {e for meta in metas for e in meta.values_of(ColumnMeta.ENCODINGS, Wire.I32)}
    merged.put_list(ColumnMeta.ENCODINGS, Wire.I32, sorted(encodings))
    if all(ColumnMeta.STATISTICS in meta for meta in metas):
        parts = [meta.struct(ColumnMeta.STATISTICS) for meta in metas]
        order = _ORDERED.get(merged.integer(ColumnMeta.TYPE))
        merged.put(ColumnMeta.STATISTICS, Wire.STRUCT, merge_statistics(parts, order))
    return merged
