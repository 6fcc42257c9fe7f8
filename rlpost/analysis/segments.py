"""Sums, extremes and offsets of ragged numpy arrays, for analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def segment_reduce(
    how: np.ufunc, values: NDArray[Any], offsets: NDArray[np.int64], empty: Any
) -> NDArray[Any]:
    """Return a function, such as np.minimum, of values[offsets[i]:offsets[i + 1]], [n].

    Args:
        how: a function of two numbers.
        values: [t].
        offsets: [n + 1].
        empty: the result of an empty row; its type is that of all results.
    """
    results = np.full(len(offsets) - 1, empty)
    filled = offsets[1:] > offsets[:-1]
    if filled.any():  # a segment of reduceat ends at the start of the next one
        results[filled] = how.reduceat(values, offsets[:-1][filled])
    return results


def segment_sums(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums of values[offsets[i]:offsets[i + 1]], [n]; 0 for an empty row."""
    return segment_reduce(np.add, values, offsets, 0.0)


def segment_counts(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of true flags[offsets[i]:offsets[i + 1]], [n]; fast if few are true."""
    return np.diff(np.searchsorted(np.flatnonzero(flags), offsets))


def kept_offsets(keep: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of rows of which only some values are kept."""
    before = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep, out=before[1:])
    return before[offsets]
