"""Planning a splice: a source's footer is checked, cut down and joined with new columns'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rlpost.io.parquet.footer import (
    MAGIC,
    Chunk,
    DamagedError,
    Element,
    EncryptedError,
    FileMeta,
    FooterError,
    Group,
    Meta,
    Struct,
    Wire,
    joined_statistics,
)
from rlpost.io.parquet.indexes import POINTERS, drop_indexes, index_extents, indexed_groups
from rlpost.io.parquet.schemas import (
    ARROW_SCHEMA,
    SPARK_SCHEMA,
    arrow_schema,
    arrow_value,
    joined_arrow,
    joined_spark,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from rlpost.io.parquet.encode import Encoder


_ORDERED = {0: "<?", 4: "<f", 5: "<d"}  # integers may be unsigned, or not numbers
_OFFSETS = (Meta.DATA_PAGE, Meta.INDEX_PAGE, Meta.DICTIONARY_PAGE)
_STAYING = (Chunk.META, *POINTERS)


class Planned(NamedTuple):
    """What stays of a source."""

    names: list[str]
    """Its columns."""
    everything: bool
    """Whether those are all."""
    indexed: frozenset[int]
    """The row groups whose page indexes stay."""


def plan(
    footer: Struct, end: int, encoder: Encoder, keep: Collection[str] | None, drop: Collection[str]
) -> Planned:
    """Check a footer against its file, cut it down to the columns that stay, join the new ones.

    Row groups keep the chunks of the columns that stay; `SpliceSink` adds the rest.

    Args:
        footer: FileMetaData; changed in place.
        end: where the footer begins, so where column chunks end.
        encoder: knows the new columns.
        keep: names of the top-level columns that stay, None for all.
        drop: names of those that do not.

    Raises:
        DamagedError: a column chunk lies outside of the file.
        EncryptedError: a column is encrypted.
        FooterError: splicing cannot serve this file, and a reader might.
    """
    elements = footer.structs(FileMeta.SCHEMA)
    columns = _top_level(elements)
    kept = [c for c in columns if (keep is None or c.name in keep) and c.name not in drop]
    leaves = [leaf for column in kept for leaf in column.leaves]
    count = sum(len(column.leaves) for column in columns)
    groups = footer.structs(FileMeta.ROW_GROUPS)
    extents = [extent for group in groups for extent in _extents(group, count, end)]
    _check_overlap(extents)
    indexed = _sound_indexes(footer, extents, end)
    for group in groups:
        _cut(group, leaves)
    new = encoder.footer.structs(FileMeta.SCHEMA)[1:]
    root = Struct(elements[0]).put(Element.CHILDREN, Wire.I32, len(kept) + len(encoder.fields))
    schema = [root, *(element for column in kept for element in column.elements), *new]
    footer.put_list(FileMeta.SCHEMA, Wire.STRUCT, schema)
    orders = footer.structs(FileMeta.COLUMN_ORDERS)
    footer.pop(FileMeta.COLUMN_ORDERS, None)
    if len(orders) == count:
        orders = [orders[leaf] for leaf in leaves]
        orders += encoder.footer.structs(FileMeta.COLUMN_ORDERS)
        footer.put_list(FileMeta.COLUMN_ORDERS, Wire.STRUCT, orders)
    names = [column.name for column in kept]
    _join_kept_schemas(footer, names, encoder.fields)
    return Planned(names, len(kept) == len(columns), indexed)


def _join_kept_schemas(footer: Struct, names: list[str], fields: pa.Schema) -> None:
    """Let the schemas in the key-value metadata have the columns that stay, and the new ones."""
    pairs = footer.structs(FileMeta.KEY_VALUES)
    for pair in [*pairs]:
        key = pair.binary(1)
        if key == ARROW_SCHEMA:
            pair.put(2, Wire.BINARY, joined_arrow(pair.binary(2), names, fields))
        elif key == SPARK_SCHEMA:
            joined = joined_spark(pair.binary(2, b""), names, fields)
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
            pending += max(elements[at].integer(Element.CHILDREN, 0), 0) - 1
            leaf += Element.TYPE in elements[at]
            at += 1
        name = elements[begin].binary(Element.NAME)
        try:
            columns.append(_Column(name.decode(), elements[begin:at], range(first, leaf)))
        except UnicodeDecodeError:
            raise FooterError(f"the column name {name!r} is not UTF-8") from None
    if not elements or elements[0].integer(Element.CHILDREN, 0) != len(columns):
        raise FooterError(f"its schema has {len(columns)} columns and says otherwise")
    return columns


def extent(meta: Struct) -> tuple[int, int]:
    """Return where a column chunk begins and ends."""
    size = meta.integer(Meta.COMPRESSED)
    begin = min((at for f in _OFFSETS if (at := meta.integer(f, 0)) > 0), default=0)
    return begin, begin + size


def _extents(group: Struct, leaves: int, end: int) -> list[tuple[int, int]]:
    """Return where a row group's chunks and Bloom filters lie, or say what is wrong with one."""
    chunks = group.structs(Group.COLUMNS)
    if len(chunks) != leaves or group.integer(Group.ROWS) < 0:
        raise FooterError(f"a row group has {len(chunks)} columns, the schema {leaves}")
    extents = []
    for chunk in chunks:
        if Chunk.CRYPTO in chunk:
            raise EncryptedError("some of its columns are encrypted")
        if Chunk.FILE_PATH in chunk:
            raise FooterError("some of its columns lie in other files")
        meta = chunk.struct(Chunk.META)
        begin, stop = extent(meta)
        last = max(meta.integer(offset, 0) for offset in _OFFSETS)
        if stop != begin and not len(MAGIC) <= begin <= last < stop <= end:
            raise DamagedError(f"a column chunk at bytes {begin} to {stop} is not in its data")
        bloom = meta.integer(Meta.BLOOM, 0)
        filtered = bloom + meta.integer(Meta.BLOOM_LENGTH, 0)
        if not len(MAGIC) <= bloom < filtered <= end:
            meta.pop(Meta.BLOOM, None)
            bloom = filtered = 0
        extents += [(begin, stop), (bloom, filtered)]
    return extents


def _check_overlap(extents: list[tuple[int, int]]) -> None:
    """Refuse overlaps: copying what is used twice could make a small file a huge one."""
    last = 0
    for begin, stop in sorted(extents):
        if begin < last and stop > begin:
            raise FooterError("some of its column chunks overlap")
        last = max(last, stop)


def _sound_indexes(footer: Struct, extents: list[tuple[int, int]], end: int) -> frozenset[int]:
    """Which row groups have page indexes; where one is not in the data by itself, none is left.

    Columns without an index may be beside columns with one: writers leave out the ColumnIndex of
    types without an order, and pyarrow, polars, DuckDB, Spark and DataFusion read such files.
    """
    groups = footer.structs(FileMeta.ROW_GROUPS)
    try:
        if indexes := index_extents(groups, end):
            _check_overlap([*extents, *indexes])
    except FooterError:
        drop_indexes(groups)
    return indexed_groups(footer)


def _cut(group: Struct, leaves: list[int]) -> None:
    """Leave a row group with some of its columns, and with pointers to nothing else."""
    chunks = group.structs(Group.COLUMNS)
    kept = []
    for leaf in leaves:
        fields = {field: value for field, value in chunks[leaf].items() if field in _STAYING}
        kept.append(Struct(fields).put(Chunk.OFFSET, Wire.I64, 0))
    group.put_list(Group.COLUMNS, Wire.STRUCT, kept)
    places = {leaf: place for place, leaf in enumerate(leaves)}
    order = []
    for column in group.structs(Group.SORTING):
        if column.integer(1) not in places:
            break  # rows are sorted by what comes before a dropped column, not by what comes after
        order.append(Struct(column).put(1, Wire.I32, places[column.integer(1)]))
    group.pop(Group.SORTING, None)
    if order:
        group.put_list(Group.SORTING, Wire.STRUCT, order)


def metas_of(group: Struct) -> list[Struct]:
    """Return the metadata of a row group's column chunks."""
    return [chunk.struct(Chunk.META) for chunk in group.structs(Group.COLUMNS)]


def move(meta: Struct, delta: int) -> None:
    """Shift a column chunk's offsets."""
    for offset in _OFFSETS:
        if meta.integer(offset, 0) > 0:
            meta.put(offset, Wire.I64, meta.integer(offset) + delta)


def add_key_values(footer: Struct, metadata: Mapping[str, str]) -> None:
    """Set key-value entries of FileMetaData, and of its Arrow schema: pyarrow shows only those."""
    new = {key.encode(): value.encode() for key, value in metadata.items()}
    pairs = [pair for pair in footer.structs(FileMeta.KEY_VALUES) if pair.binary(1) not in new]
    for pair in pairs:
        if pair.binary(1) == ARROW_SCHEMA and new:
            schema = arrow_schema(pair.binary(2))
            schema = schema.with_metadata((schema.metadata or {}) | new)
            pair.put(2, Wire.BINARY, arrow_value(schema))
    pairs += [Struct().put(1, Wire.BINARY, k).put(2, Wire.BINARY, v) for k, v in new.items()]
    footer.pop(FileMeta.KEY_VALUES, None)
    if pairs:
        footer.put_list(FileMeta.KEY_VALUES, Wire.STRUCT, pairs)


def joined_meta(metas: list[Struct]) -> Struct:
    """Return the metadata of a column chunk that is made of these pieces, in this order."""
    if len(metas) == 1:
        return Struct(metas[0])
    joined = metas[0].without(Meta.STATISTICS, Meta.ENCODING_STATS, 16, 17)
    for total in (Meta.VALUES, Meta.UNCOMPRESSED, Meta.COMPRESSED):
        joined.put(total, Wire.I64, sum(meta.integer(total) for meta in metas))
    encodings = {e for meta in metas for e in meta.values_of(Meta.ENCODINGS, Wire.I32)}
    joined.put_list(Meta.ENCODINGS, Wire.I32, sorted(encodings))
    if all(Meta.STATISTICS in meta for meta in metas):
        statistics = [meta.struct(Meta.STATISTICS) for meta in metas]
        order = _ORDERED.get(joined.integer(Meta.TYPE))
        joined.put(Meta.STATISTICS, Wire.STRUCT, joined_statistics(statistics, order))
    return joined
