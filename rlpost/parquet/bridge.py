"""Between Arrow and numpy, without pandas: pyarrow's own ways import it wherever it is installed.

That takes half a second, as long as a small run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

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
    kind = _KINDS.get(array.type)
    if kind is None or array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.empty(0, kind)
    width = np.dtype(kind).itemsize
    return np.frombuffer(data, kind, count=len(array), offset=array.offset * width)


def to_arrow(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Numbers or bools as a column of this type; numbers of that very type share their memory."""
    if pa.types.is_boolean(kind):
        data = np.packbits(values, bitorder="little")
    else:
        data = np.ascontiguousarray(values, _KINDS[kind])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])
