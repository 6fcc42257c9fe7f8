"""Arrow columns as numpy and polars; invalid values are kept for statistics, not rejected."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.segments import kept_offsets, segment_reduce
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, fill_nulls, is_list, is_number, is_true, to_numpy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.kernels.moments import Mask


class ListColumn(NamedTuple):
    """A list column: row i has values[offsets[i]:offsets[i + 1]]."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    nulls: NDArray[np.bool_] | None = None
    """Rows without a list, [n]; None if each row has one."""
    null_values: NDArray[np.bool_] | None = None
    """Values that are null, and NaN in `values`, [t]; None if none is."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of values of each row, [n]."""
        return np.diff(self.offsets)

    def like(self, offsets: NDArray[np.int64]) -> ListColumn:
        """Return the column with lists of other lengths, whose rows are NaN if theirs differ."""
        lengths = np.diff(offsets)
        fits = self.lengths == lengths
        if fits.all():
            return self
        to, of = np.repeat(fits, lengths), np.repeat(fits, self.lengths)
        wide, nulls = np.full(int(offsets[-1]), np.nan), None
        wide[to] = self.values[of]
        if self.null_values is not None:
            nulls = np.zeros(len(wide), np.bool_)
            nulls[to] = self.null_values[of]
        return ListColumn(offsets, wide, self.nulls, nulls)


@dataclass(frozen=True)
class Block:
    """Tokens of some responses of a chunk; all lists of a response have the same length."""

    offsets: NDArray[np.int64]
    values: Mapping[str, NDArray[Any]]
    """[T] each."""
    mask: Mask | None = None
    """[T]; None if all tokens are policy tokens."""
    nulls: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """By role, the values that are null in the file; only of roles with such values."""
    rows: NDArray[np.int64] | None = None
    """[n] places of the responses in the chunk, ascending; None: all of them."""

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.offsets) - 1

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    @property
    def places(self) -> NDArray[np.int64]:
        """The places of the responses in the chunk, [n]."""
        return np.arange(len(self)) if self.rows is None else self.rows

    def policy(self) -> Block:
        """Return the block without observation tokens."""
        if self.mask is None:
            return self
        offsets = kept_offsets(self.mask, self.offsets)
        return replace(self._tokens(self.mask), offsets=offsets, mask=None)

    def of_rows(self, keep: Mask) -> Block:
        """Return the block of some of its responses, [n] bool."""
        if keep.all():
            return self
        lengths = np.diff(self.offsets)
        offsets = np.append(0, lengths[keep].cumsum())
        return replace(self._tokens(np.repeat(keep, lengths)), offsets=offsets,
                       rows=self.places[keep])  # fmt: skip

    def _tokens(self, keep: Mask) -> Block:
        values = {name: numbers[keep] for name, numbers in self.values.items()}
        nulls = {name: flags[keep] for name, flags in self.nulls.items()}
        mask = None if self.mask is None else self.mask[keep]
        return replace(self, values=values, nulls=nulls, mask=mask)


def lists_of(array: pa.Array, location: CellLocation) -> ListColumn:
    """Return a list column; a null row is empty, a null value NaN.

    Raises:
        DataError: not a list of numbers.
    """
    if pa.types.is_null(array.type):
        empty = np.zeros(0, np.float32)
        return ListColumn(np.zeros(len(array) + 1, np.int64), empty, np.ones(len(array), np.bool_))
    if is_list(array.type) and pa.types.is_null(array.type.value_type):
        array = array.cast(pa.large_list(pa.float32()))
    if not is_list(array.type) or not is_number(array.type.value_type):
        raise location.error(0, f"is {array.type}", "a list of floats, integers or bools is needed")
    offsets = _offsets(array)
    values = array.flatten()
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    null_values = None
    if values.null_count:
        null_values = is_true(values.is_null())
        values = values.cast(pa.float64())
    nulls = is_true(array.is_null()) if array.null_count else None
    return ListColumn(offsets, fill_nulls(values, math.nan), nulls, null_values)


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    kind = array.type
    if not array.null_count and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        stored = to_numpy(array.offsets)
        return np.asarray(stored - stored[0], dtype=np.int64)
    lengths = fill_nulls(pc.list_value_length(array), 0)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def fingerprints_of(array: pa.Array, location: CellLocation) -> NDArray[np.uint64]:
    """Return a 64-bit hash per row, of a text, a list of numbers, or messages.

    Raises:
        DataError: another type.
    """
    if is_list(array.type) and not pa.types.is_nested(array.type.value_type):
        return _hashes(lists_of(array, location))
    if pa.types.is_nested(array.type):
        return ragged.fingerprints(array)
    return np.asarray(pl.Series(array).cast(pl.String).hash().to_numpy())


def _hashes(lists: ListColumn) -> NDArray[np.uint64]:
    """Return Σ mix(value) · power(position) of each row, modulo 2⁶⁴, plus the row's length."""
    values = lists.values
    bits = values.astype(np.int64) if values.dtype.kind != "f" else values.astype(np.float64)
    mixed = bits.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    longest = int(lists.lengths.max(initial=0))
    powers = np.cumprod(np.full(longest, 0x94D049BB133111EB, np.uint64), dtype=np.uint64)
    mixed *= powers[np.arange(len(values)) - np.repeat(lists.offsets[:-1], lists.lengths)]
    sums = segment_reduce(np.add, mixed, lists.offsets, np.uint64(0))
    return sums + lists.lengths.astype(np.uint64)
