"""Responses cut at fixed positions, so that numbers can be added up by position.

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

from rlpost.kernels.segments import offsets_of, segment_max, segment_sum, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
