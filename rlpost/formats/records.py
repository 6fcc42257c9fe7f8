"""JSON records as a stream; every error names the file and the line or the place in the list.

Parquet files of other tools as records, read in pieces.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.parquet.checks import read_metadata

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlpost.io.paths import AnyPath


MOST_SNIFFED = 64 << 20
"""Bytes of a first line that a sniff reads at most."""
_MOST_ARRAY = 1 << 30
_SHAPE = bytes.maketrans(b"123456789[:,- \t\r\n", b"000000000[[[[[[[[")
_LONG = b"[" + b"0" * 20
"""The shape of a whole number that may be 2^64 or more, which orjson would round to a float."""
_SHOWN = 60
_DIGITS = re.compile(r"-?\d{1,400}")
_MOST_DIGITS = 1000  # of an integer that is kept exact; Python itself refuses more than 4300


@dataclass(frozen=True)
class Record:
    """One JSON object of a dump, and where it stands."""

    where: str
    """`dump.jsonl, line 3`: how errors name it."""
    fields: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.fields.get(name) is not None

    def get(self, name: str) -> Any:
        """The field, whatever it is; a DataError if it is missing."""
        if name not in self.fields:
            raise DataError(f"{self.where}: no field `{name}`; there are {listing(self.fields)}")
        return self.fields[name]

    def number(self, name: str) -> float:
        """A field that is a number (a bool counts as 0 or 1, null as NaN)."""
        value = self.get(name)
        if value is None:
            return float("nan")
        if not isinstance(value, (int, float)):
            raise self.wrong(name, value, "a number")
        return real(value)

    def whole(self, name: str) -> int:
        """A field that is a whole number; one written as text (`"12"`) or as 12.0 counts."""
        value = self.get(name)
        if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, value, "a whole number")
        return value

    def text(self, name: str) -> str:
        """A field that is text; a number is written out."""
        value = self.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def array(self, name: str) -> list[Any]:
        """A field that is a list."""
        value = self.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, value, "a list")
        return value

    def nested(self, name: str) -> Record:
        """A field that is an object, as a record of its own."""
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return Record(f"{self.where}, `{name}`", value)

    def wrong(self, name: str, value: object, needed: str) -> DataError:
        """The error for a field of the wrong kind."""
        return DataError(f"{self.where}: `{name}` is {described(value)}; {needed} is needed")


def real(value: float) -> float:
    """A number as float64: infinite where it is a whole one beyond that range."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def total(values: list[float]) -> float:
    """The sum, rounded once; where that is beyond float64, or there are infinities, as they add."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def described(value: object) -> str:
    """A JSON value in a few words, for errors."""
    if isinstance(value, dict):
        return f"an object with {listing(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def listing(fields: Collection[object]) -> str:
    """The first names of fields, for errors; "no fields" where there is none."""
    names = [str(name) for name in fields]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""  # noqa: PLR2004
    return (", ".join(names[:12]) or "no fields") + more


def records(path: Path) -> Iterator[Record]:
    """The objects of a JSONL file, or of a file that is one JSON array of objects, in order.

    A JSONL file of any size streams line by line. NaN and Infinity, which Python's json writes
    and JSON has not, are read as such. Empty lines are passed over. An array is held whole.

    Raises:
        DataError: a line is no JSON, is cut off, or is no object; the line is named.
        ReadWriteError: the file can't be read.
    """
    try:
        with path.open("rb") as file:
            if file.read(64).lstrip()[:1] == b"[":
                yield from _array(path)
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield record_of(where, parsed(where, line))
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None


def record_of(where: str, value: object) -> Record:
    """A value as a record; a DataError if it is no object."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: is {described(value)}; a JSON object is needed")
    return Record(where, value)


def _array(path: Path) -> Iterator[Record]:
    size = path.stat().st_size
    if size > _MOST_ARRAY:
        raise DataError(
            f"{path}: one JSON array of {size / 1e9:.1f} GB, which must be read whole; write one "
            "object per line (JSONL), for instance with jq -c '.[]'"
        )
    values = parsed(str(path), path.read_bytes())
    for place, value in enumerate(values):
        yield record_of(f"{path}, element {place} of the array", value)


def parsed(where: str, data: bytes) -> Any:
    """A JSON text as a value; NaN, Infinity and numbers beyond 64 bits are read as well.

    Raises:
        DataError: it is no JSON.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        pass  # it may hold what Python's json writes beyond the standard
    else:
        if _LONG not in data.translate(_SHAPE):
            return value
    try:
        return json.loads(data, parse_int=_integer)
    except json.JSONDecodeError as error:
        why = f"{error.msg} at column {error.colno}"
        if not data.rstrip().endswith((b"}", b"]")):
            why = f"the line is cut off after {len(data.rstrip())} bytes"
        raise DataError(f"{where}: not JSON: {why}; mend or remove the line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply to read") from None


def _integer(digits: str) -> int | float:
    """A whole number, exact, since it may be an id; an endless one is a float."""
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def first_fields(path: Path) -> Mapping[str, Any]:
    """The fields of a file's first record, for a sniff; empty where there is none. Never raises."""
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
        value = parsed(str(path), line)
    except DataError:
        return {}
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, dict) else {}


_ROWS = 256
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)


def columns_in(path: AnyPath) -> set[str]:
    """The names of a Parquet file's columns, for a sniff; none if it is no such file.

    Raises:
        ReadWriteError: it is remote, and can't be read.
    """
    try:
        return set(read_metadata(path).schema.to_arrow_schema().names)
    except _DAMAGE:
        return set()


def table_records(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """The rows of a Parquet file as records of these columns; `a.b` reads one field of a struct.

    Raises:
        DataError: the file is no Parquet, is damaged, or lacks a column.
        ReadWriteError: it can't be read.
    """
    try:
        with pq.ParquetFile(path, metadata=read_metadata(path), pre_buffer=False) as file:
            names = file.schema_arrow.names
            for name in columns:
                if name.partition(".")[0] not in names:
                    raise DataError(f"{path}: no column {name!r}; there are {', '.join(names)}")
            row = 0
            for batch in file.iter_batches(_ROWS, columns=list(columns)):
                for values in batch.to_pylist():
                    yield Record(f"{path}, row {row}", values)
                    row += 1
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
        why = str(error).splitlines()[0]
        raise DataError(f"{path}: not a Parquet file, or damaged ({why})") from None
