"""Conversion of Arrow columns to numpy arrays and back, with checks whose errors name the row.

pyarrow's conversions (`Array.to_numpy`, `pa.array`, `pa.scalar`, Python values in `pc` functions)
import pandas if it is installed, which takes half a second: as long as a small run. The functions
here avoid that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    """Return the numpy type of a numeric or bool type."""
    return np.dtype("?" if pa.types.is_boolean(kind) else _KINDS[kind])


def to_numpy(array: pa.Array) -> np.ndarray[Any, Any]:
    """Convert a column to numpy; numbers without nulls share its memory."""
    if pa.types.is_boolean(array.type) and not array.null_count:
        return _bits(array, 1)
    if array.type not in _KINDS or array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return _as_numbers(array)


def fill_nulls(array: pa.Array, value: float) -> np.ndarray[Any, Any]:
    """Convert a column of numbers to numpy, with a value in place of nulls."""
    numbers = _as_numbers(array)
    return np.where(_bits(array, 0), numbers, value) if array.null_count else numbers


def _as_numbers(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the memory of a column of numbers; the values of nulls are undefined."""
    kind, data = _KINDS[array.type], array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, kind)
    width = np.dtype(kind).itemsize
    return np.frombuffer(data, kind, count=len(array), offset=array.offset * width)


def is_true(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the true values of a bool column; a null is not true."""
    if not array.null_count:
        return _bits(array, 1)
    return _bits(array, 0) & _bits(array, 1)


def _bits(array: pa.Array, buffer: int) -> NDArray[np.bool_]:
    """Return a bool column's values (buffer 1), or the validity of a nullable column (buffer 0)."""
    data = array.buffers()[buffer]
    if data is None or not len(array):
        return np.empty(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(data, "u1"), bitorder="little")
    return bits[array.offset : array.offset + len(array)].view(np.bool_)


def to_arrow(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Convert numbers or bools to a column; numbers of the same type share their memory."""
    if pa.types.is_boolean(kind):
        data = np.packbits(values, bitorder="little")
    else:
        data = np.ascontiguousarray(values, _KINDS[kind])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


def string_array(values: Sequence[str]) -> pa.StringArray:
    """Convert strings to a column."""
    data = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(b"".join(data)))


@dataclass(frozen=True)
class CellLocation:
    """The file, first row and column of an array, for errors."""

    path: str
    first_row: int
    column: str
    tip: str = ""
    """What finds the other problems of the file."""
    places: Sequence[str] = ()
    """The name of each row, if it is not its number in the file."""

    def where(self, row: int) -> str:
        """Return the file and row of a row of the array."""
        return self.places[row] if self.places else f"{self.path}, row {self.first_row + row}"

    def error(self, row: int, problem: str, needed: str) -> DataError:
        """Return an error `path, row N: column problem; needed`; N counts from the file's start."""
        return DataError(f"{self.where(row)}: `{self.column}` {problem}; {needed}", tip=self.tip)


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column of this type has a list in each row."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is float, integer or bool."""
    return bool(
        pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    )


def is_string(kind: pa.DataType) -> bool:
    """Return whether a type is text, stored in any way but as a dictionary."""
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def without_dictionary(array: pa.Array) -> pa.Array:
    """Return a column as its values, without codes of a dictionary."""
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def common_type(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return a type that has the values of several types without loss; None: there is none.

    Numbers become integers if all are integers or bools, and otherwise floats. A type of nulls
    goes with any type.
    """
    plain = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds)
    own = [kind for kind in dict.fromkeys(plain) if not pa.types.is_null(kind)]
    if len(own) < 2:  # noqa: PLR2004
        return own[0] if own else pa.null()
    if all(map(is_list, own)):
        inner = common_type(kind.value_type for kind in own)
        return None if inner is None else pa.large_list(inner)
    if all(map(is_string, own)):
        return pa.large_string()
    if all(map(is_number, own)):
        own = [pa.uint8() if pa.types.is_boolean(kind) else kind for kind in own]
        if pa.uint64() in own and any(map(pa.types.is_signed_integer, own)):
            return pa.float64()  # Arrow returns int64
    try:
        schemas = [pa.schema([("", kind)]) for kind in own]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


@lru_cache(256)
def content_kind(kind: pa.DataType) -> str:
    """Return what a column contains: floats or integers (lists), number, text, or other."""
    if is_list(kind):
        if pa.types.is_floating(kind.value_type):
            return "floats"
        return "integers" if is_number(kind.value_type) else "other"
    if is_number(kind):
        return "number"
    return "text" if pa.types.is_dictionary(kind) or is_string(kind) else "other"


def is_tokens(kind: pa.DataType) -> bool:
    """Return whether `list_values` can read a column: lists of numbers, or lists without any."""
    return is_list(kind) and _readable(kind.value_type)


def list_values(array: pa.Array, location: CellLocation) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return offsets [n+1], from 0, and values [T] of a list column; null values are NaN.

    Raises:
        DataError: not a list of numbers, or a null in place of a list.
    """
    kind = array.type
    if not is_list(kind) or not _readable(kind.value_type):
        raise location.error(0, f"is {kind}", "a list of floats, integers or bools is needed")
    _check_no_nulls(
        array, location, "every row needs a list, which may be empty: fill or drop the row"
    )
    return _offsets(array), _numbers(array.flatten())


def _check_no_nulls(array: pa.Array, location: CellLocation, needed: str) -> None:
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise location.error(row, "is null", needed)


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_fixed_size_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int64) * np.int64(array.type.list_size)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        lengths = to_numpy(pc.list_value_length(array))  # offsets of a cast lack their end
        return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    offsets = np.array(to_numpy(array.offsets), dtype=np.int64)
    offsets -= offsets[0]
    return offsets


def _readable(kind: pa.DataType) -> bool:
    """Return whether values are numbers, or have no type because all are null."""
    return is_number(kind) or bool(pa.types.is_null(kind))


def _numbers(values: pa.Array) -> NDArray[Any]:
    if pa.types.is_null(values.type):
        return np.full(len(values), np.nan)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if values.null_count:
        values = pc.fill_null(values.cast(pa.float64()), float("nan"))
    return to_numpy(values)


def list_cell(array: pa.Array, row: int, token: int) -> str:
    """Return a value of a list and its place for errors: `null at token 3`."""
    value = array[row][token].as_py()
    return f"{'null' if value is None else value} at token {token}"


def mask(array: pa.Array, location: CellLocation) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return offsets and values of a list column of 0 and 1.

    Raises:
        DataError: as `list_values`, or a value is neither 0 nor 1 (a null, too).
    """
    offsets, values = list_values(array, location)
    true = values == 1
    wrong = ~(true | (values == 0))
    if wrong.any():
        token = int(np.flatnonzero(wrong)[0])
        row = int(np.searchsorted(offsets, token, side="right")) - 1
        raise location.error(
            row,
            f"has {list_cell(array, row, token - int(offsets[row]))}",
            "a mask has 1 for policy tokens and 0 for other tokens",
        )
    return offsets, true


def numbers(array: pa.Array, location: CellLocation) -> NDArray[np.float64]:
    """Return one float64 per row; lists are summed, nulls are NaN.

    Raises:
        DataError: neither a number nor a list of numbers.
    """
    kind = array.type
    if is_list(kind):
        offsets, values = list_values(array, location)
        padded = np.append(values.astype(np.float64), 0.0)
        sums = np.add.reduceat(padded, offsets[:-1]) if len(array) else padded[:0]
        return np.where(np.diff(offsets) > 0, sums, 0.0)
    if not _readable(kind):
        raise location.error(0, f"is {kind}", "a number per row is needed")
    return np.asarray(_numbers(array), dtype=np.float64)


def whole_numbers(array: pa.Array, location: CellLocation) -> pa.Array:
    """Return texts of whole numbers, such as "7" or "v7", as float64; other columns unchanged.

    Raises:
        DataError: a text is no whole number.
    """
    texts = without_dictionary(array)
    if not is_string(texts.type):
        return array
    digits = pc.replace_substring_regex(pc.utf8_trim_whitespace(texts), "^[vV]", "")
    wrong = pc.fill_null(pc.invert(pc.match_substring_regex(digits, r"^-?\d{1,15}$")), False)  # noqa: FBT003
    if (row := pc.index(wrong, True).as_py()) >= 0:
        needed = "a number per row, or a list of numbers, is needed"
        raise location.error(row, f"is {texts[row].as_py()!r:.60}", needed)
    return digits.cast(pa.float64())


_EXACT = 1 << 53
"""Float64 has every integer up to this one."""


def check_exact(array: pa.Array, location: CellLocation) -> None:
    """Raise DataError for an integer that float64 has not, such as a hash."""
    if not pa.types.is_integer(array.type) or array.type.bit_width < 64:  # noqa: PLR2004
        return
    values = fill_nulls(array, 0)
    wrong = np.flatnonzero((values > _EXACT) | (values < -_EXACT))
    if len(wrong):
        row = int(wrong[0])
        needed = "an integer of at most 2^53 is needed: convert an id to text, which becomes codes"
        raise location.error(row, f"is {values[row]}", needed)


def flags(array: pa.Array, location: CellLocation) -> NDArray[np.bool_]:
    """Return a bool column; DataError for a null."""
    _check_no_nulls(array, location, "every row needs a bool: fill or drop the row")
    return is_true(array)


EXACT = {"halffloat": 1 << 11, "float": 1 << 24, "double": 1 << 53}
"""By the name of a type of floats: from here on, several whole numbers are one number of it."""
_LONGEST = np.iinfo(np.int64).max


def key(array: pa.Array, location: CellLocation) -> pa.Array:
    """Return a column of keys, such as group ids, as int64 or string.

    Unsigned integers beyond int64 are texts; a list or struct, such as messages, is 16 hex digits.

    Raises:
        DataError: another type, a null, or a float that is no exact whole number.
    """
    kind = array.type
    array = nan_as_null(array)
    _check_no_nulls(array, location, "every row needs a value: fill or drop the row")
    if pa.types.is_floating(kind):
        if (wrong := is_inexact(array)).any():
            row = int(np.flatnonzero(wrong)[0])
            why = f"a text or a whole number below {EXACT[str(kind)]:,} per row is needed"
            advice = f"{why}, since later ones are one {kind}: write ids as text or int64"
            raise location.error(row, f"is {array[row].as_py()}", advice)
        return array.cast(pa.int64())
    plain = without_dictionary(array).type
    if not (pa.types.is_integer(plain) or is_string(plain) or pa.types.is_nested(plain)):
        raise location.error(0, f"is {kind}", "a text or an integer per row is needed")
    return plain_keys(array)


def nan_as_null(array: pa.Array) -> pa.Array:
    """Return floats with null for NaN, which pandas writes for a null among whole numbers."""
    if not pa.types.is_floating(array.type):
        return array
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)


def plain_keys(array: pa.Array) -> pa.Array:
    """Return keys as int64 if they are integers that it has, otherwise as texts; nulls stay."""
    array = nan_as_null(without_dictionary(array))
    kind = array.type
    if pa.types.is_nested(kind):
        values, codes = np.unique(fingerprints(array), return_inverse=True)
        texts = string_array([f"{value:016x}" for value in values.tolist()]).take(pa.array(codes))
        return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))
    long = kind == pa.uint64() and (fill_nulls(array, 0) > np.uint64(_LONGEST)).any()
    return array.cast(pa.int64() if pa.types.is_integer(kind) and not long else pa.string())


def is_inexact(array: pa.Array) -> NDArray[np.bool_]:
    """Return which floats [n] are fractions, or so large that several integers are one of them."""
    values = fill_nulls(array, 0)
    exact = (np.floor(values) == values) & (np.abs(values) < EXACT[str(array.type)])
    return np.asarray(~exact, np.bool_)


def fingerprints(array: pa.Array) -> NDArray[np.uint64]:
    """Return 64 bits of each value of any type, [n]: equal for equal values, 0 for null.

    A field of a struct that is null counts as one that is absent.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        total = np.ones(len(array), np.uint64)
        for field in kind:
            factor = np.uint64(_digest(field.name) | 1)
            total += factor * fingerprints(pc.struct_field(array, field.name))
    elif is_list(kind):
        lengths = fill_nulls(pc.list_value_length(array), 0).astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        place = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        powers = np.cumprod(np.full(int(lengths.max(initial=0)) + 1, _MIX, np.uint64))
        parts = np.append(fingerprints(array.flatten()) * powers[place], np.uint64(0))
        sums = np.add.reduceat(parts, starts) if len(array) else parts[:0]
        total = np.where(lengths > 0, sums, 0) * _MIX + lengths.astype(np.uint64) + np.uint64(1)
    else:
        encoded = without_dictionary(array).dictionary_encode()
        digests = [_digest(value) for value in encoded.dictionary.to_pylist()]
        total = np.array([*digests, 0], np.uint64)[fill_nulls(encoded.indices, len(digests))]
    return np.asarray(np.where(is_true(array.is_valid()), total, 0), np.uint64)


_MIX = np.uint64(0x9E3779B97F4A7C15)


def _digest(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(str(value).encode(), digest_size=8).digest(), "little")
