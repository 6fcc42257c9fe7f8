"""Counts, sums and histograms of what losses did, which add up exactly in any order.

What log-probs should not be: positive, or far from one another; counted, not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from rlpost.kernels.aggregate import Parts
from rlpost.kernels.moments import rounded
from rlpost.kernels.segments import PLACES
from rlpost.pipeline.metrics import ROUNDING
from rlpost.pipeline.totals import ExactTotals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlpost.losses import Tokens
    from rlpost.pipeline.stages.loss import LossConfig
    from rlpost.pipeline.totals import Totals


POLICIES = {
    "new": "log_probs",
    "old": "old_log_probs",
    "infer": "infer_log_probs",
    "ref": "ref_log_probs",
}
"""Where Tokens have the log-probs of each role."""


@dataclass(frozen=True)
class Oddities:
    """What log-probs cannot be, or should not: counts of tokens, and how far they go."""

    positive: Tensor
    """[POLICIES] int64: above 0 by more than rounding."""
    low: Tensor
    """[POLICIES] float64: the least."""
    high: Tensor
    """[POLICIES] float64: the greatest."""
    clamped: Tensor
    """[settings] int64: with a log ratio that the setting clamps."""
    kl_clamped: Tensor
    """[settings] int64: whose KL from the reference the setting clamps."""
    far: Tensor
    """[1] float64: the greatest |log ratio|."""

    @classmethod
    def of(
        cls, tokens: Tokens, base: Tokens, settings: Sequence[LossConfig], kl_clamped: Sequence[int]
    ) -> Oddities:
        """Those of some tokens.

        Args:
            tokens: T of them.
            base: the same with the policy that ratios divide by as `old`.
            settings: whose clamps of the log ratio are looked at.
            kl_clamped: how many tokens' KL each setting clamps.
        """
        positive, lows, highs = zip(*(_ends(tokens, name) for name in POLICIES), strict=True)
        apart = base.log_ratio.abs()
        far = float(apart.amax()) if apart.numel() else 0.0
        beyond = {
            clamp: int((apart > clamp).sum()) if far > clamp else 0
            for clamp in {one.clamp for one in settings}
        }
        return cls(
            torch.tensor(positive),
            torch.tensor(lows, dtype=torch.float64),
            torch.tensor(highs, dtype=torch.float64),
            torch.tensor([beyond[one.clamp] for one in settings]),
            torch.tensor(kl_clamped),
            torch.tensor([far], dtype=torch.float64),
        )

    @classmethod
    def none(cls, settings: int) -> Oddities:
        """Those of no tokens."""
        counts = torch.zeros(settings, dtype=torch.int64)
        ends = torch.full((len(POLICIES),), torch.inf, dtype=torch.float64)
        none = torch.zeros(len(POLICIES), dtype=torch.int64)
        return cls(none, ends, -ends, counts, counts, torch.zeros(1, dtype=torch.float64))

    def __add__(self, other: Oddities) -> Oddities:
        return Oddities(
            self.positive + other.positive,
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
            self.clamped + other.clamped,
            self.kl_clamped + other.kl_clamped,
            torch.maximum(self.far, other.far),
        )


def _ends(tokens: Tokens, name: str) -> tuple[int, float, float]:
    """How many log-probs of a policy are above 0, and the least and the greatest of them."""
    values, mask = getattr(tokens, name), tokens.mask
    if values is None or not values.numel():
        return 0, torch.inf, -torch.inf
    low = float((values if tokens.whole else values.where(mask, torch.inf)).amin())
    inside = values if tokens.whole else values.where(mask, -torch.inf)
    high = float(inside.amax())
    return int((inside > ROUNDING).sum()) if high > ROUNDING else 0, low, high


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

    cells: ExactTotals
    """It counts kinds, [settings, KINDS], and the bins of log ratios, [BINS], too."""
    places: ExactTotals
    """By range of positions; without details empty."""
    batches: ExactTotals
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
            ExactTotals(),
            ExactTotals(),
            ExactTotals(),
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

    def compact(self) -> LossTally:
        """Return the same."""
        return self

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
