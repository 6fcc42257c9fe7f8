"""Page indexes: offsets of pages (OffsetIndex) and bounds of their values (ColumnIndex).

A ColumnIndex has no offsets, so it is copied unchanged. An OffsetIndex has each page's offset in
the file, so it is decoded and encoded again if its chunk moves. Sources are untrusted: if one index
is invalid, the output gets none of the file's indexes.
"""

from __future__ import annotations

from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from rlpost.io.parquet.footer import (
    MAGIC,
    ColumnChunk,
    ColumnMeta,
    FileMeta,
    FooterError,
    RowGroup,
    Struct,
    Wire,
    decode,
    encode,
)
from rlpost.io.ranges import read_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.parquet as pq

    from rlpost.io.ranges import OpenFile


MOST_BYTES = 1 << 20  # of an OffsetIndex to decode: some 90,000 pages, and 100 MB of objects
_WINDOW = 4 << 20  # bytes of indexes in one read
_GAP = 1 << 16  # bytes between two indexes in one read
POINTERS = (
    ColumnChunk.OFFSET_INDEX,
    ColumnChunk.OFFSET_LENGTH,
    ColumnChunk.COLUMN_INDEX,
    ColumnChunk.COLUMN_LENGTH,
)
_PAGE_LOCATIONS = 1  # OffsetIndex
_OFFSET, _SIZE, _FIRST_ROW = 1, 2, 3  # PageLocation
_EMPTY, _LOWS, _HIGHS, _ORDER, _NULLS = 1, 2, 3, 4, 5  # ColumnIndex
_UNORDERED = 0


class PageStats(NamedTuple):
    """The entry of a data page in the page indexes of its chunk."""

    size: int
    """Bytes, including the header."""
    rows: int
    nulls: int | None
    """Null values and empty lists; None if unknown."""
    empty: bool
    """Whether the page has no other values."""
    low: bytes | None
    """A lower bound of the values, in PLAIN encoding; None if unknown."""
    high: bytes | None


def page_stats(size: int, rows: int, nulls: int, bounds: Sequence[bytes]) -> PageStats:
    """Return the entry of a page whose rows are values, or lists of values, none of them null.

    Args:
        size: bytes, including the header.
        rows: number of rows, at least one.
        nulls: number of empty lists, which count as nulls.
        bounds: the least and the greatest value; empty if unknown.
    """
    if nulls == rows:
        return PageStats(size, rows, nulls, empty=True, low=b"", high=b"")
    low, high = bounds or (None, None)
    return PageStats(size, rows, nulls, empty=False, low=low, high=high)


class NewIndex(NamedTuple):
    """An encoded index that is not in the file yet."""

    chunk: Struct
    """The ColumnChunk that will point to it."""
    field: ColumnChunk
    """The field of the chunk with the offset; the next field has the size."""
    data: bytes


def indexed_row_groups(footer: Struct) -> frozenset[int]:
    """Return the row groups with page indexes: those whose first column has an OffsetIndex.

    Raises:
        FooterError: a row group's columns are not a list.
    """
    groups = enumerate(footer.structs(FileMeta.ROW_GROUPS))
    firsts = ((number, group.structs(RowGroup.COLUMNS)[:1]) for number, group in groups)
    return frozenset(n for n, first in firsts if first and ColumnChunk.OFFSET_INDEX in first[0])


def indexed_row_groups_of(metadata: pq.FileMetaData) -> frozenset[int]:
    """Return the row groups with page indexes, from pyarrow's footer."""
    groups = range(metadata.num_row_groups if metadata.num_columns else 0)
    return frozenset(n for n in groups if metadata.row_group(n).column(0).has_offset_index)


def index_extents(groups: Iterable[Struct], end: int) -> list[tuple[int, int]]:
    """Return begin and end of the chunks' page indexes; FooterError if one is not before `end`."""
    extents = []
    for chunk in _chunks(groups):
        for field in (ColumnChunk.OFFSET_INDEX, ColumnChunk.COLUMN_INDEX):
            if field in chunk or field + 1 in chunk:
                begin, size = _pointer(chunk, field)
                if size <= 0 or not len(MAGIC) <= begin <= end - size:
                    raise FooterError(
                        f"a page index at bytes {begin} to {begin + size} is not in its data"
                    )
                extents.append((begin, begin + size))
    return extents


def existing_indexes(groups: Iterable[Struct]) -> list[tuple[Struct, ColumnChunk, int, int]]:
    """Return the indexes that chunks point to, by offset: chunk, its field, offset and size."""
    pointers = [
        (chunk, field, *_pointer(chunk, field))
        for chunk in _chunks(groups)
        for field in (ColumnChunk.COLUMN_INDEX, ColumnChunk.OFFSET_INDEX)
        if field in chunk
    ]
    return sorted(pointers, key=itemgetter(2))


def drop_indexes(groups: Iterable[Struct]) -> None:
    """Remove all pointers to page indexes."""
    for chunk in _chunks(groups):
        for field in POINTERS:
            chunk.pop(field, None)


def shifted_offset_indexes(
    file: OpenFile, moved: Sequence[tuple[Struct, int, tuple[int, int], int]]
) -> list[NewIndex]:
    """Read the OffsetIndexes of chunks that move, and shift their offsets.

    Removes the chunks' pointers to them. The indexes stay in memory until the end of the file is
    written: some 12 bytes for a page of about a megabyte.

    Args:
        file: the source.
        moved: chunks; by how many bytes each moves, its new begin and end, and its rows.

    Raises:
        FooterError: an index is damaged, or does not fit its chunk.
        OSError, ReadWriteError: the source cannot be read.
    """
    indexed = [item for item in moved if ColumnChunk.OFFSET_INDEX in item[0]]
    pointers = [_pointer(chunk, ColumnChunk.OFFSET_INDEX) for chunk, *_ in indexed]
    numbers = {pointer: number for number, pointer in enumerate(pointers)}
    shifted: dict[int, NewIndex] = {}
    for pointer, data in _read(file, sorted(pointers)):
        chunk, delta, extent, rows = indexed[numbers[pointer]]
        shifted[numbers[pointer]] = NewIndex(
            chunk, ColumnChunk.OFFSET_INDEX, _shifted(data, delta, extent, rows)
        )
    for chunk, *_ in indexed:
        chunk.pop(ColumnChunk.OFFSET_INDEX)
        chunk.pop(ColumnChunk.OFFSET_LENGTH)
    return [shifted[number] for number in range(len(indexed))]


def _shifted(data: bytes, delta: int, extent: tuple[int, int], rows: int) -> bytes:
    """Shift an encoded OffsetIndex, whose chunk moves to an extent, and validate it."""
    index, used = decode(data)
    if used != len(data) or _PAGE_LOCATIONS not in index:
        raise FooterError("a page index is not an OffsetIndex")
    (last, stop), last_row = extent, 0
    for page in index.structs(_PAGE_LOCATIONS):
        at, size = page.integer(_OFFSET) + delta, page.integer(_SIZE)
        row = page.integer(_FIRST_ROW)
        if size <= 0 or not last <= at <= stop - size or not last_row <= row <= rows:
            raise FooterError("a page index has a page outside of its chunk")
        page.put(_OFFSET, Wire.I64, at)
        last, last_row = at + size, row
    return encode(index)


def _read(
    file: OpenFile, extents: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Read sorted extents (offset, size); those that are near each other in one read."""
    begin, window = 0, b""
    for number, (at, size) in enumerate(extents):
        if size > MOST_BYTES:
            raise FooterError(f"a page index has {size} bytes")
        if at + size > begin + len(window):
            stop = at + size
            for later, length in (extents[i] for i in range(number + 1, len(extents))):
                if later - stop > _GAP or later + length > at + _WINDOW:
                    break
                stop = later + length
            begin, window = at, read_at(file, stop - at, at)
        yield (at, size), window[at - begin : at - begin + size]


def new_indexes(chunk: Struct, at: int, pages: Sequence[PageStats]) -> list[NewIndex]:
    """Return the indexes of a new column chunk; none if it has no pages.

    Args:
        chunk: the ColumnChunk that will point to them.
        at: the offset of the first page.
        pages: all of its pages.

    Raises:
        ValueError: the pages do not have the chunk's size in total.
    """
    if sum(page.size for page in pages) != chunk.struct(ColumnChunk.META).integer(
        ColumnMeta.COMPRESSED
    ):
        raise ValueError("the pages of a page index do not have the size of their column chunk")
    if not pages:
        return []
    indexes = [NewIndex(chunk, ColumnChunk.OFFSET_INDEX, _offset_index(at, pages))]
    bounds = [(page.low, page.high) for page in pages]
    lows, highs = (
        [bound for bound in ends if bound is not None] for ends in zip(*bounds, strict=True)
    )
    if len(lows) == len(highs) == len(pages):
        indexes.append(NewIndex(chunk, ColumnChunk.COLUMN_INDEX, _column_index(pages, lows, highs)))
    return indexes


def _offset_index(at: int, pages: Sequence[PageStats]) -> bytes:
    offsets = accumulate((page.size for page in pages), initial=at)
    rows = accumulate((page.rows for page in pages), initial=0)
    locations = [
        Struct(
            {_OFFSET: (Wire.I64, offset), _SIZE: (Wire.I32, page.size), _FIRST_ROW: (Wire.I64, row)}
        )
        for page, offset, row in zip(pages, offsets, rows, strict=False)
    ]
    return encode(Struct().put_list(_PAGE_LOCATIONS, Wire.STRUCT, locations))


def _column_index(pages: Sequence[PageStats], lows: list[bytes], highs: list[bytes]) -> bytes:
    """Encode a ColumnIndex; bounds of pages without values are empty, their order is unordered."""
    index = Struct().put_list(_EMPTY, Wire.TRUE, [_BOOLS[page.empty] for page in pages])
    index.put_list(_LOWS, Wire.BINARY, lows).put_list(_HIGHS, Wire.BINARY, highs)
    index.put(_ORDER, Wire.I32, _UNORDERED)
    nulls = [page.nulls for page in pages if page.nulls is not None]
    if len(nulls) == len(pages):
        index.put_list(_NULLS, Wire.I64, nulls)
    return encode(index)


_BOOLS = (bytes([Wire.FALSE]), bytes([Wire.TRUE]))


def read_page_stats(chunk: Struct, rows: int, file: memoryview) -> list[PageStats]:
    """Return the pages of a column chunk that pyarrow wrote with page indexes.

    Args:
        chunk: the ColumnChunk.
        rows: rows of the row group.
        file: all bytes of the file.
    """
    if ColumnChunk.OFFSET_INDEX not in chunk:
        return []
    locations = _decoded(chunk, ColumnChunk.OFFSET_INDEX, file).structs(_PAGE_LOCATIONS)
    firsts = [location.integer(_FIRST_ROW) for location in locations]
    counts = [stop - first for first, stop in zip(firsts, [*firsts[1:], rows], strict=True)]
    sizes = [location.integer(_SIZE) for location in locations]
    if ColumnChunk.COLUMN_INDEX not in chunk:
        return [
            PageStats(size, count, None, empty=False, low=None, high=None)
            for size, count in zip(sizes, counts, strict=True)
        ]
    index = _decoded(chunk, ColumnChunk.COLUMN_INDEX, file)
    empty = [flag == _BOOLS[True] for flag in index.values_of(_EMPTY, Wire.TRUE)]
    nulls = index.values_of(_NULLS, Wire.I64) or [None] * len(sizes)
    lows, highs = (index.values_of(bound, Wire.BINARY) for bound in (_LOWS, _HIGHS))
    return list(map(PageStats, sizes, counts, nulls, empty, lows, highs))


def _decoded(chunk: Struct, field: ColumnChunk, file: memoryview) -> Struct:
    begin, size = _pointer(chunk, field)
    return decode(bytes(file[begin : begin + size]))[0]


def _pointer(chunk: Struct, field: int) -> tuple[int, int]:
    """Return the offset and the size of an index."""
    return chunk.integer(field), chunk.integer(field + 1)


def _chunks(groups: Iterable[Struct]) -> Iterator[Struct]:
    for group in groups:
        yield from group.structs(RowGroup.COLUMNS)
