"""Ragged arrays: sums, extremes and positions of segments.

`values` [T] and `offsets` [N+1]: segment i is values[offsets[i]:offsets[i+1]], usually the tokens
of response i. A reduction reads the elements of a segment in order and nothing else, so no result
depends on the other segments of a chunk.

A policy segment is a maximal run of policy tokens of one response: no observation token in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlpost.kernels.host import is_all_true, like, on_host, with_host_copy

if TYPE_CHECKING:
    from numpy.typing import NDArray


def lengths(offsets: Tensor) -> Tensor:
    """Return the length of each segment, [N] int64."""
    return offsets.diff()


def offsets_of(sizes: Tensor) -> Tensor:
    """Return the offsets [N+1] of segments of these sizes [N]."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def ends_of(offsets: Tensor) -> Tensor:
    """Return the position of the last element of each segment that is not empty, int64."""
    bounds = on_host(offsets)
    return like(bounds[1:][bounds[1:] > bounds[:-1]] - 1, offsets)


def backwards(offsets: Tensor) -> Tensor:
    """Return the offsets [N+1] of the same segments in the array with its elements reversed."""
    reverse, host = (bounds[-1] - bounds.flip(0) for bounds in (offsets, on_host(offsets)))
    return with_host_copy(reverse, host)


def spread(per_segment: Tensor, offsets: Tensor) -> Tensor:
    """Repeat the value of each segment for each of its elements: [N] -> [T]."""
    if per_segment.device.type == "cpu":
        # numpy repeats fifty times faster than torch on the CPU (0.3 against 16 ns an element).
        return torch.from_numpy(per_segment.numpy().repeat(lengths(offsets).numpy()))
    return per_segment.index_select(0, owners(offsets))


def owners(offsets: Tensor) -> Tensor:
    """Return the segment of each element, [T] int32; computed once for each tensor of offsets."""
    found: Tensor | None = getattr(offsets, "owners", None)
    if found is None:
        segments = torch.arange(offsets.numel() - 1, dtype=torch.int32, device=offsets.device)
        count = int(on_host(offsets)[-1])
        found = torch.repeat_interleave(segments, lengths(offsets), output_size=count)
        offsets.owners = found  # type: ignore[attr-defined]
    return found


def spread_or_scalar(per_segment: Tensor, offsets: Tensor) -> Tensor:
    """Return what broadcasts over the elements: `spread`, or [1] if all segments agree."""
    first = per_segment[:1]
    if per_segment.device.type == "cpu" and bool((per_segment == first).all()):
        return first
    return spread(per_segment, offsets)


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the sum of each segment in the dtype of `values`, [N]; 0 for an empty segment."""
    return _reduce(values, offsets, "sum", 0.0)


def add_segment_sums(start: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
    """Return `start` [N] plus the sum of each segment, [N]; differentiable.

    Every run adds in the same order. With `index_add` CUDA would add in a random one, by atomics.
    """
    segments = torch.repeat_interleave(lengths(offsets), output_size=values.numel())
    if start.device.type == "cpu":
        return start.index_add(0, segments, values)
    return start.index_put((segments,), values, accumulate=True)


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the maximum of each segment, [N]; -inf for an empty segment."""
    return _reduce(values, offsets, "max", -torch.inf)


def segment_min(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the minimum of each segment, [N]; inf for an empty segment."""
    return _reduce(values, offsets, "min", torch.inf)


_REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _reduce(values: Tensor, offsets: Tensor, how: str, empty: float) -> Tensor:
    if values.device.type != "cpu":
        if not values.is_floating_point():  # torch has no such sums of integers; these wrap around
            return offsets_of(values)[offsets].diff()
        return torch.segment_reduce(values, how, offsets=offsets, initial=empty, unsafe=True)
    # numpy's reduceat takes a third of the time of torch's segment_reduce on the CPU. It has no
    # notion of an empty segment, so those are left out.
    bounds = offsets.numpy()
    starts, nonempty = bounds[:-1], bounds[1:] > bounds[:-1]
    reduceat = _REDUCTIONS[how].reduceat
    if len(starts) and nonempty.all():
        return torch.from_numpy(reduceat(values.numpy(), starts))
    out = np.full(len(starts), empty, values.numpy().dtype)
    if nonempty.any():
        out[nonempty] = reduceat(values.numpy(), starts[nonempty])
    return torch.from_numpy(out)


def count_true(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the number of true elements of each segment, [N] int64."""
    if mask.device.type == "cpu" and is_all_true(mask):
        return lengths(offsets)
    return segment_sum(mask.to(torch.int64), offsets)


def positions_of(mask: Tensor) -> Tensor:
    """Return the positions of the true elements of a mask from the host, ascending, int64."""
    if mask.device.type == "cpu":
        return mask.nonzero().squeeze(1)
    count = int(on_host(mask).sum())
    # Each true element is written to its place; all others to one place behind them.
    places = torch.where(mask, mask.cumsum(0) - 1, count)
    positions = torch.arange(mask.numel(), device=mask.device)
    return positions.new_zeros(count + 1).scatter_(0, places, positions)[:count]


def last_true(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the position in [0, T) of the last true element of each segment, [N]; -1 for none."""
    if mask.numel() == 0:
        return torch.full_like(offsets[1:], -1)
    if mask.device.type != "cpu":
        positions = torch.arange(mask.numel(), device=mask.device)
        latest = torch.where(mask, positions, -1).cummax(0).values
        last = latest[(offsets[1:] - 1).clamp(min=0)]
        return torch.where((last >= offsets[:-1]) & (lengths(offsets) > 0), last, -1)
    if is_all_true(mask):
        return torch.where(lengths(offsets) > 0, offsets[1:] - 1, -1)
    true = mask.nonzero().squeeze(1)
    before = torch.searchsorted(true, offsets)
    if true.numel() == 0:
        return torch.full_like(offsets[1:], -1)
    return torch.where(before.diff() > 0, true[(before[1:] - 1).clamp(min=0)], -1)


def add_at(values: Tensor, positions: Tensor, amounts: Tensor) -> Tensor:
    """Add amounts [N] to `values` [T] in place, at positions [N]; skip position -1."""
    if values.numel() == 0:
        return values
    # -0.0 is the number whose addition changes no other, not even a zero's sign.
    amounts = torch.where(positions >= 0, amounts, -0.0)
    return values.index_add_(0, positions.clamp(min=0), amounts)


def compact_offsets(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the offsets [N+1] of the segments without the elements whose mask is false."""
    compact = offsets_of(count_true(mask, offsets))
    if mask.device.type == "cpu":
        return compact
    return with_host_copy(compact, compact_offsets(on_host(mask), on_host(offsets)))


def policy_starts(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return whether each token is the first of a policy segment, [T] bool."""
    return mask & starts_after_observations(mask, offsets)


def starts_after_observations(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return whether each token is the first of its response or follows an observation, [T]."""
    starts = torch.cat([mask.new_ones(1), ~mask])[: mask.numel()]
    if mask.device.type != "cpu":
        response = owners(offsets)
        return starts | torch.cat([mask.new_ones(1), response[1:] != response[:-1]])[: len(starts)]
    starts[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
    return starts


def policy_segments(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the offsets [K+1] of the policy segments in the array of the policy tokens alone."""
    true, starts = on_host(mask), policy_starts(on_host(mask), on_host(offsets))
    return like(_offsets_of_starts(starts[true]), mask)


def segments_of_responses(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the offsets [N+1] of each response's policy segments in the array of all of them."""
    true, bounds = on_host(mask), on_host(offsets)
    return like(compact_offsets(policy_starts(true, bounds), bounds), mask)


def cut_segments(mask: Tensor, offsets: Tensor) -> Tensor:
    """Return the offsets [K+1] of segments that begin at responses and after observations."""
    host = starts_after_observations(on_host(mask), on_host(offsets))
    segments = _offsets_of_starts(host)
    if mask.device.type == "cpu":
        return segments
    # There may be as many as observations, so they are not sent.
    starts = with_host_copy(starts_after_observations(mask, offsets), host)
    return with_host_copy(_offsets_of_starts(starts), segments)


def _offsets_of_starts(starts: Tensor) -> Tensor:
    """Return the offsets [K+1] of the segments that begin where `starts` [T] is true."""
    first = positions_of(starts)
    return torch.cat([first, first.new_full((1,), starts.numel())])


def segment_owners(inner: Tensor, offsets: Tensor) -> Tensor:
    """Return the segment of `offsets` [N+1] that contains each segment of `inner` [K+1], [K]."""
    return torch.searchsorted(offsets, inner[:-1].contiguous(), right=True) - 1


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

    offsets: Tensor
    """[m+1] of the tokens of each segment."""
    rows: Tensor
    """[n+1] of the segments of each response."""
    places: Tensor
    """[m] int64 in [0, POSITION_RANGES): the range of positions."""

    @classmethod
    def of(cls, offsets: Tensor) -> PositionSegments:
        """Return the segments of responses with these offsets, [n+1]; an empty one has none."""
        lows = torch.tensor([position_range(index)[0] for index in range(POSITION_RANGES)])
        highs = torch.cat([lows[1:], lows.new_full((1,), torch.iinfo(torch.int64).max)])
        sizes = (torch.minimum(lengths(on_host(offsets))[:, None], highs) - lows).clamp(min=0)
        nonempty = sizes > 0
        places = torch.arange(POSITION_RANGES).expand_as(sizes)[nonempty]
        inner, rows = offsets_of(sizes[nonempty]), offsets_of(nonempty.sum(1))
        return cls(like(inner, offsets), like(rows, offsets), like(places, offsets))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return self.offsets[:-1].numpy()

    @property
    def _on_cpu(self) -> bool:
        return self.offsets.device.type == "cpu"

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of each segment, [T] -> [m]."""
        # No segment is empty, so numpy's reduceat needs none of the checks of segment_sum, which
        # would take half of the time of many loss options over a few hundred responses.
        if self._on_cpu and len(self._starts):
            return torch.from_numpy(np.add.reduceat(values.numpy(), self._starts))
        return segment_sum(values, self.offsets)

    def any(self, mask: Tensor) -> Tensor:
        """Return whether any token of each segment is true, [T] -> [m] bool."""
        if self._on_cpu and len(self._starts):
            return torch.from_numpy(np.logical_or.reduceat(mask.numpy(), self._starts))
        return segment_max(mask.to(torch.float32), self.offsets) > 0

    def spread(self, values: Tensor) -> Tensor:
        """Repeat the number of each segment for each of its tokens, [m] -> [T]."""
        return spread(values, self.offsets)
