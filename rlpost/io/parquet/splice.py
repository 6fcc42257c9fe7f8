"""Splices: the footer and the byte ranges of a source for an output with new columns.

Kept columns are not decoded. The output is the source's data, byte for byte, then the new columns'
chunks, row group by row group, and one footer with both schemas. If all columns are kept, their
offsets do not change. If some are dropped, the kept chunks and Bloom filters are compacted. The
output has no page indexes: some readers need them for all columns of a row group, or for none.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rlpost.io.outputs import ByteRange
from rlpost.io.parquet.footer import (
    MAGIC,
    ColumnChunk,
    ColumnMeta,
    EncryptedError,
    FileMeta,
    FooterError,
    RowGroup,
    SchemaElement,
    Struct,
    Wire,
    chunk_extent,
    column_metas,
    decoded_structs,
    encoded_structs,
    shift_chunk,
    top_level,
)
from rlpost.io.parquet.schemas import join_file_metadata, key_values, put_key_values

if TYPE_CHECKING:
    from collections.abc import Collection

    from rlpost.io.parquet.encode import Encoder


_INDEXES = (
    ColumnChunk.OFFSET_INDEX,
    ColumnChunk.OFFSET_LENGTH,
    ColumnChunk.COLUMN_INDEX,
    ColumnChunk.COLUMN_LENGTH,
)


class Splice(NamedTuple):
    """What an output keeps of a source."""

    names: list[str]
    """The kept columns."""
    ranges: list[ByteRange]
    """The bytes to copy."""


def splice(
    footer: Struct, end: int, new: Encoder, keep: Collection[str] | None, drop: Collection[str]
) -> Splice:
    """Check a footer against its file, remove dropped columns, and add new ones to its schema.

    The row groups get the chunks of the kept columns, at their offsets in the output.

    Args:
        footer: FileMetaData; changed in place.
        end: the offset of the footer, and so the end of column chunks.
        new: encodes the new columns.
        keep: names of the top-level columns to keep, None for all.
        drop: names of the columns to drop.

    Raises:
        EncryptedError: a column is encrypted.
        FooterError: a column chunk is outside of the file, or cannot be copied.
    """
    schema = footer.encoded(FileMeta.SCHEMA)
    joined = _joined_schema(schema, new, None if keep is None else (*keep,), (*drop,))
    names, leaves, count = joined.names, joined.leaves, joined.all_leaves
    groups = footer.structs(FileMeta.ROW_GROUPS)
    _check_overlap([extent for group in groups for extent in _extents(group, count, end)])
    for group in groups:
        _select_columns(group, leaves)
    footer[FileMeta.SCHEMA] = (Wire.LIST, joined.encoded)
    if FileMeta.COLUMN_ORDERS in footer:
        orders = footer.parts(FileMeta.COLUMN_ORDERS, Wire.STRUCT)
        del footer[FileMeta.COLUMN_ORDERS]
        if len(orders) == count:
            orders = [orders[leaf] for leaf in leaves]
            orders += new.footer.parts(FileMeta.COLUMN_ORDERS, Wire.STRUCT)
            footer.put_parts(FileMeta.COLUMN_ORDERS, Wire.STRUCT, orders)
    put_key_values(footer, join_file_metadata(key_values(footer), names, new.fields))
    if joined.whole:
        return Splice(names, [ByteRange(len(MAGIC), end - len(MAGIC), len(MAGIC))])
    return Splice(names, _compact(groups))


class _JoinedSchema(NamedTuple):
    """Some columns of a schema, and new ones behind them."""

    names: list[str]
    """The kept columns."""
    whole: bool
    """They are all of its columns."""
    leaves: list[int]
    """The numbers of their leaf columns."""
    all_leaves: int
    """Leaf columns of the whole schema."""
    encoded: bytes


@lru_cache(4)
def _joined_schema(
    schema: bytes, new: Encoder, keep: tuple[str, ...] | None, drop: tuple[str, ...]
) -> _JoinedSchema:
    """Return a schema with new columns: once for all files that have it."""
    elements = decoded_structs(schema)
    columns = top_level(elements)
    kept = [c for c in columns if (keep is None or c.name in keep) and c.name not in drop]
    added = new.footer.structs(FileMeta.SCHEMA)[1:]
    root = Struct(elements[0]).put(SchemaElement.CHILDREN, Wire.I32, len(kept) + len(new.fields))
    return _JoinedSchema(
        [column.name for column in kept],
        len(kept) == len(columns),
        [leaf for column in kept for leaf in column.leaves],
        sum(len(column.leaves) for column in columns),
        encoded_structs([root, *(x for column in kept for x in column.elements), *added]),
    )


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
        if stop > end:
            raise FooterError(f"a column chunk at bytes {begin} to {stop} is not in its data")
        extents.append((begin, stop))
        if ColumnMeta.BLOOM in meta:
            bloom = meta.integer(ColumnMeta.BLOOM)
            filtered = bloom + meta.integer(ColumnMeta.BLOOM_LENGTH, 0)
            if len(MAGIC) <= bloom < filtered <= end:
                extents.append((bloom, filtered))
            else:
                del meta[ColumnMeta.BLOOM]
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
    kept = [chunks[leaf].without(*_INDEXES) for leaf in leaves]
    for chunk in kept:
        chunk.put(ColumnChunk.OFFSET, Wire.I64, 0)
    group.put_structs(RowGroup.COLUMNS, kept)
    if RowGroup.SORTING not in group:
        return
    indexes = {leaf: index for index, leaf in enumerate(leaves)}
    order = []
    for column in group.structs(RowGroup.SORTING):
        if column.integer(1) not in indexes:
            break  # without a dropped column, rows are sorted by the columns before it only
        order.append(column.put(1, Wire.I32, indexes[column.integer(1)]))
    del group[RowGroup.SORTING]
    if order:
        group.put_structs(RowGroup.SORTING, order)


def _compact(groups: list[Struct]) -> list[ByteRange]:
    """Move chunks, then Bloom filters, to the beginning of the file; return the ranges to copy.

    Args:
        groups: the source's row groups, with the kept chunks; changed in place.
    """
    end = len(MAGIC)
    ranges: list[ByteRange] = []
    for group in groups:
        for meta in sorted(column_metas(group), key=chunk_extent):
            begin, stop = chunk_extent(meta)
            shift_chunk(meta, end - begin)
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


def merge_chunks(metas: list[Struct]) -> Struct:
    """Return the metadata of a column chunk that consists of these chunks, in order."""
    if len(metas) == 1:
        return Struct(metas[0])
    merged = metas[0].without(ColumnMeta.STATISTICS, ColumnMeta.ENCODING_STATS, 16, 17)
    for total in (ColumnMeta.VALUES, ColumnMeta.UNCOMPRESSED, ColumnMeta.COMPRESSED):
        merged.put(total, Wire.I64, sum(meta.integer(total) for meta in metas))
    encodings = {part for meta in metas for part in meta.parts(ColumnMeta.ENCODINGS, Wire.I32)}
    return merged.put_parts(ColumnMeta.ENCODINGS, Wire.I32, sorted(encodings))
