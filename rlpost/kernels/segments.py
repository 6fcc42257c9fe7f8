"""Ragged arrays: sums, extremes and positions of segments.

`values` [T] and `offsets` [N+1]: segment i is values[offsets[i]:offsets[i+1]], usually the tokens
of response i. A reduction reads the elements of a segment in order and nothing else, so no result
depends on the other segments of a chunk.

A policy segment is a maximal run of policy tokens of one response: no observation token in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlpost.kernels.arrays import Array, like, namespace, on_host


def lengths(offsets: Array) -> Array:
    """Return the length of each segment, [N] int64."""
    return offsets[1:] - offsets[:-1]


def offsets_of(sizes: Array) -> Array:
    """Return the offsets [N+1] of segments of these sizes [N]."""
    xp = namespace(sizes)
    return xp.concat([xp.zeros(1, sizes), sizes.cumsum(0)])


def ends_of(offsets: Array) -> Array:
    """Return the position of the last element of each segment that is not empty, int64."""
    bounds = on_host(offsets)
    return like(bounds[1:][bounds[1:] > bounds[:-1]] - 1, offsets)


def backwards(offsets: Array) -> Array:
    """Return the offsets [N+1] of the same segments in the array with its elements reversed."""
    xp = namespace(offsets)
    reverse = offsets[-1] - xp.flip(offsets)
    return xp.with_host(reverse, lambda: backwards(on_host(offsets)))


def spread(per_segment: Array, offsets: Array) -> Array:
    """Repeat the value of each segment for each of its elements: [N] -> [T]."""
    return namespace(per_segment).spread(per_segment, offsets)


def spread_or_scalar(per_segment: Array, offsets: Array) -> Array:
    """Return what broadcasts over the elements: `spread`, or [1] if the host sees one value."""
    return namespace(per_segment).spread_or_scalar(per_segment, offsets)


def segment_sum(values: Array, offsets: Array) -> Array:
    """Return the sum of each segment in the type of `values`, [N]; 0 for an empty segment."""
    return namespace(values).reduce_segments(values, offsets, "sum")


def add_segment_sums(start: Array, values: Array, offsets: Array) -> Array:
    """Return `start` [N] plus the sum of each segment, added one by one, [N]; differentiable."""
    return namespace(values).add_segment_sums(start, values, offsets)


def segment_max(values: Array, offsets: Array) -> Array:
    """Return the maximum of each segment, [N]; -inf for an empty segment."""
    return namespace(values).reduce_segments(values, offsets, "max")


def segment_min(values: Array, offsets: Array) -> Array:
    """Return the minimum of each segment, [N]; inf for an empty segment."""
    return namespace(values).reduce_segments(values, offsets, "min")


def segment_any(mask: Array, offsets: Array) -> Array:
    """Return whether any element of each segment is true, [N] bool."""
    return namespace(mask).reduce_segments(mask, offsets, "any")


def count_true(mask: Array, offsets: Array) -> Array:
    """Return the number of true elements of each segment, [N] int64."""
    return namespace(mask).count_true(mask, offsets)


def positions_of(mask: Array) -> Array:
    """Return the positions of the true elements of a mask from the host, ascending, int64."""
    return namespace(mask).positions_of(mask)


def last_true(mask: Array, offsets: Array) -> Array:
    """Return the position in [0, T) of the last true element of each segment, [N]; -1 for none."""
    return namespace(mask).last_true(mask, offsets)


def add_at(values: Array, positions: Array, amounts: Array) -> Array:
    """Return values [T] plus amounts [N] at positions, which all differ; -1 adds nothing."""
    return namespace(values).add_at(values, positions, amounts)


def compact_offsets(mask: Array, offsets: Array) -> Array:
    """Return the offsets [N+1] of the segments without the elements whose mask is false."""
    compact = offsets_of(count_true(mask, offsets))
    return namespace(mask).with_host(
        compact, lambda: compact_offsets(on_host(mask), on_host(offsets))
    )


def policy_starts(mask: Array, offsets: Array) -> Array:
    """Return whether each token is the first of a policy segment, [T] bool."""
    return mask & starts_after_observations(mask, offsets)


def starts_after_observations(mask: Array, offsets: Array) -> Array:
    """Return whether each token is the first of its response or follows an observation, [T]."""
    return namespace(mask).starts_after_observations(mask, offsets)


def policy_segments(mask: Array, offsets: Array) -> Array:
    """Return the offsets [K+1] of the policy segments in the array of the policy tokens alone."""
    true, starts = on_host(mask), policy_starts(on_host(mask), on_host(offsets))
    return like(_offsets_of_starts(starts[true]), mask)


def segments_of_responses(mask: Array, offsets: Array) -> Array:
    """Return the offsets [N+1] of each response's policy segments in the array of all of them."""
    true, bounds = on_host(mask), on_host(offsets)
    return like(compact_offsets(policy_starts(true, bounds), bounds), mask)


def cut_segments(mask: Array, offsets: Array) -> Array:
    """Return the offsets [K+1] of segments that begin at responses and after observations."""
    # There may be as many as observations, so those of the host are not sent.
    xp = namespace(mask)
    starts = starts_after_observations(mask, offsets)
    starts = xp.with_host(
        starts, lambda: starts_after_observations(on_host(mask), on_host(offsets))
    )
    return _offsets_of_starts(starts)


def _offsets_of_starts(starts: Array) -> Array:
    """Return the offsets [K+1] of the segments that begin where `starts` [T] is true."""
    xp, first = namespace(starts), positions_of(starts)
    offsets = xp.concat([first, xp.full(1, len(starts), first)])
    return xp.with_host(offsets, lambda: _offsets_of_starts(on_host(starts)))


def segment_owners(inner: Array, offsets: Array) -> Array:
    """Return the segment of `offsets` [N+1] that contains each segment of `inner` [K+1], [K]."""
    return namespace(offsets).searchsorted(offsets, inner[:-1], side="right") - 1


POSITION_RANGES = 20
"""Number of ranges of positions in a response: 0 to 7, 8 to 15, 16 to 31, ..., 2097152 and up."""
_FIRST_RANGE = 8


def position_range(index: int) -> tuple[int, int | None]:
    """Return the first and the last position of a range; None if it has no end.

    >>> [position_range(index) for index in (0, 1, 2, POSITION_RANGES - 1)]
    [(0, 7), (8, 15), (16, 31), (2097152, None)]
    """
    first = 0 if index == 0 else _FIRST_RANGE << (index - 1)
    return first, None if index == POSITION_RANGES - 1 else (_FIRST_RANGE << index) - 1


@dataclass(frozen=True)
class PositionSegments:
    """Responses cut at the ends of position ranges, so that sums can be reported by position.

    Tokens are summed within each segment, in order; the sums of the segments are then added by
    range, exactly. So neither the order nor the chunking of responses changes a result.
    """

    offsets: Array
    """[m+1] of the tokens of each segment; none is empty."""
    rows: Array
    """[n+1] of the segments of each response."""
    places: Array
    """[m] int64 in [0, POSITION_RANGES): the range of positions."""

    @classmethod
    def of(cls, offsets: Array) -> PositionSegments:
        """Return the segments of responses with these offsets, [n+1]; an empty one has none."""
        lows = np.array([position_range(index)[0] for index in range(POSITION_RANGES)])
        highs = np.append(lows[1:], np.iinfo(np.int64).max)
        sizes = np.maximum(np.minimum(lengths(on_host(offsets))[:, None], highs) - lows, 0)
        nonempty = sizes > 0
        places = np.broadcast_to(np.arange(POSITION_RANGES), sizes.shape)[nonempty]
        inner, rows = offsets_of(sizes[nonempty]), offsets_of(nonempty.sum(1))
        return cls(like(inner, offsets), like(rows, offsets), like(places, offsets))

    def sum(self, values: Array) -> Array:
        """Return the sum of each segment, [T] -> [m]."""
        return segment_sum(values, self.offsets)

    def spread(self, values: Array) -> Array:
        """Repeat the number of each segment for each of its tokens, [m] -> [T]."""
        return spread(values, self.offsets)
