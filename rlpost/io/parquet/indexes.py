"""Page indexes: where the pages of a column chunk are (OffsetIndex), what they hold (ColumnIndex).

A ColumnIndex says nothing of places, so its bytes can be moved as they are. An OffsetIndex has each
page's offset in the file: where its chunk moves, it is decoded and encoded again. Sources are not
trusted: where something is wrong with one index, the file's are all left out.
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


MOST_BYTES = 1 << 20  # of an OffsetIndex that is decoded: some 90,000 pages, and 100 MB as objects
_WINDOW = 4 << 20  # bytes of indexes that are read together
_GAP = 1 << 16  # bytes between them
POINTERS = (
    ColumnChunk.OFFSET_INDEX,
    ColumnChunk.OFFSET_LENGTH,
    ColumnChunk.COLUMN_INDEX,
    ColumnChunk.COLUMN_LENGTH,
)
_PLACES = 1  # OffsetIndex
_OFFSET, _SIZE, _FIRST_ROW = 1, 2, 3  # PageLocation
_EMPTY, _LOWS, _HIGHS, _ORDER, _NULLS = 1, 2, 3, 4, 5  # ColumnIndex
_UNORDERED = 0


class PageStats(NamedTuple):
    """What the indexes of a chunk say of a data page of it."""

    size: int
    """Bytes, with the header."""
    rows: int
    nulls: int | None
    """Values that are null or in no list; None where that is not known."""
    empty: bool
    """Whether there are no others."""
    low: bytes | None
    """A lower bound of the values, in PLAIN encoding; None where there is none to be known."""
    high: bytes | None


def page_stats(size: int, rows: int, nulls: int, bounds: Sequence[bytes]) -> PageStats:
    """A page of `size` bytes in which a row is a value or a list of values, none of them null.

    Args:
        size: with its header.
        rows: how many; at least one.
        nulls: how many of them are empty lists, which count as nulls.
        bounds: the least and the greatest value; none where they are not known.
    """
    if nulls == rows:
        return PageStats(size, rows, nulls, empty=True, low=b"", high=b"")
    low, high = bounds or (None, None)
    return PageStats(size, rows, nulls, empty=False, low=low, high=high)


class NewIndex(NamedTuple):
    """An index that is not in the file yet."""

    chunk: Struct
    """What is to point to it."""
    field: ColumnChunk
    """With which of its fields; the next one is for the size."""
    data: bytes


def indexed_row_groups(footer: Struct) -> frozenset[int]:
    """Which row groups have page indexes: those whose first column has an OffsetIndex.

    Raises:
        FooterError: a row group's columns are no list.
    """
    groups = enumerate(footer.structs(FileMeta.ROW_GROUPS))
    firsts = ((number, group.structs(RowGroup.COLUMNS)[:1]) for number, group in groups)
    return frozenset(n for n, first in firsts if first and ColumnChunk.OFFSET_INDEX in first[0])


def indexed_row_groups_of(metadata: pq.FileMetaData) -> frozenset[int]:
    """The same of a footer as pyarrow has it."""
    groups = range(metadata.num_row_groups if metadata.num_columns else 0)
    return frozenset(n for n in groups if metadata.row_group(n).column(0).has_offset_index)


def index_extents(groups: Iterable[Struct], end: int) -> list[tuple[int, int]]:
    """Where the chunks' page indexes begin and end; they must, before `end`, or FooterError."""
    extents = []
    for chunk in _chunks(groups):
        for field in (ColumnChunk.OFFSET_INDEX, ColumnChunk.COLUMN_INDEX):
            if field in chunk or field + 1 in chunk:
                begin, size = _pointer(chunk, field)
                if size <= 0 or not len(MAGIC) <= begin <= end - size:
                    raise FooterError(f"a page index at bytes {begin} to {begin + size} is not in")
                extents.append((begin, begin + size))
    return extents


def existing_indexes(groups: Iterable[Struct]) -> list[tuple[Struct, ColumnChunk, int, int]]:
    """The indexes that chunks point to, by their places: chunk, its field, begin and size."""
    found = [
        (chunk, field, *_pointer(chunk, field))
        for chunk in _chunks(groups)
        for field in (ColumnChunk.COLUMN_INDEX, ColumnChunk.OFFSET_INDEX)
        if field in chunk
    ]
    return sorted(found, key=itemgetter(2))


def drop_indexes(groups: Iterable[Struct]) -> None:
    """Forget all page indexes."""
    for chunk in _chunks(groups):
        for field in POINTERS:
            chunk.pop(field, None)


def shifted_offset_indexes(
    file: OpenFile, moved: Sequence[tuple[Struct, int, tuple[int, int], int]]
) -> list[NewIndex]:
    """The OffsetIndexes of chunks that move.

    Their chunks point to none from then on. They are held until the file's end is written: some 12
    bytes a page, which has about a megabyte.

    Args:
        file: the source.
        moved: chunks; by how many bytes each moves, where it begins and ends then, and its rows.

    Raises:
        FooterError: an index is damaged, or no index of its chunk.
        OSError, ReadWriteError: the source can't be read.
    """
    known = [one for one in moved if ColumnChunk.OFFSET_INDEX in one[0]]
    places = [_pointer(chunk, ColumnChunk.OFFSET_INDEX) for chunk, *_ in known]
    found = {place: number for number, place in enumerate(places)}
    made: dict[int, NewIndex] = {}
    for place, data in _read(file, sorted(places)):
        chunk, delta, extent, rows = known[found[place]]
        made[found[place]] = NewIndex(
            chunk, ColumnChunk.OFFSET_INDEX, _shifted(data, delta, extent, rows)
        )
    for chunk, *_ in known:
        chunk.pop(ColumnChunk.OFFSET_INDEX)
        chunk.pop(ColumnChunk.OFFSET_LENGTH)
    return [made[number] for number in range(len(known))]


def _shifted(data: bytes, delta: int, extent: tuple[int, int], rows: int) -> bytes:
    """An OffsetIndex whose chunk moves to an extent."""
    index, used = decode(data)
    if used != len(data) or _PLACES not in index:
        raise FooterError("a page index is not what it is said to be")
    (last, stop), last_row = extent, 0
    for place in index.structs(_PLACES):
        at, size, row = place.integer(_OFFSET) + delta, place.integer(_SIZE), place.integer(3)
        if size <= 0 or not last <= at <= stop - size or not last_row <= row <= rows:
            raise FooterError("a page index has a page that its chunk can't have")
        place.put(_OFFSET, Wire.I64, at)
        last, last_row = at + size, row
    return encode(index)


def _read(
    file: OpenFile, places: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], bytes]]:
    """What is at some places, given in their order; those that are near are read together."""
    begin, window = 0, b""
    for number, (at, size) in enumerate(places):
        if size > MOST_BYTES:
            raise FooterError(f"a page index has {size} bytes")
        if at + size > begin + len(window):
            stop = at + size
            for later, length in (places[i] for i in range(number + 1, len(places))):
                if later - stop > _GAP or later + length > at + _WINDOW:
                    break
                stop = later + length
            begin, window = at, read_at(file, stop - at, at)
        yield (at, size), window[at - begin : at - begin + size]


def new_indexes(chunk: Struct, at: int, pages: Sequence[PageStats]) -> list[NewIndex]:
    """The indexes of a column chunk that is written.

    Args:
        chunk: ColumnChunk; it will point to them.
        at: where the first page is.
        pages: all of its pages; a chunk without a page has no index, either.

    Raises:
        ValueError: they have other sizes than the chunk.
    """
    if sum(page.size for page in pages) != chunk.struct(ColumnChunk.META).integer(
        ColumnMeta.COMPRESSED
    ):
        raise ValueError("a column chunk's pages are not those that its page index would have")
    if not pages:
        return []
    made = [NewIndex(chunk, ColumnChunk.OFFSET_INDEX, _offset_index(at, pages))]
    bounds = [(page.low, page.high) for page in pages]
    lows, highs = (
        [bound for bound in ends if bound is not None] for ends in zip(*bounds, strict=True)
    )
    if len(lows) == len(highs) == len(pages):
        made.append(NewIndex(chunk, ColumnChunk.COLUMN_INDEX, _column_index(pages, lows, highs)))
    return made


def _offset_index(at: int, pages: Sequence[PageStats]) -> bytes:
    offsets = accumulate((page.size for page in pages), initial=at)
    rows = accumulate((page.rows for page in pages), initial=0)
    places = [
        Struct(
            {_OFFSET: (Wire.I64, offset), _SIZE: (Wire.I32, page.size), _FIRST_ROW: (Wire.I64, row)}
        )
        for page, offset, row in zip(pages, offsets, rows, strict=False)
    ]
    return encode(Struct().put_list(_PLACES, Wire.STRUCT, places))


def _column_index(pages: Sequence[PageStats], lows: list[bytes], highs: list[bytes]) -> bytes:
    """Bounds of pages without values are empty. The order is not looked for: few pages are made."""
    index = Struct().put_list(_EMPTY, Wire.TRUE, [_BOOLS[page.empty] for page in pages])
    index.put_list(_LOWS, Wire.BINARY, lows).put_list(_HIGHS, Wire.BINARY, highs)
    index.put(_ORDER, Wire.I32, _UNORDERED)
    nulls = [page.nulls for page in pages if page.nulls is not None]
    if len(nulls) == len(pages):
        index.put_list(_NULLS, Wire.I64, nulls)
    return encode(index)


_BOOLS = (bytes([Wire.FALSE]), bytes([Wire.TRUE]))


def read_page_stats(chunk: Struct, rows: int, file: memoryview) -> list[PageStats]:
    """The pages of a column chunk that pyarrow wrote with its indexes.

    Args:
        chunk: ColumnChunk.
        rows: of the row group.
        file: all bytes of the file.
    """
    if ColumnChunk.OFFSET_INDEX not in chunk:
        return []
    places = _decoded(chunk, ColumnChunk.OFFSET_INDEX, file).structs(_PLACES)
    firsts = [place.integer(_FIRST_ROW) for place in places]
    counts = [stop - first for first, stop in zip(firsts, [*firsts[1:], rows], strict=True)]
    sizes = [place.integer(_SIZE) for place in places]
    if ColumnChunk.COLUMN_INDEX not in chunk:
        return [
            PageStats(size, count, None, empty=False, low=None, high=None)
            for size, count in zip(sizes, counts, strict=True)
        ]
    index = _decoded(chunk, ColumnChunk.COLUMN_INDEX, file)
    empty = [one == _BOOLS[True] for one in index.values_of(_EMPTY, Wire.TRUE)]
    nulls = index.values_of(_NULLS, Wire.I64) or [None] * len(sizes)
    lows, highs = (index.values_of(bound, Wire.BINARY) for bound in (_LOWS, _HIGHS))
    return list(map(PageStats, sizes, counts, nulls, empty, lows, highs))


def _decoded(chunk: Struct, field: ColumnChunk, file: memoryview) -> Struct:
    begin, size = _pointer(chunk, field)
    return decode(bytes(file[begin : begin + size]))[0]


def _pointer(chunk: Struct, field: int) -> tuple[int, int]:
    """Where an index begins, and its size."""
    return chunk.integer(field), chunk.integer(field + 1)


def _chunks(groups: Iterable[Struct]) -> Iterator[Struct]:
    for group in groups:
        yield from group.structs(RowGroup.COLUMNS)
