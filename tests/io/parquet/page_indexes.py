"""Checks of page indexes against a file's pages and values, with an independent decoder."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

GROUPS, COLUMNS, META = 4, 1, 3  # FileMetaData, RowGroup, ColumnChunk
OFFSET_INDEX, COLUMN_INDEX = 4, 6  # ColumnChunk; their sizes are the next fields
BLOOM = 14  # ColumnMetaData
DATA_PAGES = {0: 5, 3: 8}  # type of page -> the field of its own header
FORMATS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
BARE = (bool, int, float, str, bytes)  # values that pyarrow gives as the file has them


def varint(data, at):
    result = shift = 0
    while True:
        byte = data[at]
        result |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return result, at


def value(data, at, kind):
    """Decode a value of Thrift's compact protocol; return it and its end."""
    if kind in (1, 2):
        return kind == 1, at
    if kind in (4, 5, 6):
        raw, at = varint(data, at)
        return (raw >> 1) ^ -(raw & 1), at
    if kind == 8:
        size, at = varint(data, at)
        return bytes(data[at : at + size]), at + size
    if kind == 9:
        return values(data, at)
    assert kind in (3, 7, 12), kind
    return fields(data, at) if kind == 12 else (None, at + (1 if kind == 3 else 8))


def values(data, at):
    """Decode a list, whose booleans are bytes; return it and its end."""
    head, at = data[at], at + 1
    count, inner = head >> 4, head & 15
    if count == 15:
        count, at = varint(data, at)
    found = []
    for _ in range(count):
        one, at = (data[at] == 1, at + 1) if inner in (1, 2) else value(data, at, inner)
        found.append(one)
    return found, at


def fields(data, at=0) -> tuple[dict[int, Any], int]:
    """Decode a struct; return it, as field -> value, and its end."""
    found, field = {}, 0
    while data[at]:
        head, at = data[at], at + 1
        if head >> 4:
            field += head >> 4
        else:
            raw, at = varint(data, at)
            field = (raw >> 1) ^ -(raw & 1)
        found[field], at = value(data, at, head & 15)
    return found, at + 1


def footer_of(path: Path):
    """Return a file's bytes, its footer and the footer's offset."""
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data, fields(data, begin)[0], begin


def is_nan(one):
    return isinstance(one, float) and math.isnan(one)


def slots(row, names):
    """Return a row's values of a leaf column, with None for each null or empty list."""
    if row is None or not names:
        return [row]
    if isinstance(row, list):
        inner = names[2:] if names[0] == "list" else names[1:]
        return [slot for one in row for slot in slots(one, inner)] or [None]
    return slots(row[names[0]], names[1:])


class Pages(NamedTuple):
    """The contents of an OffsetIndex, and whether there is a ColumnIndex."""

    begins: list[int]
    firsts: list[int]
    bounded: bool


def indexes_of(path: Path) -> list[dict[str, Pages]]:
    """Return the page indexes of each row group's columns; check that they are correct."""
    data, footer, end = footer_of(path)
    metadata = pq.read_metadata(path)
    file = pq.ParquetFile(path)
    found = []
    for number, group in enumerate(footer.get(GROUPS, [])):
        shown = metadata.row_group(number)
        rows = file.read_row_group(number).to_pylist()
        found.append({})
        for place, chunk in enumerate(group[COLUMNS]):
            view = shown.column(place)
            assert view.has_offset_index == (OFFSET_INDEX in chunk)
            assert view.has_column_index == (COLUMN_INDEX in chunk)
            if OFFSET_INDEX not in chunk:
                continue
            begin, size = chunk[OFFSET_INDEX], chunk[OFFSET_INDEX + 1]
            assert 4 <= begin < begin + size <= end
            index, stop = fields(data, begin)
            assert stop == begin + size
            own = [slots(row, view.path_in_schema.split(".")) for row in rows]
            counts = check_places(data, chunk[META], index[1], own)
            if COLUMN_INDEX in chunk:
                begin, size = chunk[COLUMN_INDEX], chunk[COLUMN_INDEX + 1]
                assert 4 <= begin < begin + size <= end
                bounds, stop = fields(data, begin)
                assert stop == begin + size
                check_bounds(bounds, view.physical_type, counts)
            places = [one[1] for one in index[1]], [one[3] for one in index[1]]
            found[-1][view.path_in_schema] = Pages(*places, COLUMN_INDEX in chunk)
    return found


def check_places(data, meta, places, rows):
    """Check that the locations are data pages with their rows, and cover the chunk."""
    starts = [at for at in (meta.get(11, 0), meta[9]) if at > 0]
    stop = min(starts) + meta[7]
    assert places[0][1] == meta[9]
    firsts = [place[3] for place in places]
    assert firsts[0] == 0
    parts = []
    for number, place in enumerate(places):
        header, body = fields(data, place[1])
        assert body - place[1] + header[3] == place[2]
        after = places[number + 1][1] if number + 1 < len(places) else stop
        assert place[1] + place[2] == after
        last = [*firsts, len(rows)][number + 1]
        assert firsts[number] <= last
        part = rows[firsts[number] : last]
        own = header[DATA_PAGES[header[1]]]
        assert own[1] == sum(map(len, part))
        if header[1] == 3:
            assert own[3] == len(part)
        parts.append([slot for row in part for slot in row])
    return parts


def check_bounds(index, kind, parts):
    """Check that pages of nulls are marked, and that values are within their page's bounds."""
    assert len(index[1]) == len(index[2]) == len(index[3]) == len(parts)
    for place, part in enumerate(parts):
        here = [one for one in part if one is not None]
        assert index[1][place] == (not here)
        if 5 in index:
            assert index[5][place] == len(part) - len(here)
        if not here or not all(type(one) in BARE for one in here):
            continue
        low, high = index[2][place], index[3][place]
        if kind in FORMATS:
            ((low,), (high,)) = (struct.unpack(FORMATS[kind], bound) for bound in (low, high))
        numbers = [one.encode() if isinstance(one, str) else one for one in here]
        numbers = [one for one in numbers if not is_nan(one)]  # bounds know nothing of it
        if numbers and type(numbers[0]) is type(low):
            assert low <= min(numbers)
            assert high >= max(numbers)


def between_indexes(path: Path) -> int:
    """Return the number of bytes between page indexes, which some readers read, too."""
    _, footer, _ = footer_of(path)
    chunks = [chunk for group in footer.get(GROUPS, []) for chunk in group[COLUMNS]]
    begins = [chunk[i] for chunk in chunks for i in (4, 6) if i in chunk]
    sizes = [chunk[i + 1] for chunk in chunks for i in (4, 6) if i in chunk]
    return (
        max(map(sum, zip(begins, sizes, strict=True)), default=0)
        - min(begins, default=0)
        - sum(sizes)
    )


def unused(path: Path) -> list[tuple[int, int]]:
    """Return the ranges of bytes that nothing in the footer points to."""
    data, footer, end = footer_of(path)
    used = [(0, 4), (end, len(data))]
    for chunk in (chunk for group in footer.get(GROUPS, []) for chunk in group[COLUMNS]):
        meta = chunk[META]
        begin = min(at for at in (meta.get(11, 0), meta[9]) if at > 0) if meta[7] else 0
        used.append((begin, begin + meta[7]))
        used += [(chunk[i], chunk[i] + chunk[i + 1]) for i in (4, 6) if i in chunk]
        if BLOOM in meta:
            used.append((meta[BLOOM], meta[BLOOM] + meta[BLOOM + 1]))
    found, last = [], 0
    for begin, stop in sorted(used):
        if begin > last:
            found.append((last, begin))
        last = max(last, stop)
    return found
