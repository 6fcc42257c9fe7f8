"""Records of dumps: fields with their types, errors that name the record, values of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlpost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping


_SHOWN = 60
_NO_FILE = PurePath()
_MOST_DIGITS = 1000  # of an integer that stays exact; Python itself rejects more than 4300
_NEEDED: dict[type, str] = {
    float: "a number", int: "an integer", str: "text", list: "a list", dict: "an object",
}  # fmt: skip
T = TypeVar("T")


_decode = msgspec.json.Decoder().decode  # integers of any size exactly


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON object of a dump, and its position."""

    where: str
    """The position in error messages, such as `dump.jsonl, line 3`."""
    fields: Mapping[str, Any]
    file: PurePath = _NO_FILE
    """The file that contains it; of an archive, the archive's path and the member's."""
    outer: Record | None = None
    """The record that contains it, if it is an item of a list of that record."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Columns that a layout's code computed, before those of its declaration."""

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def get(self, name: str) -> Any:
        """Return the field of any type; raise DataError if it is missing."""
        if name not in self.fields:
            raise DataError(f"{self.where}: no field `{name}`; fields: {first_names(self.fields)}")
        return self.fields[name]

    def typed(self, name: str, kind: type[T]) -> T:
        """Return a field of a type; 12.0 is an integer.

        Raises:
            DataError: it is missing, or of another type.
        """
        value = self.get(name)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind is float and isinstance(value, int):
            value = as_float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(name, value, _NEEDED[kind])
        return value

    def find(self, path: str) -> Any:
        """Return the field of that name or dotted path, of the record or of what contains it.

        A field whose name has dots comes before a nested one; None if there is none. `a | b` is
        the first of several that is not null.
        """
        if " | " in path:
            values = map(self.find, path.split(" | "))
            return next((value for value in values if value is not None), None)
        record: Record | None = self
        while record is not None:
            if path in record.fields:
                return record.fields[path]
            value: Any = record.fields
            for name in path.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                return value
            record = record.outer
        return None

    def has_path(self, path: str) -> bool:
        """Return whether the record, or what contains it, has the beginning of a path."""
        names = {name for part in path.split(" | ") for name in (part, part.partition(".")[0])}
        inside = not names.isdisjoint(self.fields)
        return inside or (self.outer is not None and self.outer.has_path(path))

    def lookup(self, path: str) -> Any:
        """Return the field of that name or dotted path, as `find` does.

        Raises:
            DataError: neither the record nor what contains it has the beginning of the path.
        """
        value = self.find(path)
        if value is None and not self.has_path(path):
            self.get(path.rpartition(" | ")[2])
        return value

    def rows(self, path: str) -> Iterator[Record]:
        """Yield the items of a list of this record as records with this one as their outer one.

        Args:
            path: dotted; a list on the way is walked, too, and so is an object whose fields are all
                objects, such as those of a task by its name, which their field `key` has then; `*`
                is the record itself. If the items of a list are not objects, the lists of the same
                length beside it are the columns of the rows, but for conversations, whose messages
                are of several roles.

        Raises:
            DataError: there is no such list, or its items are neither all objects nor all values.
        """
        name, _, rest = (path, "", "") if path in self.fields else path.partition(".")
        value = self.fields if name == "*" else self.get(name)
        if isinstance(value, dict) and rest and rest.partition(".")[0] in value:
            yield from Record(f"{self.where}, `{name}`", value, self.file, self).rows(rest)
            return
        if value is None:
            return
        places: Iterable[object]
        if is_keyed(value):
            places, items = value, [{"key": key, **item} for key, item in value.items()]
        elif isinstance(value, list):
            places, items = range(len(value)), value
        else:
            raise self.error(name, value, "a list of the rows")
        objects = sum(isinstance(item, dict) for item in items)
        if 0 < objects < len(items) or (rest and objects < len(items)):
            raise self.error(name, value, "a list of objects")
        if not objects:
            columns = {key: x for key, x in self.fields.items()
                       if isinstance(x, list) and len(x) == len(items)
                       and not _is_conversation(x)}  # fmt: skip
            items = [dict(zip(columns, row, strict=True))
                     for row in zip(*columns.values(), strict=True)]  # fmt: skip
        outer = self.outer if name == "*" else self
        for place, item in zip(places, items, strict=True):
            row = Record(f"{self.where}, {name} {place}", item, self.file, outer)
            yield from row.rows(rest) if rest else (row,)

    @property
    def columns(self) -> Mapping[str, Any]:
        """The fields, and those of what contains the record that are neither list nor object."""
        outer = {} if self.outer is None else self.outer.columns
        plain = {key: x for key, x in outer.items() if not isinstance(x, (list, dict))}
        return {**plain, **self.fields} if plain else self.fields

    def unread(self, read: Collection[str]) -> dict[str, None]:
        """Return the lists and objects of what contains the record, which `columns` lack."""
        names: dict[str, None] = {}
        outer = self.outer
        while outer is not None:
            names |= {key: None for key, x in outer.fields.items()
                      if x and isinstance(x, (list, dict)) and key not in self.fields}  # fmt: skip
            outer = outer.outer
        return {name: None for name in names if name not in read}

    def nested(self, name: str) -> Record:
        """Return a field that is an object, as a record."""
        return self.part(f"`{name}`", self.typed(name, dict))

    def part(self, place: str, value: object) -> Record:
        """Return an object inside this record, as a record of the same file."""
        return as_record(f"{self.where}, {place}", value, self.file)

    def error(self, name: str, value: object, needed: str) -> DataError:
        """Return the error for a field of the wrong type."""
        return DataError(f"{self.where}: `{name}` is {describe(value)}; {needed} is needed")


@dataclass(frozen=True)
class Field:
    """A column that is computed from a record: what it is made of, for users, and how."""

    text: str
    read: Callable[[Record], Any]


def _is_conversation(items: list[Any]) -> bool:
    """Return whether a list has messages of several roles."""
    if not all(isinstance(item, dict) and "role" in item for item in items):
        return False
    return len({str(item["role"]) for item in items}) > 1


def is_keyed(value: object) -> bool:
    """Return whether a value is an object of several objects."""
    if not isinstance(value, dict) or len(value) < 2:  # noqa: PLR2004
        return False
    return all(isinstance(item, dict) and item for item in value.values())


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


def as_record(where: str, value: object, file: PurePath = _NO_FILE) -> Record:
    """Return a value as a record; raise DataError if it is not an object."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: is {describe(value)}; a JSON object is needed")
    return Record(where, value, file)


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
        return json.loads(data, parse_int=integer_of)
    except json.JSONDecodeError as error:
        why = f"{error.msg} at column {error.colno}"
        if not data.rstrip().endswith((b"}", b"]")):
            why = f"the line is incomplete: it ends after {len(data.rstrip())} bytes"
        raise DataError(f"{where}: not JSON: {why}; repair or remove the line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply to read") from None


def integer_of(digits: str) -> int | float:
    """Return an exact integer, as it may be an id; a float for extremely many digits."""
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)
