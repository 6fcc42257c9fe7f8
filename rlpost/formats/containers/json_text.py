"""JSON text: lines, one array, or objects one after another; plain, gzip or zstd."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import msgspec

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.formats.records import Record, as_record, integer_of, parse_json
from rlpost.io.compressed import open_bytes
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path, PurePath

    from rlpost.io.memory_limit import MemoryLimit


MOST_SNIFFED = 64 << 20
"""Most bytes of a first record that a sniff reads."""
_BLOCK = 1 << 20
_TEXT_BYTES, _VALUE_BYTES = 4, 100  # memory for a byte of JSON, and for one of its values
_SPACE: Any = re.compile(r"\s*")
_VALUES = (b",", b"[", b"{", b":")
_MOST_VALUE_BYTES = _TEXT_BYTES + _VALUE_BYTES


def json_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a file of JSON text; its first bytes show how they are written.

    - Lines, each an object. A file of any size streams. Empty lines are skipped.
    - One array of objects, which is read into memory.
    - Objects one after another, over any number of lines, such as `json.dump(..., indent=2)`
      writes them, which are read into memory, too.

    NaN and Infinity, which Python's json writes although JSON lacks them, are read. Of a field that
    an object has twice, the last value counts, as in Python.

    Raises:
        DataError: a record is not JSON, is incomplete, or is not an object; the record is named.
            Or compressed data is damaged or ends early.
        NotEnoughMemoryError: a record, or the array, does not fit into the memory of the run.
        ReadWriteError: the file cannot be read.
    """
    with open_bytes(path) as file:
        yield from records_of(file, path, str(path))


def records_of(file: IO[bytes], path: PurePath, where: str) -> Iterator[Record]:
    """Yield the objects of an open file of JSON text.

    Args:
        file: its contents.
        path: where layouts look for what the name or the folder of the file contains.
        where: its name in errors.
    """
    for text, place in _texts(file, where):
        if isinstance(text, bytes):
            yield as_record(place, parse_json(place, text), path)
        else:
            yield as_record(place, text, path)


def is_one_object(path: Path) -> bool:
    """Return whether a file of JSON text is one object, by its beginning. Never raises."""
    try:
        with open_bytes(path) as file:
            beginning: Any = _Beginning(file)
            records = [*islice(_texts(beginning, str(path)), 2)]
    except (DataError, ReadWriteError, NotEnoughMemoryError):
        return False
    return len(records) == 1 and not records[0][1].endswith("of the array")


def _texts(file: IO[bytes], where: str) -> Iterator[tuple[Any, str]]:
    """Yield each record, as the bytes of its line or as a value, and its position."""
    limit, number = memory_limit(), 0
    for number, line in _numbered_lines(file, where, limit):  # noqa: B007
        if not line.isspace():
            break
    else:
        return
    if b"\0" in line[:4]:  # in UTF-16 and UTF-32 JSON begins so, with or without a mark
        raise DataError(
            f"{where}: not UTF-8 text: it begins with {line[:4]!r}, as UTF-16 does",
            tip="iconv -f UTF-16 -t UTF-8  # converts it",
        )
    if _is_line(line):
        yield line, f"{where}, line {number}"
        yield from lines_of(file, where, number)
    else:
        yield from _whole(file, line, number, where, limit)


def _is_line(text: bytes) -> bool:
    """Return whether the first line of a file is a whole record."""
    begin = text.lstrip()[:1]
    return begin != b"[" and not (begin == b"{" and _continues(text))


def lines_of(file: IO[bytes], where: str, last: int = 0) -> Iterator[tuple[bytes, str]]:
    """Yield the lines of a file that are not empty, each with its place, from one on."""
    for number, line in _numbered_lines(file, where, memory_limit(), last):
        if not line.isspace():
            yield line, f"{where}, line {number}"


def _numbered_lines(
    file: IO[bytes], where: str, limit: MemoryLimit, last: int = 0
) -> Iterator[tuple[int, bytes]]:
    most = limit.room // _TEXT_BYTES
    for number, line in enumerate(iter(lambda: file.readline(most + 1), b""), last + 1):
        if len(line) > most:
            place = f"{where}, line {number}: {len(line):,} bytes of it and more"
            limit.check(_TEXT_BYTES * len(line), place)
        check_fits(limit, f"{where}, line {number}", line)
        yield number, line


def check_fits(limit: MemoryLimit, where: str, text: bytes) -> None:
    """Raise NotEnoughMemoryError if the values of a JSON text do not fit."""
    if _MOST_VALUE_BYTES * len(text) > limit.room:  # counting takes a tenth of the time of parsing
        values = sum(map(text.count, _VALUES))
        needed = _TEXT_BYTES * len(text) + _VALUE_BYTES * values
        limit.check(needed, f"{where}: {len(text):,} bytes with {values:,} values")


def _continues(line: bytes) -> bool:
    """Return whether an object goes on after its line, or another one follows on the line."""
    text = line.strip()
    if text.endswith((b"{", b"[", b",")):
        return True
    if b"}{" not in text and b"} {" not in text:
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return "trailing characters" in str(error)
    except RecursionError:
        return False
    return False


def _whole(
    file: IO[bytes], head: bytes, line: int, where: str, limit: MemoryLimit
) -> Iterator[tuple[Any, str]]:
    """Yield the objects of an array, or of objects one after another, which is read into memory.

    Args:
        file: after `head`.
        head: the first line that is not empty.
        line: its number.
        where: the name of the file in errors.
        limit: of memory.
    """
    array = head.lstrip()[:1] == b"["
    name = f"{where}: one JSON array, not one object per line (jq -c '.[]')" if array else where
    parts, size = [head], len(head)
    while block := file.read(_BLOCK):
        parts.append(block)
        size += len(block)
        limit.check(_TEXT_BYTES * size, name)
    data = b"".join(parts)
    check_fits(limit, name, data)
    if array:
        for i, value in enumerate(parse_json(where, data)):
            yield value, f"{where}, element {i} of the array"
        return
    try:
        text, at = data.decode(), 0
    except UnicodeDecodeError:
        raise DataError(f"{where}, line {line} or later: not UTF-8 text") from None
    decode = json.JSONDecoder(parse_int=integer_of).raw_decode
    while (begin := _SPACE.match(text, at).end()) < len(text):
        line += text.count("\n", at, begin)
        try:
            value, at = decode(text, begin)
        except json.JSONDecodeError as error:
            place = line + text.count("\n", begin, error.pos)
            raise DataError(
                f"{where}, line {line}: not JSON: {error.msg} on line {place}; repair or "
                "remove the object"
            ) from None
        except RecursionError:
            raise DataError(f"{where}, line {line}: nested too deeply to read") from None
        yield value, f"{where}, line {line}"
        line += text.count("\n", begin, at)


def first_fields(path: Path) -> Mapping[str, Any]:
    """Return the fields of a file's first record; empty without a record. Never raises."""
    try:
        stat = path.stat()
        return _first_fields(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=64)
def _first_fields(path: Path, size: int, modified: int) -> Mapping[str, Any]:  # noqa: ARG001
    try:
        with open_bytes(path) as file:
            return first_fields_of(file, path)
    except DataError:
        return {}


class _Beginning:
    """The first bytes of a file, which ends there for its readers."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = MOST_SNIFFED

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data

    def readline(self, size: int) -> bytes:
        data = self._file.readline(min(size, self._left))
        self._left -= len(data)
        return data


def first_fields_of(file: IO[bytes], path: PurePath) -> Mapping[str, Any]:
    """Return the fields of the first record of an open file; empty if there is none."""
    beginning: Any = _Beginning(file)
    try:
        return next((one.fields for one in records_of(beginning, path, str(path))), {})
    except (DataError, NotEnoughMemoryError):
        return {}
