"""Sums and offsets of ragged numpy arrays, for analyses that import no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def segment_sums(values: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums of values[offsets[i]:offsets[i + 1]], [n]; 0 for an empty row."""
    sums = np.zeros(len(offsets) - 1)
    filled = offsets[1:] > offsets[:-1]
    if filled.any():  # a segment of reduceat ends at the start of the next one
        sums[filled] = np.add.reduceat(values, offsets[:-1][filled])
    return sums


def segment_counts(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of true flags[offsets[i]:offsets[i + 1]], [n]; fast if few are true."""
    return np.diff(np.searchsorted(np.flatnonzero(flags), offsets))


def kept_offsets(keep: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets of rows of which only some values are kept."""
    before = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep, out=before[1:])
    return before[offsets]
