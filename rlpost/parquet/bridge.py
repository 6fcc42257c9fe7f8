"""Between Arrow and numpy or Python, without pandas.

pyarrow's own ways (`Array.to_numpy`, `pa.array`, `pa.scalar`, a Python value in a compute function)
import pandas wherever it is installed. That takes half a second, as long as a small run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

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
    return _numbers(array)


def filled(array: pa.Array, value: float) -> np.ndarray[Any, Any]:
    """A column of numbers as numpy, with this in place of nulls."""
    numbers = _numbers(array)
    return np.where(_bits(array, 0), numbers, value) if array.null_count else numbers


def _numbers(array: pa.Array) -> np.ndarray[Any, Any]:
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


def texts(values: Sequence[str]) -> pa.StringArray:
    """A column of strings."""
    data = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(b"".join(data)))
