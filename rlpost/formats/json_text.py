"""JSON text: lines, one array, or objects one after another."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import msgspec

from rlpost.errors import DataError
from rlpost.formats.records import Record, as_record, integer_of, parse_json
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import PurePath


_BLOCK = 1 << 20
_TEXT_BYTES, _VALUE_BYTES = 4, 100  # memory for a byte of JSON, and for one of its values
_SPACE: Any = re.compile(r"\s*")
_VALUES = (b",", b"[", b"{", b":")


def records_of(
    file: IO[bytes], path: PurePath, where: str, most: int | None = None, *, live: bool = False
) -> Iterator[Record]:
    """Yield the objects of an open file of JSON text; its first bytes show how they are written.

    - Lines, each an object. A file of any size streams. Empty lines are skipped.
    - One array of objects, which is read into memory.
    - Objects one after another, over any number of lines, such as `json.dump(..., indent=2)`
      writes them, which are read into memory, too.

    NaN and Infinity, which Python's json writes although JSON lacks them, are read. Of a field that
    an object has twice, the last value counts, as in Python.

    Args:
        file: its contents.
        path: where layouts look for what the name or the folder of the file contains.
        where: its name in errors.
        most: bytes of a record; None: what the memory of the run has room for.
        live: a program still writes the file: a last line that is incomplete is left out.

    Raises:
        DataError: a record is not JSON, is incomplete, or is not an object; the record is named.
        NotEnoughMemoryError: a record, or the array, does not fit into the memory of the run.
    """
    bound = most or memory_limit().room // _TEXT_BYTES + 1
    numbered = enumerate(iter(lambda: file.readline(bound), b""), 1)
    lines = ((number, line) for number, line in numbered if not line.isspace())
    first = next(lines, (0, b""))
    _check_fits(f"{where}, line {first[0]}", first[1])
    if b"\0" in first[1][:4]:  # in UTF-16 and UTF-32 JSON begins so, with or without a mark
        raise DataError(
            f"{where}: not UTF-8 text: it begins with {first[1][:4]!r}, as UTF-16 does",
            tip="iconv -f UTF-16 -t UTF-8  # converts it",
        )
    if not _is_line(first[1]):
        yield from _whole(file, first, path, where, bound)
        return
    for number, line in chain([first] if first[0] else [], lines):
        place = f"{where}, line {number}"
        _check_fits(place, line)
        try:
            value = parse_json(place, line)
        except DataError:
            if live and not line.endswith(b"\n"):
                return
            raise
        yield as_record(place, value, path)


def _check_fits(where: str, text: bytes) -> None:
    """Raise NotEnoughMemoryError if the values of a JSON text do not fit."""
    limit, size = memory_limit(), len(text)
    if (_TEXT_BYTES + _VALUE_BYTES) * size > limit.room:  # counting takes a tenth of parsing
        values = sum(map(text.count, _VALUES))
        needed = _TEXT_BYTES * size + _VALUE_BYTES * values
        limit.check(needed, f"{where}: {size:,} bytes with {values:,} values")


def _is_line(line: bytes) -> bool:
    """Return whether the first line of a file is a whole record, and no other follows on it."""
    text = line.strip()
    if text.startswith(b"[") or (text.startswith(b"{") and text.endswith((b"{", b"[", b","))):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return "trailing characters" not in str(error)
    except RecursionError:
        pass
    return True


def _whole(
    file: IO[bytes], first: tuple[int, bytes], path: PurePath, where: str, most: int
) -> Iterator[Record]:
    """Yield the objects of an array, or of objects one after another, read into memory.

    Args:
        file: after its first line.
        first: the number of the first line that is not empty, and the line.
        path: as of `records_of`.
        where: as of `records_of`.
        most: bytes that are read.
    """
    number, head = first
    array = head.lstrip()[:1] == b"["
    name = f"{where}: one JSON array, not one object per line (jq -c '.[]')" if array else where
    parts, size = [head], len(head)
    while size < most and (block := file.read(_BLOCK)):
        parts.append(block)
        size += len(block)
        memory_limit().check(_TEXT_BYTES * size, name)
    data = b"".join(parts)
    _check_fits(name, data)
    if array:
        for i, value in enumerate(parse_json(where, data)):
            yield as_record(f"{where}, element {i} of the array", value, path)
        return
    try:
        text, at = data.decode(), 0
    except UnicodeDecodeError:
        raise DataError(f"{where}, line {number} or later: not UTF-8 text") from None
    decode = json.JSONDecoder(parse_int=integer_of).raw_decode
    while (begin := _SPACE.match(text, at).end()) < len(text):
        number += text.count("\n", at, begin)
        place = f"{where}, line {number}"
        try:
            value, at = decode(text, begin)
        except json.JSONDecodeError as error:
            line = number + text.count("\n", begin, error.pos)
            why = f"{error.msg} on line {line}; repair or remove the object"
            raise DataError(f"{place}: not JSON: {why}") from None
        except RecursionError:
            raise DataError(f"{place}: nested too deeply to read") from None
        yield as_record(place, value, path)
        number += text.count("\n", begin, at)
