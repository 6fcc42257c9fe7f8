"""Counts, sums and histograms of what losses did, which add up exactly in any order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from rlpost.kernels.aggregate import Parts
from rlpost.kernels.exact import rounded
from rlpost.kernels.quantiles import BINS
from rlpost.kernels.stretches import PLACES
from rlpost.kernels.weights import keyed_extremes
from rlpost.summary import Tally

if TYPE_CHECKING:
    from torch import Tensor

    from rlpost.summary import Totals

SIGNS, FLAT, CLIPS = 4, 2, 4
"""A kind of token is which sign its advantage has (0, positive, negative, or it is masked out),
whether it carries no gradient, and how it is clipped."""
KINDS = SIGNS * FLAT * CLIPS
ZERO, POSITIVE, NEGATIVE, OUTSIDE = range(SIGNS)


@dataclass(frozen=True)
class LossTotals:
    """What is known of a set of tokens under each setting."""

    sums: Totals
    kinds: Tensor
    """[settings, SIGNS, FLAT, CLIPS] int64."""
    bins: Tensor | None
    """[BINS] int64 of the log ratios; None by position, where there is no histogram."""


@dataclass(frozen=True)
class LossTally:
    """What losses did, by cell (step and domain) and by range of positions.

    Tallies of the same cells and settings add with `+`, in any order, to the same bits.
    """

    cells: Tally
    places: Tally
    cell_kinds: Tensor
    """[settings, cells, KINDS] int64."""
    place_kinds: Tensor
    """[settings, PLACES, KINDS] int64."""
    bins: Tensor
    """[cells, BINS] int64 of the log ratios."""

    @classmethod
    def empty(cls, cells: int, settings: int) -> LossTally:
        """The tally of no rows."""
        return cls(
            Tally(cells),
            Tally(PLACES),
            torch.zeros(settings, cells, KINDS, dtype=torch.int64),
            torch.zeros(settings, PLACES, KINDS, dtype=torch.int64),
            torch.zeros(cells, BINS, dtype=torch.int64),
        )

    def __add__(self, other: LossTally) -> LossTally:
        return LossTally(
            self.cells + other.cells,
            self.places + other.places,
            self.cell_kinds + other.cell_kinds,
            self.place_kinds + other.place_kinds,
            self.bins + other.bins,
        )

    def over(self, cells: Tensor) -> LossTotals:
        """The totals over some cells, [k] int64."""
        kinds = self.cell_kinds[:, cells].sum(1)
        return LossTotals(self.cells.over(cells), _unpacked(kinds), self.bins[cells].sum(0))

    def at(self, place: int) -> LossTotals:
        """The totals at a range of positions."""
        sums = self.places.over(torch.tensor([place]))
        return LossTotals(sums, _unpacked(self.place_kinds[:, place]), None)

    def parts(self, name: str, codes: Tensor, count: int) -> Parts:
        """A sum by batch, with what it may be divided by.

        Args:
            name: of the sum.
            codes: [cells] int64 in [0, count): the batch that a cell is part of.
            count: how many batches there are.
        """
        digits = self.cells.sums[name]
        total = digits.new_zeros(count, digits.shape[1]).index_add(0, codes, digits)
        tokens, valid, rows = (
            torch.zeros(count, dtype=torch.int64).index_add(0, codes, each) for each in self._counts
        )
        _, longest = keyed_extremes(self.cells.highs["length"], codes, count)
        return Parts(total, tokens, valid, rows, longest.clamp(min=0).to(torch.int64))

    @cached_property
    def _counts(self) -> tuple[Tensor, ...]:
        """Policy tokens, responses with one, and responses of each cell."""
        return tuple(
            rounded(self.cells.sums[name]).to(torch.int64) for name in ("tokens", "valid", "rows")
        )


def _unpacked(kinds: Tensor) -> Tensor:
    return kinds.view(-1, SIGNS, FLAT, CLIPS)
