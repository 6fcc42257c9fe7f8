"""Arrow columns as numpy arrays, checked: every error names the row.

Between Arrow and numpy or Python, without pandas.

pyarrow's own ways (`Array.to_numpy`, `pa.array`, `pa.scalar`, a Python value in a compute function)
import pandas wherever it is installed. That takes half a second, as long as a small run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_KINDS: dict[pa.DataType, str] = {
    pa.int8(): "i1",
    pa.int16(): "i2",
    pa.int32(): "i4",
    pa.int64(): "i8",
    pa.uint8(): "u1",
    pa.uint16(): "u2",
    pa.uint32(): "u4",
    pa.uint64(): "u8",
    pa.float16(): "f2",
    pa.float32(): "f4",
    pa.float64(): "f8",
}


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """The numpy type of a type of numbers or bools."""
    return np.dtype("?" if pa.types.is_boolean(kind) else _KINDS[kind])


def to_numpy(array: pa.Array) -> np.ndarray[Any, Any]:
    """A column as numpy; numbers without nulls share its memory."""
    if pa.types.is_boolean(array.type) and not array.null_count:
        return _bits(array, 1)
    if array.type not in _KINDS or array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return _as_numbers(array)


def fill_nulls(array: pa.Array, value: float) -> np.ndarray[Any, Any]:
    """A column of numbers as numpy, with this in place of nulls."""
    numbers = _as_numbers(array)
    return np.where(_bits(array, 0), numbers, value) if array.null_count else numbers


def _as_numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    """The memory of a column of numbers; where it has nulls, there is anything."""
    kind, data = _KINDS[array.type], array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, kind)
    width = np.dtype(kind).itemsize
    return np.frombuffer(data, kind, count=len(array), offset=array.offset * width)


def is_true(array: pa.Array) -> NDArray[np.bool_]:
    """Where a bool column holds true; a null is not true."""
    if not array.null_count:
        return _bits(array, 1)
    return _bits(array, 0) & _bits(array, 1)


def _bits(array: pa.Array, buffer: int) -> NDArray[np.bool_]:
    """A bool column's values (buffer 1), or the validity of a column that has nulls (buffer 0)."""
    data = array.buffers()[buffer]
    if data is None or not len(array):
        return np.empty(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(data, "u1"), bitorder="little")
    return bits[array.offset : array.offset + len(array)].view(np.bool_)


def to_arrow(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Numbers or bools as a column of this type; numbers of that very type share their memory."""
    if pa.types.is_boolean(kind):
        data = np.packbits(values, bitorder="little")
    else:
        data = np.ascontiguousarray(values, _KINDS[kind])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


def string_array(values: Sequence[str]) -> pa.StringArray:
    """A column of strings."""
    data = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(b"".join(data)))


@dataclass(frozen=True)
class CellLocation:
    """Where a column of a piece comes from, for errors."""

    path: str
    first_row: int
    column: str

    def error(self, row: int, came: str, needed: str) -> DataError:
        """`path, row N: column came; needed` with the row counted in its file."""
        return DataError(
            f"{self.path}, row {self.first_row + row}: `{self.column}` {came}; {needed}"
        )


def is_list(kind: pa.DataType) -> bool:
    """Whether a column of this type holds one list per row."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Whether the type is a float, an integer or a bool."""
    return bool(
        pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    )


def content_kind(kind: pa.DataType) -> str:
    """What a column of this type holds: floats or integers (lists), number, text, or other."""
    if is_list(kind):
        if pa.types.is_floating(kind.value_type):
            return "floats"
        return "integers" if is_number(kind.value_type) else "other"
    if is_number(kind):
        return "number"
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return "other"


def list_values(array: pa.Array, place: CellLocation) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Offsets [n+1], from 0, and values [T] of a list column; nulls among the values are NaN.

    Raises:
        DataError: not a list of numbers, or a null in place of a list.
    """
    kind = array.type
    if not is_list(kind) or not is_number(kind.value_type):
        raise place.error(0, f"is {kind}", "a list of floats, integers or bools is needed")
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise place.error(
            row, "is null", "every row needs a list, if only an empty one: fill or drop the row"
        )
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        array = array.cast(pa.large_list(kind.value_type))
    return _offsets(array), _numbers(array.flatten())


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int64) * np.int64(array.type.list_size)
    offsets = np.array(to_numpy(array.offsets), dtype=np.int64)
    offsets -= offsets[0]
    return offsets


def _numbers(values: pa.Array) -> NDArray[Any]:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if values.null_count:
        values = pc.fill_null(values.cast(pa.float64()), float("nan"))
    return to_numpy(values)


def mask(array: pa.Array, place: CellLocation) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Offsets and values of a list column of 0 and 1.

    Raises:
        DataError: as `list_values`, or another value than 0 or 1 (a null counts as such).
    """
    offsets, values = list_values(array, place)
    true = values == 1
    wrong = ~(true | (values == 0))
    if wrong.any():
        token = int(np.flatnonzero(wrong)[0])
        row = int(np.searchsorted(offsets, token, side="right")) - 1
        raise place.error(
            row,
            f"has {values[token]} at token {token - int(offsets[row])}",
            "a mask holds 1 where the policy produced the token and 0 elsewhere",
        )
    return offsets, true


def numbers(array: pa.Array, place: CellLocation) -> NDArray[np.float64]:
    """One float64 per row; a list is summed, a null is NaN.

    Raises:
        DataError: neither a number nor a list of numbers.
    """
    kind = array.type
    if is_list(kind):
        offsets, values = list_values(array, place)
        padded = np.append(values.astype(np.float64), 0.0)
        sums = np.add.reduceat(padded, offsets[:-1]) if len(array) else padded[:0]
        return np.where(np.diff(offsets) > 0, sums, 0.0)
    if not is_number(kind):
        raise place.error(0, f"is {kind}", "a number per row is needed")
    return np.asarray(_numbers(array), dtype=np.float64)


_TRUNCATED = frozenset({"length", "max_tokens", "truncated", "max_length"})


def truncated(array: pa.Array, place: CellLocation) -> NDArray[np.bool_]:
    """Whether each response hit the length limit: a bool column, or a finish reason."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return is_true(array)
    if pa.types.is_dictionary(kind):
        array = array.cast(kind.value_type)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise place.error(0, f"is {kind}", "a bool or a finish reason (string) is needed")
    reasons = string_array(sorted(_TRUNCATED)).cast(array.type)
    return is_true(pc.is_in(array, value_set=reasons))


def key(array: pa.Array, place: CellLocation) -> pa.Array:
    """A column of names or numbers that tell rows apart: int64 or string.

    Raises:
        DataError: another type, or a null.
    """
    kind = array.type
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise place.error(row, "is null", "every row needs one: fill or drop the row")
    if pa.types.is_dictionary(kind):
        return key(array.cast(kind.value_type), place)
    if pa.types.is_integer(kind):
        return _whole_numbers(array, place)
    if pa.types.is_string(kind):
        return array
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):
        return _whole_numbers(array, place)
    raise place.error(0, f"is {kind}", "a string or an integer per row is needed")


def _whole_numbers(array: pa.Array, place: CellLocation) -> pa.Array:
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:
        needed = "a string or an integer per row is needed, of at most 64 bits"
        raise place.error(0, f"is {array.type}", needed) from None
