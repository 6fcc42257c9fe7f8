"""Records of JSON, JSONL and Parquet files as streams; errors name the file and the record."""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from rlpost.errors import DataError, NotEnoughMemoryError, ReadWriteError
from rlpost.io.memory_limit import memory_limit
from rlpost.io.parquet.column_names import column_names_of
from rlpost.io.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlpost.io.memory_limit import MemoryLimit
    from rlpost.io.paths import AnyPath


MOST_SNIFFED = 64 << 20
"""Most bytes of a first line that a sniff reads."""
_BUFFER = 1 << 20  # bytes: a line with token lists has 10 to 500 kB
_SHOWN = 60
_TEXT_BYTES, _VALUE_BYTES = 4, 100  # memory for a byte of JSON, and for one of its values
_VALUES = (b",", b"[", b"{", b":")
_MOST_VALUE_BYTES = _TEXT_BYTES + _VALUE_BYTES
_DIGITS = re.compile(r"-?\d{1,400}")
_MOST_DIGITS = 1000  # of an integer that stays exact; Python itself rejects more than 4300


_decode = msgspec.json.Decoder().decode  # integers of any size exactly
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a dump, and its position."""

    where: str
    """The position in error messages, such as `dump.jsonl, line 3`."""
    fields: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null."""
        return self.fields.get(name) is not None

    def get(self, name: str) -> Any:
        """Return the field of any type; raise DataError if it is missing."""
        if name not in self.fields:
            raise DataError(f"{self.where}: no field `{name}`; fields: {first_names(self.fields)}")
        return self.fields[name]

    def number(self, name: str) -> float:
        """Return a field that is a number (a bool counts as 0 or 1, null as NaN)."""
        value = self.get(name)
        if value is None:
            return float("nan")
        if not isinstance(value, (int, float)):
            raise self.error(name, value, "a number")
        return as_float(value)

    def integer(self, name: str) -> int:
        """Return a field that is an integer, also if written as text (`"12"`) or as 12.0."""
        value = self.get(name)
        if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, value, "an integer")
        return value

    def text(self, name: str) -> str:
        """Return a field that is text, or a number as text."""
        value = self.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self.error(name, value, "text")
        return value

    def array(self, name: str) -> list[Any]:
        """Return a field that is a list."""
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, value, "a list")
        return value

    def nested(self, name: str) -> Record:
        """Return a field that is an object, as a record."""
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.error(name, value, "an object")
        return Record(f"{self.where}, `{name}`", value)

    def error(self, name: str, value: object, needed: str) -> DataError:
        """Return the error for a field of the wrong type."""
        return DataError(f"{self.where}: `{name}` is {describe(value)}; {needed} is needed")


def as_float(value: float) -> float:
    """Return a number as float64; an integer beyond its range becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def rounded_sum(values: list[float]) -> float:
    """Return the sum, rounded once; a plain sum if that overflows or has infinities."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def describe(value: object) -> str:
    """Return a JSON value in a few words, for errors."""
    if isinstance(value, dict):
        return f"an object with the fields {first_names(value)}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def first_names(fields: Collection[object]) -> str:
    """Return the first names of fields, for errors; "none" if there are none."""
    names = [str(name) for name in fields]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""  # noqa: PLR2004
    return (", ".join(names[:12]) or "none") + more


def json_records(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSONL file, or of a file that is one JSON array of objects.

    A JSONL file of any size streams line by line; an array is read into memory. NaN and Infinity,
    which Python's json writes although JSON lacks them, are read. Empty lines are skipped.

    Raises:
        DataError: a line is not JSON, is incomplete, or is not an object; the line is named.
        NotEnoughMemoryError: a line, or the array, does not fit into the memory of the run.
        ReadWriteError: the file cannot be read.
    """
    if _is_array(path):
        yield from _array(path)
        return
    for where, line in _lines(path):
        yield as_record(where, parse_json(where, line))


def json_fields(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of each record, as JSON text (`msgspec.Raw`) where that is possible.

    This is four times as fast as `json_records`, for a pass that needs names and types only.

    Raises:
        DataError, ReadWriteError: as `json_records`.
    """
    if _is_array(path):
        yield from (record.fields for record in _array(path))
        return
    for where, line in _lines(path):
        try:
            if not line.isascii():
                line.decode()  # the decoder checks only texts that it returns
            yield _decode_fields(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield as_record(where, parse_json(where, line)).fields


def _is_array(path: Path) -> bool:
    with _read_errors(path), path.open("rb") as file:
        return file.read(64).lstrip()[:1] == b"["


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that are not empty, and their positions."""
    limit = memory_limit()
    most = limit.room // _TEXT_BYTES
    with _read_errors(path), path.open("rb", buffering=_BUFFER) as file:
        for number, line in enumerate(iter(lambda: file.readline(most + 1), b""), 1):
            where = f"{path}, line {number}"
            if len(line) > most:
                limit.check(_TEXT_BYTES * len(line), f"{where}: {len(line):,} bytes of it and more")
            if not line.isspace():
                _check_fits(limit, where, line)
                yield where, line


def _check_fits(limit: MemoryLimit, where: str, text: bytes) -> None:
    """Raise NotEnoughMemoryError if the values of a JSON text do not fit."""
    if _MOST_VALUE_BYTES * len(text) > limit.room:  # counting takes a tenth of the time of parsing
        values = sum(map(text.count, _VALUES))
        needed = _TEXT_BYTES * len(text) + _VALUE_BYTES * values
        limit.check(needed, f"{where}: {len(text):,} bytes with {values:,} values")


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None


def as_record(where: str, value: object) -> Record:
    """Return a value as a record; raise DataError if it is not an object."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: is {describe(value)}; a JSON object is needed")
    return Record(where, value)


def _array(path: Path) -> Iterator[Record]:
    limit, where = memory_limit(), f"{path}: one JSON array, not one object per line (jq -c '.[]')"
    limit.check(_TEXT_BYTES * path.stat().st_size, where)
    text = path.read_bytes()
    _check_fits(limit, where, text)
    for i, value in enumerate(parse_json(str(path), text)):
        yield as_record(f"{path}, element {i} of the array", value)


def parse_json(where: str, data: bytes) -> Any:
    """Return a JSON text as a value; NaN, Infinity and integers beyond 64 bits are accepted.

    Raises:
        DataError: the text is not JSON.
    """
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_extended(where, data)


def _parse_extended(where: str, data: bytes) -> Any:
    """Return a JSON text with the extensions that Python's json writes, or raise its errors."""
    try:
        return json.loads(data, parse_int=_integer)
    except json.JSONDecodeError as error:
        why = f"{error.msg} at column {error.colno}"
        if not data.rstrip().endswith((b"}", b"]")):
            why = f"the line is incomplete: it ends after {len(data.rstrip())} bytes"
        raise DataError(f"{where}: not JSON: {why}; repair or remove the line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply to read") from None


def _integer(digits: str) -> int | float:
    """Return an exact integer, as it may be an id; a float for extremely many digits."""
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def first_fields(path: Path) -> Mapping[str, Any]:
    """Return the fields of a file's first record; empty without a record. Never raises."""
    try:
        stat = path.stat()
        return _first_fields(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=64)
def _first_fields(path: Path, size: int, modified: int) -> Mapping[str, Any]:  # noqa: ARG001
    with path.open("rb") as file:
        line = file.readline(MOST_SNIFFED).strip()
        while not line and file.tell() < min(size, MOST_SNIFFED):
            line = file.readline(MOST_SNIFFED).strip()
    if line.startswith(b"[") and size <= MOST_SNIFFED:
        line = path.read_bytes()
    try:
        _check_fits(memory_limit(), str(path), line)
        value = parse_json(str(path), line)
    except (DataError, NotEnoughMemoryError):
        return {}
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, dict) else {}


_ROWS = 256
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


def parquet_columns(path: AnyPath) -> set[str]:
    """Return the column names of a Parquet file; empty if it is not Parquet.

    Raises:
        ReadWriteError: it is remote and cannot be read.
    """
    return set(column_names_of(path))


def table_records(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """Yield the rows of a Parquet file as records of columns; `a.b` is one field of a struct.

    Raises:
        DataError: the file is not Parquet, is damaged, or lacks a column.
        ReadWriteError: it cannot be read.
    """
    try:
        with ParquetReader(path) as reader:
            names = reader.file.schema_arrow.names
            for name in columns:
                if name.partition(".")[0] not in names:
                    raise DataError(f"{path}: no column {name!r}; columns: {', '.join(names)}")
            row = 0
            for group in range(reader.file.num_row_groups):
                for batch in reader.batches(_ROWS, group, columns):
                    for values in batch.to_pylist():
                        yield Record(f"{path}, row {row}", values)
                        row += 1
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
        why = str(error).splitlines()[0]
        raise DataError(f"{path}: not a Parquet file, or damaged ({why})") from None
