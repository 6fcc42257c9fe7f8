"""List columns as flat arrays, read leniently: who looks for what is wrong has to see it.

`rlpost.parquet.ragged` refuses nulls and lists of unequal length, as it should before numbers are
made of them. Here a null list is an empty one, a null element NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.parquet.ragged import is_list, is_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

Flat = tuple["NDArray[np.int64]", "NDArray[np.float64]"]


def holds_numbers(kind: pa.DataType) -> bool:
    """Whether a column of this type has a list of numbers per row."""
    return bool(is_list(kind) and is_number(kind.value_type))


def list_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Elements of each row, [n]; 0 where the list is null."""
    lengths = pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def flat(array: pa.Array) -> Flat:
    """Offsets [n+1] and values [T] of a list column; null elements are NaN."""
    offsets = np.concatenate([[0], list_lengths(array).cumsum()])
    return offsets, numbers(array.flatten())


def numbers(array: pa.Array) -> NDArray[np.float64]:
    """A column of numbers, [n] float64; nulls are NaN."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    filled = pc.fill_null(array.cast(pa.float64(), safe=False), float("nan"))
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.float64)


def mask_beside(mask: Flat | None, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask for values with these offsets, [T]; all ones in rows where the lengths differ."""
    wanted = np.diff(offsets)
    found = np.ones(int(offsets[-1]), dtype=np.bool_)
    if mask is None:
        return found
    own = np.diff(mask[0])
    same = own == wanted
    found[np.repeat(same, wanted)] = (mask[1] > 0)[np.repeat(same, own)]
    return found


def row_sums(values: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sum of each row's values, [n]; 0 for an empty row. NaN stays within its row."""
    if len(offsets) == 1:
        return np.zeros(0)
    padded = np.append(values, 0.0)
    return np.where(np.diff(offsets) > 0, np.add.reduceat(padded, offsets[:-1]), 0.0)


def row_means(
    values: NDArray[np.float64], offsets: NDArray[np.int64], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The mean of each row's values where the mask is 1, [n]; NaN where it is 1 nowhere."""
    counts = row_sums(mask.astype(np.float64), offsets)
    sums = row_sums(np.where(mask, values, 0.0), offsets)
    means = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
