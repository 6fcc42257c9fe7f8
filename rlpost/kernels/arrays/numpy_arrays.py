"""Functions of numpy's arrays; `torch_arrays` has the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Numbers = NDArray[Any]
    Integers = NDArray[np.int64]
    Mask = NDArray[np.bool_]


bool = np.bool_  # noqa: A001 - the names of the array API standard
float32, float64, int32, int64, uint8 = np.float32, np.float64, np.int32, np.int64, np.uint8
diff, exp, expm1, log, sign, sqrt = np.diff, np.exp, np.expm1, np.log, np.sign, np.sqrt
concat, flip, stack, where = np.concatenate, np.flip, np.stack, np.where
flatnonzero, isfinite, isin, isnan = np.flatnonzero, np.isfinite, np.isin, np.isnan
maximum, minimum, searchsorted = np.maximum, np.minimum, np.searchsorted
ones_like, zeros_like = np.ones_like, np.zeros_like


def astype(values: Numbers, dtype: Any) -> Numbers:
    """Return the values in another type; the same array if they have it."""
    return values.astype(dtype, copy=False)


def reinterpreted(values: Numbers, dtype: Any) -> Numbers:
    """Return the bits of the values as another type of the same size."""
    return values.view(dtype)


def constant(values: Numbers) -> Numbers:
    """Return the values as a constant for gradients."""
    return values


def arange(count: int, _: Numbers) -> Integers:
    """Return 0 to count - 1, int64, on the device of another array."""
    return np.arange(count, dtype=np.int64)


def zeros(shape: int | tuple[int, ...], other: Numbers) -> Numbers:
    """Return zeros in the type and on the device of another array."""
    return np.zeros(shape, other.dtype)


def full(shape: int | tuple[int, ...], value: float, other: Numbers) -> Numbers:
    """Return one value everywhere, in the type and on the device of another array."""
    return np.full(shape, value, other.dtype)


def placed(values: Numbers, positions: Integers, count: int) -> Numbers:
    """Return zeros, [count], with values at positions, which all differ."""
    out = np.zeros((count, *values.shape[1:]), values.dtype)
    out[positions] = values
    return out


def filled(values: Numbers, positions: Integers, value: float) -> Numbers:
    """Return the values with one value at some positions."""
    out = values.copy()
    out[positions] = value
    return out


def on_host(array: Numbers) -> Numbers:
    """Return the array as one of numpy."""
    return array


def like(host: Numbers, _: Numbers) -> Numbers:
    """Return an array of numpy in the library and on the device of another."""
    return host


def with_host(array: Numbers, _: Callable[[], Numbers]) -> Numbers:
    """Return an array of a device with a copy on the host that the function computes."""
    return array


def is_all_true(mask: Mask) -> np.bool_:
    """Return whether a mask is true everywhere."""
    return mask.all()


def all_true(count: int, _: Numbers) -> Mask:
    """Return a mask that is true everywhere, [count]."""
    return np.ones(count, np.bool_)


def spread(per_segment: Numbers, offsets: Integers) -> Numbers:
    """Repeat the value of each segment for each of its elements: [N] -> [T]."""
    return per_segment.repeat(np.diff(offsets))


def spread_or_scalar(per_segment: Numbers, offsets: Integers) -> Numbers:
    """Return what broadcasts over the elements: `spread`, or [1] if all segments agree."""
    first = per_segment[:1]
    return first if (per_segment == first).all() else spread(per_segment, offsets)


_REDUCTIONS = {
    "sum": (np.add, 0),
    "max": (np.maximum, -np.inf),
    "min": (np.minimum, np.inf),
    "any": (np.logical_or, False),
}


def reduce_segments(values: Numbers, offsets: Integers, how: str) -> Numbers:
    """Return the `sum`, `max`, `min` or `any` of each segment, [N].

    An empty segment has 0, -inf, inf or false.
    """
    # reduceat has no notion of an empty segment, so those are left out.
    function, empty = _REDUCTIONS[how]
    starts, nonempty = offsets[:-1], offsets[1:] > offsets[:-1]
    if len(starts) and nonempty.all():
        return function.reduceat(values, starts)
    out = np.full(len(starts), empty, values.dtype)
    if nonempty.any():
        out[nonempty] = function.reduceat(values, starts[nonempty])
    return out


def add_segment_sums(start: Numbers, values: Numbers, offsets: Integers) -> Numbers:
    """Return `start` [N] plus the sum of each segment, added one by one, [N]."""
    out = start.copy()
    np.add.at(out, np.repeat(np.arange(len(start)), np.diff(offsets)), values)
    return out


def positions_of(mask: Mask) -> Integers:
    """Return the positions of the true elements of a mask, ascending, int64."""
    return np.flatnonzero(mask)


def count_true(mask: Mask, offsets: Integers) -> Integers:
    """Return the number of true elements of each segment, [N] int64."""
    if mask.all():
        return np.diff(offsets)
    return reduce_segments(mask.astype(np.int64), offsets, "sum")


def last_true(mask: Mask, offsets: Integers) -> Integers:
    """Return the position in [0, T) of the last true element of each segment, [N]; -1 for none."""
    if mask.all():
        return np.where(np.diff(offsets) > 0, offsets[1:] - 1, -1)
    true = np.flatnonzero(mask)
    before = np.searchsorted(true, offsets)
    if not len(true):
        return np.full(len(offsets) - 1, -1)
    return np.where(np.diff(before) > 0, true[np.maximum(before[1:] - 1, 0)], -1)


def add_at(values: Numbers, positions: Integers, amounts: Numbers) -> Numbers:
    """Return values [T] plus amounts [N] at positions, which all differ; -1 adds nothing."""
    out, there = values.copy(), positions >= 0
    out[positions[there]] += amounts[there]
    return out


def starts_after_observations(mask: Mask, offsets: Integers) -> Mask:
    """Return whether each token is the first of its segment or follows a false element, [T]."""
    starts = np.empty(len(mask), np.bool_)
    starts[1:] = ~mask[:-1]
    starts[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
    return starts


def count_codes(codes: Numbers, count: int, amounts: Integers | None = None) -> Integers:
    """Return how often each code in [0, count) occurs, or the sum of its amounts, [count] int64."""
    counts = np.bincount(codes, minlength=count)
    if amounts is not None:
        counts = np.zeros_like(counts)
        np.add.at(counts, codes, amounts)
    return counts


_MOST_BITS = 63


def canonical_order(codes: Integers, *columns: Numbers) -> Integers:
    """Return the order of rows by code, then by the values of the columns, [N]."""
    order: Integers | None = None
    for key in (*reversed(columns), codes):
        order = _sorted_by(key, order)
    assert order is not None
    return order


def _sorted_by(key: Numbers, order: Integers | None) -> Integers:
    """Return a stable sort of the rows, in the order so far, by a key."""
    if key.dtype.kind != "f" and len(key):
        return _sorted_by_code(key, order)
    if order is not None:
        return order[np.argsort(key[order], kind="stable")]
    return np.argsort(key)  # equal values are equal; with vector instructions


def _sorted_by_code(key: Numbers, order: Integers | None) -> Integers:
    """Return `_sorted_by` for integers and bools.

    Key and index are sorted as one number, if 63 bits are enough.
    """
    index_bits = len(key).bit_length()
    key = key.astype(np.int64, copy=False)
    low, high = int(key.min()), int(key.max())
    rows = np.arange(len(key)) if order is None else order
    if (high - low).bit_length() + index_bits > _MOST_BITS:
        return rows[np.argsort(key[rows], kind="stable")]
    both = key[rows]
    both -= low
    both <<= index_bits
    both += np.arange(len(key))
    both.sort()
    both &= (1 << index_bits) - 1
    return rows[both]


def blocks_of(offsets: Integers, ends: Integers, size: int) -> ArrayBlocks:
    """Return the blocks of a ragged array; the arguments are those of `ArrayBlocks`."""
    return ArrayBlocks(offsets, ends, size)


class ArrayBlocks:
    """The blocks of a ragged array, each of some places; a segment is at the end of its blocks.

    Args:
        offsets: [N+1] of the segments.
        ends: [N+1] the blocks of each segment.
        size: places of a block.
    """

    def __init__(self, offsets: Integers, ends: Integers, size: int) -> None:
        sizes = np.diff(offsets)
        self._size, self._first = size, ends[:-1][sizes > 0]
        later = np.tri(size, dtype=np.bool_).T  # [i, j]: whether place j is at or after place i
        self._inside = np.ones((int(ends[-1]), size), np.bool_)
        self._inside[self._first] = later[-sizes[sizes > 0] % size]

    def scanned(self, values: Numbers, decay: float) -> Numbers:
        """Return the scan of each block on its own, [size, blocks]; zeros before a segment."""
        rows = np.empty((self._size, len(self._inside)), values.dtype)
        rows[:, self._first] = 0.0
        rows.T[self._inside] = values
        product = np.empty_like(rows[0])
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are as in torch
            for place in reversed(range(self._size - 1)):
                rows[place] += np.multiply(rows[place + 1], decay, out=product)
        return rows

    def add(self, rows: Numbers, carry: Numbers, decay: float) -> Numbers:
        """Return the scan of each block with that of the next block's first element.

        The rows are those of `scanned`, and may change.
        """
        product = np.empty_like(carry)
        with np.errstate(over="ignore", invalid="ignore"):
            for place in range(self._size):
                rows[place] += np.multiply(carry, decay ** (self._size - place), out=product)
        return rows

    def joined(self, rows: Numbers) -> Numbers:
        """Return the elements of the segments, [T]."""
        elements: Numbers = rows.T[self._inside]
        return elements
