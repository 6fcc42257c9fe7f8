"""Rows of plain values as Arrow columns, in tables of bounded size."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.formats.records import describe
from rlpost.io.arrow import CellLocation, to_arrow
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
_DTYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


class DumpTable(NamedTuple):
    """Some rows of a dump."""

    values: Mapping[str, pa.Array]
    """The columns that its layout declares."""
    fields: Mapping[str, pa.Array]
    """The fields of the records by name, or by the dotted path that the user's map has."""
    rows: int
    location: CellLocation
    """Where they are, for errors."""
    of_records: bool = True
    """The types are those of values alone: small integers in lists are uint8."""


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

    Integers among floats are floats, and integers of more than 64 bits are JSON.

    Raises:
        UnicodeEncodeError: a text is not valid.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {np.ndarray} and all(x is None or x.ndim == 1 for x in values):
        return _joined(values)
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        return _texts([None if x is None else x.encode() for x in values], pa.string())
    plain = [x.tolist() if isinstance(x, np.ndarray) else x for x in values]
    try:
        for kind, dtype in _DTYPES.items():
            if kinds == {kind} or (kind is float and kinds == {int, float}):
                dense = np.fromiter((0 if x is None else x for x in plain), dtype, len(plain))
                return nullable(dense, np.array([x is not None for x in plain]))
        if kinds <= {list, np.ndarray}:
            array = pa.array(plain)  # which imports pandas, so that nothing else calls it
            if array.type.value_type in _PLAIN:
                return array
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except (pa.ArrowException, OverflowError):
        pass
    return _texts([None if x is None else _text(x).encode() for x in plain], JSON)


def nullable(values: NDArray[Any], valid: NDArray[np.bool_]) -> pa.Array:
    """Return numbers or bools [n] as a column, null where they are not valid."""
    array = to_arrow(values, pa.from_numpy_dtype(values.dtype))
    return pa.Array.from_buffers(array.type, len(values), [_bits(valid), array.buffers()[1]])


def _bits(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _texts(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return texts, or JSON, as a column."""
    texts = [value or b"" for value in values]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64 if kind == JSON else np.int32)
    valid = np.array([value is not None for value in values], np.bool_)
    buffers = [_bits(valid), pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(kind, len(texts), buffers)


def _joined(values: Sequence[NDArray[Any] | None]) -> pa.Array:
    """Return vectors as a column of lists."""
    lengths = [0 if x is None else len(x) for x in values]
    parts = [x for x in values if x is not None and len(x)]
    flat = np.concatenate(parts) if parts else np.zeros(0)
    elements = to_arrow(flat, pa.from_numpy_dtype(flat.dtype)) if parts else pa.nulls(0)
    return list_column(lengths, elements, np.array([x is not None for x in values], np.bool_))


def list_column(
    lengths: Sequence[int] | NDArray[np.int64],
    elements: pa.Array,
    valid: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Return elements as a column of lists of these lengths [n], null where they are not valid."""
    ends = pa.py_buffer(np.append(0, np.cumsum(lengths)).astype(np.int32))
    buffers = [None if valid is None else _bits(valid), ends]
    kind = pa.list_(elements.type)
    return pa.Array.from_buffers(kind, len(lengths), buffers, children=[elements])


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
    return _texts([x if x is None else x.encode() for x in texts], pa.string())


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
