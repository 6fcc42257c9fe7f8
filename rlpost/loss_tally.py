"""Counts, sums and histograms of what losses did, which add up exactly in any order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from rlpost.kernels.aggregate import Parts
from rlpost.kernels.exact import rounded
from rlpost.kernels.stretches import PLACES
from rlpost.loss_oddities import Oddities
from rlpost.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlpost.tally import Totals

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
    """It counts kinds, [settings, KINDS], and the bins of log ratios, [BINS], too."""
    places: Tally
    """By range of positions; without details empty."""
    batches: Tally
    """What the loss of each batch is made of."""
    place_kinds: Tensor
    """[settings, places, KINDS] int64."""
    batch_count: int
    """How many batches the whole input has."""
    odd: Oddities

    @classmethod
    def empty(cls, scope: Scope, settings: int) -> LossTally:
        """The tally of no rows."""
        return cls(
            Tally(),
            Tally(),
            Tally(),
            torch.zeros(settings, scope.places, KINDS, dtype=torch.int64),
            scope.batches,
            Oddities.none(settings),
        )

    def __add__(self, other: LossTally) -> LossTally:
        return LossTally(
            self.cells + other.cells,
            self.places + other.places,
            self.batches + other.batches,
            self.place_kinds + other.place_kinds,
            self.batch_count,
            self.odd + other.odd,
        )

    def total(self) -> LossTotals:
        """The totals over all cells."""
        return self.over(self.cells.keys)

    def over(self, cells: Sequence[int]) -> LossTotals:
        """The totals over some cells."""
        kinds, bins = self.cells.counted(cells)
        return LossTotals(self.cells.over(cells), _unpacked(kinds), bins)

    def at(self, place: int) -> LossTotals:
        """The totals at a range of positions."""
        sums = self.places.over([place])
        return LossTotals(sums, _unpacked(self.place_kinds[:, place]), None)

    def parts(self, name: str) -> Parts:
        """A sum by batch, with what it may be divided by."""
        return Parts(self.batches.digits(name, self.batch_count), *self._counts)

    @cached_property
    def _counts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy tokens, responses with one, responses, and the longest one of each batch."""
        tokens, valid, rows = (
            rounded(self.batches.digits(name, self.batch_count)).to(torch.int64)
            for name in ("tokens", "valid", "rows")
        )
        longest = self.batches.highest("length", self.batch_count).clamp(min=0).to(torch.int64)
        return tokens, valid, rows, longest


def _unpacked(kinds: Tensor) -> Tensor:
    return kinds.view(-1, SIGNS, FLAT, CLIPS)
