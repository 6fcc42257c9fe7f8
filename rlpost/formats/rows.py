"""Rows of plain values as Arrow columns, in tables of bounded size."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.records import describe
from rlpost.io.arrow import CellLocation, to_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

MOST_ROWS = 4096
MOST_BYTES = 4 << 20
"""A table ends with the row that reaches either limit."""
JSON = pa.large_binary()
"""The type of a column whose values are of several types, objects or lists of lists: JSON texts."""
_EMPTY = np.zeros(0)
_SCALARS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


class Fields(NamedTuple):
    """Some rows of a dump by field."""

    columns: dict[str, pa.Array]
    rows: int
    location: CellLocation
    """Where they are, for errors."""


def tables(rows: Iterable[tuple[str, Mapping[str, Any]]], path: str) -> Iterator[Fields]:
    """Yield rows as columns of the types that their values have; a missing value is null.

    Args:
        rows: the place of each for errors, and its values by field.
        path: of the dump.

    Raises:
        DataError: a text or the name of a field is not valid text.
    """
    batch: list[dict[str, Any]] = []
    places: list[str] = []
    size = 0
    for where, fields in rows:
        values = {name: packed(value) for name, value in fields.items()}
        batch.append(values)
        places.append(where)
        size += 64 + sum(map(_size, values.values()))
        if len(batch) == MOST_ROWS or size >= MOST_BYTES:
            yield _table(batch, CellLocation(path, 0, "", places=places))
            batch, places, size = [], [], 0
    if batch:
        yield _table(batch, CellLocation(path, 0, "", places=places))


def packed(value: Any) -> Any:
    """Return a list of numbers of one kind as a vector, in a fraction of its memory, else itself.

    >>> packed([1, 0]), packed([0.5, None])
    (array([1, 0], dtype=uint8), [0.5, None])
    """
    if type(value) is not list:
        return value.item() if isinstance(value, np.generic) else value
    try:
        return _vector(value) if value else _EMPTY
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


def _table(rows: list[dict[str, Any]], location: CellLocation) -> Fields:
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            name.encode()
            columns[name] = gathered(values)
        except UnicodeEncodeError:
            raise _not_text(name, values, location) from None
    return Fields(columns, len(rows), location)


def _not_text(name: str, values: Sequence[Any], location: CellLocation) -> DataError:
    """Return the error for a surrogate, which UTF-8 has not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        text = f"{location.where(0)} or later: the field name {name!r} is not valid text"
        return DataError(text)
    for row, value in enumerate(values):
        try:
            gathered([value])
        except UnicodeEncodeError:
            return DataError(
                f"{location.where(row)}: `{name}` is {value!r:.60}; text in UTF-8 is needed"
            )
    raise AssertionError


def gathered(values: Sequence[Any]) -> pa.Array:
    """Return values as a column: numbers, bools, texts or lists of one of these; others are JSON.

    Integers among floats are floats, and integers of more than 64 bits are JSON.

    Raises:
        UnicodeEncodeError: a text is not valid.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if kinds <= {np.ndarray, list}:
        column = _lists(values, plain=kinds == {np.ndarray})
    else:
        column = _scalars(values, kinds)
    return _json(values) if column is None else column


def _scalars(values: Sequence[Any], kinds: set[type]) -> pa.Array | None:
    """Return values of one type as a column; None if they have several."""
    kind = _SCALARS.get(_one_of(kinds))
    if kind is None:
        return None
    if kind == pa.string():
        return _texts([None if value is None else value.encode() for value in values], kind)
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    try:
        kinds_of = {pa.bool_(): np.bool_, pa.int64(): np.int64, pa.float64(): np.float64}
        dense = (0 if value is None else value for value in values)
        return nullable(np.fromiter(dense, kinds_of[kind], len(values)), valid, kind)
    except OverflowError:
        return None


def _one_of(kinds: set[type]) -> type:
    """Return the type of values of these types; `object` if there is none."""
    if kinds == {int, float}:
        return float
    return next(iter(kinds)) if len(kinds) == 1 else object


def _texts(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return texts, or binary, as a column."""
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    texts = [value or b"" for value in values]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64 if kind == JSON else np.int32)
    buffers = [_bits(valid), pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(kind, len(texts), buffers)


def nullable(values: NDArray[Any], valid: NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Return numbers or bools as a column, null where they are not valid."""
    array = to_arrow(values, kind)
    buffers = [_bits(valid), array.buffers()[1]]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _bits(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _lists(values: Sequence[Any], *, plain: bool) -> pa.Array | None:
    """Return lists and vectors as a column of lists; None if their values have several types."""
    if plain and all(x is None or (x.ndim == 1 and x.dtype.kind in "biuf") for x in values):
        valid = np.fromiter((x is not None for x in values), np.bool_, len(values))
        lengths = np.fromiter((0 if x is None else len(x) for x in values), np.int64, len(values))
        parts = [x for x in values if x is not None and len(x)]
        flat = np.concatenate(parts) if parts else _EMPTY
        kind = pa.from_numpy_dtype(flat.dtype)
        elements = to_arrow(flat, kind) if parts else pa.nulls(0)
        ends = np.append(0, np.cumsum(lengths)).astype(np.int32)
        buffers = [_bits(valid), pa.py_buffer(ends)]
        listed = pa.list_(elements.type)
        return pa.Array.from_buffers(listed, len(values), buffers, children=[elements])
    lists = [x.tolist() if isinstance(x, np.ndarray) else x for x in values]
    kinds = {type(y) for x in lists if x for y in x} - {type(None)}
    if bool in kinds and len(kinds) > 1 and kinds <= {bool, int, float}:  # masks of several rows
        lists = [x if x is None else [int(y) if y is True or y is False else y for y in x]
                 for x in lists]  # fmt: skip
        kinds = kinds - {bool} | {int}
    try:
        return pa.array(lists, pa.list_(_SCALARS[_one_of(kinds)] if kinds else pa.null()))
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except (KeyError, OverflowError, pa.ArrowInvalid):
        return None


def _json(values: Sequence[Any]) -> pa.Array:
    return _texts([None if x is None else _text(x).encode() for x in values], JSON)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def values_of(array: pa.Array) -> list[Any]:
    """Return the values of a column; of JSON texts, what they say."""
    if array.type == JSON:
        return [None if x is None else json.loads(x) for x in array.to_pylist()]
    values: list[Any] = array.to_pylist()
    return values


def text_of(array: pa.Array) -> pa.Array:
    """Return a column of JSON or of nested values as texts; a text among them is itself."""
    texts = (x if x is None or isinstance(x, str) else _text(x) for x in values_of(array))
    return _texts([x if x is None else x.encode() for x in texts], pa.string())


def shown(value: object) -> str:
    """Return a value in a few words, for errors; of a list, what is not flat in it."""
    if isinstance(value, list) and any(isinstance(item, list) for item in value):
        return "a list of lists"
    others = (x for x in value if not is_plain(x)) if isinstance(value, list) else ()
    other = next(iter(others), None)
    return describe(value) if other is None else f"a list with {describe(other)}"


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
