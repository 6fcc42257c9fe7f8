"""The bytes of a file that its footer points to, by an independent decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

GROUPS, COLUMNS, META = 4, 1, 3  # FileMetaData, RowGroup, ColumnChunk
BLOOM = 14  # ColumnMetaData


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


def unused(path: Path) -> list[tuple[int, int]]:
    """Return the ranges of bytes that nothing in the footer points to."""
    data, footer, end = footer_of(path)
    used = [(0, 4), (end, len(data))]
    for chunk in (chunk for group in footer.get(GROUPS, []) for chunk in group[COLUMNS]):
        meta = chunk[META]
        begin = min(at for at in (meta.get(11, 0), meta[9]) if at > 0) if meta[7] else 0
        used.append((begin, begin + meta[7]))
        if BLOOM in meta:
            used.append((meta[BLOOM], meta[BLOOM] + meta[BLOOM + 1]))
    found, last = [], 0
    for begin, stop in sorted(used):
        if begin > last:
            found.append((last, begin))
        last = max(last, stop)
    return found
