"""Arrow columns as numpy and polars, as they are: what is wrong is counted, not refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, fill_nulls, is_list, is_number, is_true, to_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Lists(NamedTuple):
    """A list column: row i has values[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    nulls: NDArray[np.bool_] | None = None
    """Rows without a list, [n]; None where each has one."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Values of each row, [n]."""
        return np.diff(self.offsets)


def lists_of(array: pa.Array, place: CellLocation) -> Lists:
    """A list column; a null row is empty, a null value NaN.

    Raises:
        DataError: not a list of numbers.
    """
    if pa.types.is_null(array.type):
        none, every = np.zeros(0, np.float32), np.ones(len(array), np.bool_)
        return Lists(np.zeros(len(array) + 1, np.int64), none, every)
    if is_list(array.type) and pa.types.is_null(array.type.value_type):
        array = array.cast(pa.large_list(pa.float32()))
    if not is_list(array.type) or not is_number(array.type.value_type):
        raise place.error(0, f"is {array.type}", "a list of floats, integers or bools is needed")
    offsets = _offsets(array)
    values = array.flatten()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if values.null_count:
        values = values.cast(pa.float64())
    nulls = is_true(array.is_null()) if array.null_count else None
    return Lists(offsets, fill_nulls(values, math.nan), nulls)


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    kind = array.type
    if not array.null_count and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        found = to_numpy(array.offsets)
        return np.asarray(found - found[0], dtype=np.int64)
    lengths = fill_nulls(pc.list_value_length(array), 0)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def numbers_of(array: pa.Array, place: CellLocation) -> NDArray[np.float64]:
    """One float64 per row: a list is summed; a null, or an empty column, is NaN.

    Raises:
        DataError: neither a number nor a list of numbers.
    """
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    if is_list(array.type):
        found = lists_of(array, place)
        sums = segment_sums(found.values.astype(np.float64), found.offsets)
        missing = is_true(array.is_null())
        return np.where(missing, np.nan, sums)
    return ragged.numbers(array, place)


def keys_of(array: pa.Array, place: CellLocation) -> pl.Series:
    """Names or numbers that tell rows apart: Int64 or String; a null stays one.

    Raises:
        DataError: another type.
    """
    if pa.types.is_null(array.type):
        return pl.Series([None] * len(array), dtype=pl.String)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int64())
    if pa.types.is_floating(array.type) and not _is_whole(array):
        array = array.cast(pa.string())
    there = ragged.key(array.drop_null(), place)
    known = pl.Series(there)
    if not array.null_count:
        return known
    valid = pl.Series(array.is_valid())
    places = (valid.cast(pl.Int64).cum_sum() - 1).to_numpy()
    return known.gather(places.clip(0)).zip_with(valid, known.clear(len(valid)))


def _is_whole(array: pa.Array) -> bool:
    return bool(pc.all(pc.equal(array, pc.round(array))).as_py() is not False)


def truncated_of(array: pa.Array, place: CellLocation) -> NDArray[np.bool_]:
    """Whether each response hit the length limit; a null column says no.

    Raises:
        DataError: neither a bool nor a string.
    """
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        array = pc.equal(array, 1)
    return ragged.truncated(array, place)


def fingerprints_of(array: pa.Array, place: CellLocation) -> NDArray[np.uint64]:
    """A 64-bit hash per row, of a text or of a list of numbers; equal rows have equal ones.

    Raises:
        DataError: another type.
    """
    if is_list(array.type):
        found = lists_of(array, place)
        return _hashed(found)
    return np.asarray(pl.Series(array).cast(pl.String).hash().to_numpy())


def characters_of(array: pa.Array) -> NDArray[np.int64]:
    """Bytes of each row's text, which are its characters in ASCII; of a list its length."""
    if is_list(array.type):
        lengths = pc.list_value_length(array)
    else:
        lengths = pc.binary_length(array.cast(pa.large_string()))
    return fill_nulls(lengths, 0).astype(np.int64)


def _hashed(lists: Lists) -> NDArray[np.uint64]:
    """Σ mix(value) · power(place), over each row, modulo 2⁶⁴, and the row's length."""
    values = lists.values
    bits = values.astype(np.int64) if values.dtype.kind != "f" else values.astype(np.float64)
    mixed = bits.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    longest = int(lists.lengths.max(initial=0))
    powers = np.cumprod(np.full(longest, 0x94D049BB133111EB, np.uint64), dtype=np.uint64)
    mixed *= powers[np.arange(len(values)) - np.repeat(lists.offsets[:-1], lists.lengths)]
    sums = np.zeros(len(lists.lengths), np.uint64)
    some = lists.lengths > 0
    if some.any():
        sums[some] = np.add.reduceat(mixed, lists.offsets[:-1][some])
    return sums + lists.lengths.astype(np.uint64)


def segment_sums(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums of values[offsets[i]:offsets[i + 1]], [n]; 0 for an empty one."""
    sums = np.zeros(len(offsets) - 1)
    some = offsets[1:] > offsets[:-1]
    if some.any():  # reduceat takes a segment to end where the next one that is given starts
        sums[some] = np.add.reduceat(values, offsets[:-1][some])
    return sums


def kept_offsets(keep: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets of what is left of each row when only some values are kept."""
    before = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep, out=before[1:])
    return before[offsets]
