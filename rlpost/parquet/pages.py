"""Parquet data pages: levels, value layouts and headers, for columns without nulls."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from rlpost.parquet.footer import Struct, Wire, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_VALUES = 1 << 18  # 1 MB of float32, pyarrow's own page size
RLE = 3


def pages_of(offsets: np.ndarray) -> Iterator[np.ndarray]:
    """Cut offsets at rows, so that a page has at most PAGE_VALUES values or one row."""
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + PAGE_VALUES, side="right")) - 1
        last = min(max(last, first + 1), first + PAGE_VALUES)
        yield offsets[first : last + 1]
        first = last


def repetition_levels(lengths: np.ndarray) -> bytes:
    """Encode 0 for the first value of each row and 1 for the others."""
    counts = np.stack([np.ones_like(lengths), np.maximum(lengths - 1, 0)], axis=1)
    return _runs(counts.ravel(), np.tile([0, 1], len(lengths)))


def definition_levels(lengths: np.ndarray, empty: int, deepest: int) -> bytes:
    """Encode `deepest` for every value and `empty` for every empty row."""
    if lengths.all():
        return _runs(lengths.sum(keepdims=True), np.array([deepest]))
    return _runs(np.maximum(lengths, 1), np.where(lengths, deepest, empty))


def _runs(counts: np.ndarray, levels: np.ndarray) -> bytes:
    """Encode runs of levels below 256 in Parquet's RLE: the varint of 2 * count, then the level."""
    header = counts.astype(np.int64) << 1
    shifted = header[:, None] >> np.arange(0, 35, 7)
    cells = np.empty((len(counts), 6), np.uint8)
    cells[:, :5] = shifted & 127 | (shifted > 127) << 7  # noqa: PLR2004
    cells[:, 5] = levels
    present = np.column_stack([shifted > 0, counts > 0])
    return cells[present].tobytes()


def plain_scalars(values: np.ndarray) -> bytes:
    """PLAIN encoding of one value a row: bools are bits, from the lowest on."""
    if values.dtype == np.bool_:
        return np.packbits(values, bitorder="little").tobytes()
    return values.tobytes()


def bounds_of(values: np.ndarray) -> list[bytes]:
    """Least and greatest value, in PLAIN encoding, as Parquet has them: -0 is below 0.

    There are none of no values, and none where there is NaN.
    """
    if not len(values):
        return []
    low, high = values.min(keepdims=True), values.max(keepdims=True)
    if values.dtype != np.bool_:
        if np.isnan(low[0]):
            return []
        low, high = np.where(low == 0, -np.zeros_like(low), low), high + np.zeros_like(high)
    return [plain_scalars(low), plain_scalars(high)]


def prefixed(data: bytes) -> bytes:
    """Levels behind their length, as version 1 data pages have them."""
    return struct.pack("<I", len(data)) + data


def byte_planes(values: np.ndarray) -> np.ndarray:
    """Lay out floats as BYTE_STREAM_SPLIT does: every value's first byte, then every second."""
    words = values.view(f"u{values.itemsize}")
    planes = np.empty((values.itemsize, len(values)), np.uint8)
    for place, plane in enumerate(planes):
        plane[:] = words >> words.dtype.type(8 * place)
    return planes.ravel()


def page_header(uncompressed: int, compressed: int, values: int, encoding: int) -> bytes:
    """The header of a version 1 data page; levels are in RLE."""
    data = Struct().put(1, Wire.I32, values).put(2, Wire.I32, encoding)
    data.put(3, Wire.I32, RLE).put(4, Wire.I32, RLE)
    page = Struct().put(1, Wire.I32, 0).put(2, Wire.I32, uncompressed)
    return encode(page.put(3, Wire.I32, compressed).put(5, Wire.STRUCT, data))
