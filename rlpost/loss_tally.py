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
from rlpost.loss_oddities import Oddities
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
class Scope:
    """Which numbers are counted, and by what."""

    batch_of: Tensor
    """[cells] int64, the batch that each cell (step and domain) is part of."""
    batches: int
    details: bool
    """Everything by cell and by position; else only the losses by batch, and all of it once."""
    behaviour: str
    """Whose log-probs the ratio that no setting changes divides by: old or infer."""
    both: bool
    """Old log-probs and those of the rollout engine are there, so their distance is measured."""

    @property
    def cells(self) -> int:
        """By how many keys everything is counted."""
        return self.batch_of.numel() if self.details else 1

    @property
    def places(self) -> int:
        """By how many ranges of positions."""
        return PLACES if self.details else 1


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
    """What losses did: by cell and by range of positions, and their sums by batch.

    Tallies of the same scope and settings add with `+`, in any order, to the same bits.
    """

    cells: Tally
    places: Tally
    """By range of positions; without details empty."""
    batches: Tally
    """What the loss of each batch is made of."""
    cell_kinds: Tensor
    """[settings, cells, KINDS] int64."""
    place_kinds: Tensor
    """[settings, places, KINDS] int64."""
    bins: Tensor
    """[cells, BINS] int64 of the log ratios."""
    odd: Oddities

    @classmethod
    def empty(cls, scope: Scope, settings: int) -> LossTally:
        """The tally of no rows."""
        return cls(
            Tally(scope.cells),
            Tally(scope.places),
            Tally(scope.batches),
            torch.zeros(settings, scope.cells, KINDS, dtype=torch.int64),
            torch.zeros(settings, scope.places, KINDS, dtype=torch.int64),
            torch.zeros(scope.cells, BINS, dtype=torch.int64),
            Oddities.none(settings),
        )

    def __add__(self, other: LossTally) -> LossTally:
        return LossTally(
            self.cells + other.cells,
            self.places + other.places,
            self.batches + other.batches,
            self.cell_kinds + other.cell_kinds,
            self.place_kinds + other.place_kinds,
            self.bins + other.bins,
            self.odd + other.odd,
        )

    def over(self, cells: Tensor) -> LossTotals:
        """The totals over some cells, [k] int64."""
        kinds = self.cell_kinds[:, cells].sum(1)
        return LossTotals(self.cells.over(cells), _unpacked(kinds), self.bins[cells].sum(0))

    def at(self, place: int) -> LossTotals:
        """The totals at a range of positions."""
        sums = self.places.over(torch.tensor([place]))
        return LossTotals(sums, _unpacked(self.place_kinds[:, place]), None)

    def parts(self, name: str) -> Parts:
        """A sum by batch, with what it may be divided by."""
        return Parts(self.batches.sums[name], *self._counts)

    @cached_property
    def _counts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy tokens, responses with one, responses, and the longest one of each batch."""
        tokens, valid, rows = (
            rounded(self.batches.sums[name]).to(torch.int64) for name in ("tokens", "valid", "rows")
        )
        longest = self.batches.highs["length"].clamp(min=0).to(torch.int64)
        return tokens, valid, rows, longest


def _unpacked(kinds: Tensor) -> Tensor:
    return kinds.view(-1, SIGNS, FLAT, CLIPS)
