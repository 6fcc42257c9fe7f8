"""Exact sums of policy tokens by position in the response: 0, 1 to 3, 4 to 15, 16 to 63, ..."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.segments import segment_sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.statistics import TokenTotals

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


class PositionSums(NamedTuple):
    """Tokens at positions `first` <= position < `end`, and means of their numbers."""

    first: int
    end: int
    tokens: int
    means: dict[str, float]

    @property
    def label(self) -> str:
        """The positions, see `span_text`."""
        return span_text(self.first, self.end)


def span_text(first: int, end: int | None) -> str:
    """Return `4 to 15` for the positions 4 <= position < 16; without an end `4 on`."""
    if end is None:
        return f"{first:,} on"
    return f"{first:,}" if end == first + 1 else f"{first:,} to {end - 1:,}"


def add_by_position(
    prefix: str, values: Mapping[str, Floats], offsets: Integers, totals: TokenTotals
) -> None:
    """Add finite numbers of policy tokens, [T] each, to sums by position."""
    bounds = bucket_bounds(offsets, [0, *_ends(int(np.diff(offsets).max(initial=0)))[:-1]])
    width = bounds.shape[1] - 1
    flat = np.append(bounds[:, :-1].reshape(-1), offsets[-1])
    keys = np.tile(np.arange(width), len(offsets) - 1)
    for name, numbers in values.items():
        totals.add_exact(f"{prefix}.{name}", segment_sums(numbers, flat), keys)
    totals.add_table(f"{prefix}.tokens", np.diff(bounds, axis=1).sum(0).astype(np.float64))


def sums_by_position(
    prefix: str, names: tuple[str, ...], totals: TokenTotals
) -> list[PositionSums]:
    """Return the positions that have tokens."""
    counts = totals.tables.get(f"{prefix}.tokens", np.zeros(0)).astype(np.int64)
    means = {name: totals.exact_means(f"{prefix}.{name}", counts) for name in names}
    return [
        PositionSums(
            4**at // 4, 4**at, int(count), {name: float(means[name][at]) for name in names}
        )
        for at, count in enumerate(counts)
        if count
    ]


def _ends(longest: int) -> list[int]:
    ends = [1]
    while ends[-1] < longest:
        ends.append(ends[-1] * 4)
    return ends


def bucket_bounds(offsets: Integers, edges: list[int]) -> Integers:
    """Return the first token of each bucket of each response, and the last end, [n, k + 1].

    Args:
        offsets: [n + 1].
        edges: [k] first positions of buckets; the last one is open.
    """
    starts = np.minimum(offsets[:-1, None] + np.array(edges), offsets[1:, None])
    return np.concatenate([starts, offsets[1:, None]], axis=1)
