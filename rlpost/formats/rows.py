"""Rows of plain values as Arrow columns, in tables of bounded size."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.formats.records import describe
from rlpost.io.arrow import CellLocation, is_list, to_arrow
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

MOST_ROWS = 4096
MOST_BYTES = 4 << 20
"""A table ends with the row that reaches either limit."""
JSON = pa.large_binary()
"""The type of a column whose values are of several types, objects or lists of lists: JSON texts."""
_LARGE, _COPIES = 1 << 20, 4  # bytes of a row, and how often it is in memory
_ARRAYS = (np.generic, np.ndarray)
_PLAIN = (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string())


class DumpTable(NamedTuple):
    """Some rows of a dump."""

    values: Mapping[str, pa.Array]
    """The columns that its layout declares."""
    fields: Mapping[str, pa.Array]
    """The fields of the records by name, or by the dotted path that the user's map has."""
    rows: int
    location: CellLocation
    """Where they are, for errors."""


def tables(
    rows: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]], path: str
) -> Iterator[DumpTable]:
    """Yield rows as columns of the types that their values have; a missing value is null.

    Args:
        rows: the place of each for errors, its values by column, and its fields.
        path: of the dump.

    Raises:
        DataError: a text or the name of a field is not valid text.
    """
    batch: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    size = 0
    for where, values, fields in rows:
        packed_values = {name: packed(value) for name, value in values.items()}
        packed_fields = {name: packed(value) for name, value in fields.items()}
        batch.append((where, packed_values, packed_fields))
        row = sum(map(_size, (*packed_values.values(), *packed_fields.values())))
        if row > _LARGE:  # of a tensor, it may be more than its file has
            memory_limit().check(_COPIES * row, f"{where}: its lists")
        size += 64 + row
        if len(batch) == MOST_ROWS or size >= MOST_BYTES:
            yield _table(batch, path)
            batch, size = [], 0
    if batch:
        yield _table(batch, path)


def packed(value: Any) -> Any:
    """Return a list of numbers of one kind as a vector, in a fraction of its memory, else itself.

    A tensor is an array, and an array of one number is that number.

    >>> packed([1, 0]), packed([0.5, None])
    (array([1, 0], dtype=uint8), [0.5, None])
    """
    if type(value) is not list:
        if type(value).__module__ == "torch":
            dense = value.detach()
            value = (dense.float() if "float16" in str(dense.dtype) else dense).numpy()
        return value.item() if isinstance(value, _ARRAYS) and value.ndim == 0 else value
    try:
        return _vector(value) if value else np.zeros(0)
    except (TypeError, struct.error, OverflowError):  # null, other types, more than 64 bits
        return value


def _vector(values: list[Any]) -> Any:
    kind = type(values[0])
    if kind is int:
        try:
            return np.frombuffer(bytes(values), np.uint8)  # half of the time
        except ValueError:
            return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)
    if kind is bool and {*map(type, values)} == {bool}:
        return np.frombuffer(bytes(values), np.bool_)
    return np.frombuffer(struct.pack(f"{len(values)}d", *values)) if kind is float else values


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, (str, list)) else 0


def _table(batch: list[tuple[str, dict[str, Any], dict[str, Any]]], path: str) -> DumpTable:
    places, values, fields = zip(*batch, strict=True)
    location = CellLocation(path, 0, "", places=places)
    return DumpTable(_columns(values, location), _columns(fields, location), len(batch), location)


def _columns(rows: Sequence[Mapping[str, Any]], location: CellLocation) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            name.encode()
            columns[name] = gathered(values)
        except UnicodeEncodeError as error:  # a surrogate, which UTF-8 has not
            row = next((i for i, value in enumerate(values) if not _is_text(value)), 0)
            place = replace(location, column=name.encode(errors="backslashreplace").decode())
            raise place.error(row, f"is {error.object!r:.60}", "text in UTF-8 is needed") from None
    return columns


def _is_text(value: object) -> bool:
    try:
        _text(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def gathered(values: Sequence[Any]) -> pa.Array:
    """Return values as a column: numbers, bools, texts or lists of one of these; others are JSON.

    Integers among floats are floats, if these have them, and integers of more than 64 bits are
    JSON.

    Raises:
        UnicodeEncodeError: a text is not valid.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {np.ndarray} and all(x is None or x.ndim == 1 for x in values):
        return _joined(values)
    plain = [x.tolist() if isinstance(x, np.ndarray) else x for x in values]
    try:
        array = pa.array(plain)
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except (pa.ArrowException, OverflowError):
        return _json(plain)
    inner = array.type.value_type if is_list(array.type) else array.type
    return array if inner in _PLAIN else _json(plain)


def _joined(values: Sequence[NDArray[Any] | None]) -> pa.Array:
    """Return vectors as a column of lists."""
    lengths = [0 if x is None else len(x) for x in values]
    parts = [x for x in values if x is not None and len(x)]
    flat = np.concatenate(parts) if parts else np.zeros(0)
    flat = flat.astype(np.int64) if flat.dtype == np.uint8 else flat
    elements = to_arrow(flat, pa.from_numpy_dtype(flat.dtype)) if parts else pa.nulls(0)
    ends = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    missing = pa.array([x is None for x in values])
    return pa.ListArray.from_arrays(ends, elements, mask=missing)


def _json(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if x is None else _text(x).encode() for x in values], JSON)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def values_of(array: pa.Array) -> list[Any]:
    """Return the values of a column; of JSON texts, what they say."""
    if array.type == JSON:
        return [None if x is None else json.loads(x) for x in array.to_pylist()]
    values: list[Any] = array.to_pylist()
    return values


def text_of(array: pa.Array) -> pa.Array:
    """Return a column of JSON or of nested values as texts; a text among them is itself."""
    texts = (x if x is None or isinstance(x, str) else _text(x) for x in values_of(array))
    return pa.array([*texts], pa.string())


def shown(value: object) -> str:
    """Return a value in a few words, for errors; of a list, what is not flat in it."""
    others = [x for x in value if not is_plain(x)] if isinstance(value, list) else []
    if others:
        return "a list of lists" if isinstance(others[0], list) else (
            f"a list with {describe(others[0])}")  # fmt: skip
    return describe(value)


def is_plain(value: object) -> bool:
    """Return whether a value is a number, a bool or null."""
    return value is None or isinstance(value, (int, float))


def is_flat(value: object) -> bool:
    """Return whether a value is a list of numbers, bools and nulls."""
    return isinstance(value, list) and all(map(is_plain, value))


def has_failed(batch: pa.RecordBatch | pa.Table) -> NDArray[np.bool_]:
    """Return which rows [n] are of a rollout that failed, which needs no reward."""
    reasons = batch.column("failure").to_pylist() if "failure" in batch.schema.names else ()
    failed = [bool(reason) for reason in reasons]
    return np.asarray(failed, np.bool_) if failed else np.zeros(batch.num_rows, np.bool_)
