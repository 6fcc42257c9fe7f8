"""Ragged arrays: `values` [T] and `offsets` [N+1]; segment i is values[offsets[i]:offsets[i+1]].

Every sum here depends on its own segment alone, element after element, so that no result
changes with what else is in the chunk.

Stretches of tokens between observations, inside ragged responses.

Responses cut at fixed positions, so that numbers can be added up by position.

Sums over tokens are taken of each stretch by itself first; only these few sums are then added by
position, exactly, so that neither order nor pieces can change the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


def policy_starts(mask: Tensor, offsets: Tensor) -> Tensor:
    """Where a contiguous segment of policy tokens begins, [T] bool."""
    return mask & _behind_observation(mask, offsets)


def cut_starts(mask: Tensor, offsets: Tensor) -> Tensor:
    """Where a stretch begins if every observation ends one, as its last token, [T] bool."""
    return _behind_observation(mask, offsets)


def _behind_observation(mask: Tensor, offsets: Tensor) -> Tensor:
    """Whether a token is the first of its response or follows an observation, [T] bool."""
    starts = torch.cat([mask.new_ones(1), ~mask])[: mask.numel()]
    starts[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
    return starts


def bounds_of(starts: Tensor) -> Tensor:
    """Offsets [K+1] of the stretches that begin where `starts` [T] is true, its first included."""
    begins = starts.nonzero().squeeze(1)
    return torch.cat([begins, begins.new_tensor([starts.numel()])])


def owners(bounds: Tensor, offsets: Tensor) -> Tensor:
    """Which response each stretch belongs to, [K]."""
    return torch.searchsorted(offsets, bounds[:-1].contiguous(), right=True) - 1


def lengths(offsets: Tensor) -> Tensor:
    """Length of each segment, [N] int64."""
    return offsets.diff()


def offsets_of(sizes: Tensor) -> Tensor:
    """Offsets [N+1] of segments of these sizes [N]."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def spread(per_segment: Tensor, offsets: Tensor) -> Tensor:
    """Repeat each segment's value over its elements: [N] -> [T]."""
    sizes = lengths(offsets)
    if per_segment.device.type == "cpu":
        # numpy repeats fifty times faster than torch on the CPU (0.3 against 16 ns an element).
        return torch.from_numpy(per_segment.numpy().repeat(sizes.numpy()))
    return torch.repeat_interleave(per_segment, sizes, output_size=int(offsets[-1]))


def beside(per_segment: Tensor, offsets: Tensor) -> Tensor:
    """Each segment's value, to be combined with its elements: `spread`, or [1] for one value."""
    first = per_segment[:1]
    if per_segment.device.type == "cpu" and bool((per_segment == first).all()):
        return first
    return spread(per_segment, offsets)


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Sum of each segment in its own dtype, [N]; 0 for an empty one."""
    return _reduce(values, offsets, "sum", 0.0)


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    """Maximum of each segment, [N]; -inf for an empty one."""
    return _reduce(values, offsets, "max", -torch.inf)


def segment_min(values: Tensor, offsets: Tensor) -> Tensor:
    """Minimum of each segment, [N]; inf for an empty one."""
    return _reduce(values, offsets, "min", torch.inf)


_REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def _reduce(values: Tensor, offsets: Tensor, how: str, empty: float) -> Tensor:
    if values.device.type != "cpu":
        return torch.segment_reduce(values, how, offsets=offsets, initial=empty, unsafe=True)
    # numpy's reduceat takes a third of the time of torch's segment_reduce on the CPU, and like it
    # goes over each segment by itself. It has no notion of an empty one, so those are left out.
    full = lengths(offsets) > 0
    out = torch.full(full.shape, empty, dtype=values.dtype)
    starts = offsets[:-1][full].numpy()
    if len(starts):
        out[full] = torch.from_numpy(_REDUCTIONS[how].reduceat(values.numpy(), starts))
    return out


def count_true(mask: Tensor, offsets: Tensor) -> Tensor:
    """How many elements of each segment are true, [N] int64."""
    if bool(mask.all()):
        return lengths(offsets)
    return torch.searchsorted(mask.nonzero().squeeze(1), offsets).diff()


def last_true(mask: Tensor, offsets: Tensor) -> Tensor:
    """Position in [0, T) of each segment's last true element; -1 where there is none."""
    if bool(mask.all()):
        return torch.where(lengths(offsets) > 0, offsets[1:] - 1, -1)
    true = mask.nonzero().squeeze(1)
    before = torch.searchsorted(true, offsets)
    if true.numel() == 0:
        return torch.full_like(offsets[1:], -1)
    return torch.where(before.diff() > 0, true[(before[1:] - 1).clamp(min=0)], -1)


def put_at(values: Tensor, positions: Tensor, amounts: Tensor) -> Tensor:
    """Add amounts [N] to `values` [T], in place, at positions [N]; position -1 is left out."""
    there = positions >= 0
    return values.index_add_(0, positions[there], amounts[there])


def keep(mask: Tensor, offsets: Tensor) -> Tensor:
    """Offsets [N+1] of the segments once the elements with a false mask are taken out."""
    return offsets_of(count_true(mask, offsets))


FIRST = 8
PLACES = 20
"""Ranges of positions: 0 to 7, 8 to 15, 16 to 31 and so on, the last one open."""


def bounds(place: int) -> tuple[int, int | None]:
    """The first and the last position of a range; None for the open one.

    >>> [bounds(place) for place in (0, 1, 2, PLACES - 1)]
    [(0, 7), (8, 15), (16, 31), (2097152, None)]
    """
    first = 0 if place == 0 else FIRST << (place - 1)
    return first, None if place == PLACES - 1 else (FIRST << place) - 1


@dataclass(frozen=True)
class Stretches:
    """The tokens of one response within one range of positions, for all responses of a block."""

    offsets: Tensor
    """[m+1] of the tokens."""
    rows: Tensor
    """[n+1] of the stretches of each response."""
    places: Tensor
    """[m] int64 in [0, PLACES): the range of positions."""

    @classmethod
    def of(cls, lengths: Tensor) -> Stretches:
        """The stretches of responses of these lengths, [n] int64; an empty one has none."""
        starts = [bounds(place)[0] for place in range(PLACES)]
        lows = torch.tensor(starts, device=lengths.device)
        highs = torch.cat([lows[1:], lows.new_full((1,), torch.iinfo(torch.int64).max)])
        sizes = (torch.minimum(lengths[:, None], highs) - lows).clamp(min=0)
        there = sizes > 0
        places = torch.arange(PLACES, device=lengths.device).expand_as(sizes)
        return cls(offsets_of(sizes[there]), offsets_of(there.sum(1)), places[there])

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return self.offsets[:-1].numpy()

    @property
    def _on_cpu(self) -> bool:
        return self.offsets.device.type == "cpu"

    def sum(self, values: Tensor) -> Tensor:
        """The sum of each stretch, [T] -> [m]."""
        # No stretch is empty, so numpy's reduceat needs none of segment_sum's precautions: many
        # settings over a few hundred responses would spend half their time on these.
        if self._on_cpu and len(self._starts):
            return torch.from_numpy(np.add.reduceat(values.numpy(), self._starts))
        return segment_sum(values, self.offsets)

    def any(self, mask: Tensor) -> Tensor:
        """Whether any token of each stretch is true, [T] -> [m] bool."""
        if self._on_cpu and len(self._starts):
            return torch.from_numpy(np.logical_or.reduceat(mask.numpy(), self._starts))
        return segment_max(mask.to(torch.float32), self.offsets) > 0

    def spread(self, values: Tensor) -> Tensor:
        """Repeat each stretch's number over its tokens, [m] -> [T]."""
        return spread(values, self.offsets)
