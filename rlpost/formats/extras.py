"""Fields that no role reads: each gets one type for a whole file, and none is lost.

A field's type must hold for all its records, and a later record may show that the first one was
no guide (a score of 1 before one of 0.5). So the file is read once for the types alone.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.canonical import CANONICAL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_TEXT = pa.string()
_LONG = 64  # bits of an integer


@dataclass(frozen=True)
class Extras:
    """The fields of a file that are kept as they are.

    Args:
        types: field -> Arrow type, in order of appearance.
    """

    types: Mapping[str, pa.DataType]

    @cached_property
    def columns(self) -> dict[str, str]:
        """Field -> column; a name that means something else in rlpost becomes `dumped_...`."""
        names: dict[str, str] = {}
        for field in self.types:
            name = f"dumped_{field}" if field in CANONICAL else field
            while name in CANONICAL or name in names.values():
                name += "_"
            names[field] = name
        return names

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The types by column, for `rlpost.formats.rows.batches`."""
        return {column: self.types[field] for field, column in self.columns.items()}

    def kept_in(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, each with all of these columns, those without a value null.

        A field that only late records have is a column from the first row on.
        """
        for batch in batches:
            full = batch
            for column, kind in self.column_types.items():
                if column not in batch.schema.names:
                    full = full.append_column(column, pa.nulls(batch.num_rows, kind))
            yield full

    def values(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A record's values by column."""
        return {
            column: _spelled(fields.get(field), self.types[field])
            for field, column in self.columns.items()
        }


def extras_of(
    objects: Iterable[Mapping[str, Any]], skip: Collection[str], *, integers: bool = True
) -> Extras:
    """One type per field.

    Whole numbers are int64, other numbers float64, flat lists keep their elements' type; fields
    of mixed kinds, nested lists and objects are text (JSON).

    Args:
        objects: the fields of every record.
        skip: fields that are left out.
        integers: whether there are int64 fields; else all numbers are float64, so that the files
            of one dump agree: a score may be 0 or 1 throughout one file, and 0.5 in the next.
    """
    found: dict[str, pa.DataType] = {}
    for fields in objects:
        for name, value in fields.items():
            if name not in skip:
                kind = _type(value)
                if kind == pa.int64() and not integers:
                    kind = pa.float64()
                found[name] = kind if name not in found else _both(found[name], kind)
    return Extras({name: kind for name, kind in found.items() if not pa.types.is_null(kind)})


def _type(value: object) -> pa.DataType:
    if isinstance(value, int) and value.bit_length() >= _LONG:
        return _TEXT
    if isinstance(value, list):
        return _list_type(value)
    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), type(None): pa.null()}
    return simple.get(type(value), _TEXT)


def _list_type(value: list[Any]) -> pa.DataType:
    """The list's type; text if its elements are of several kinds, or nested."""
    kinds = set(map(type, value)) - {type(None)}
    if kinds == {int, float}:
        return pa.list_(pa.float64())
    if not kinds:
        return pa.list_(pa.null())
    if len(kinds) > 1 or kinds & {list, dict}:
        return _TEXT
    if kinds == {int} and not _fit(value):
        return _TEXT
    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: _TEXT}
    return pa.list_(simple[kinds.pop()])


def _fit(numbers: list[int | None]) -> bool:
    """Whether all fit 64 bits."""
    try:
        array("q", [x for x in numbers if x is not None])
    except OverflowError:
        return False
    return True


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds values of two."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _both(one.value_type, other.value_type)
        elements = {one.value_type, other.value_type}
        return _TEXT if inner == _TEXT and not elements <= {_TEXT, pa.null()} else pa.list_(inner)
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else _TEXT


def _spelled(value: object, kind: pa.DataType) -> Any:
    """A value as its field's type has it: what is no text in a text field is written as JSON."""
    if value is None or kind != _TEXT or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
