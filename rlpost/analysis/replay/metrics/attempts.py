"""The attempts of a search: usual clip ranges first, then all of two digits, then of three."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.fit import (
    HOWS,
    LOSS_METRICS,
    QUANTITIES,
    Aggregated,
    Fitting,
)
from rlpost.analysis.replay.metrics.kl import KlLoss
from rlpost.analysis.replay.metrics.losses import SIDES, Candidates, Family
from rlpost.analysis.replay.metrics.measure import measure
from rlpost.analysis.replay.metrics.search import (
    Reader,
    bounds_of,
    choose,
    fits_of,
)
from rlpost.analysis.replay.metrics.splits import LEVELS, all_splits
from rlpost.io.parquet.source import Source, TableSource
from rlpost.pipeline.engine import single_threaded_torch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from rlpost.analysis.replay.metrics.fit import Target
    from rlpost.analysis.replay.metrics.losses import Column
    from rlpost.analysis.replay.metrics.measure import Measured
    from rlpost.analysis.replay.metrics.search import Choice, Fits
    from rlpost.analysis.replay.metrics.splits import Split
    from rlpost.pipeline.options import Options
    from rlpost.recipe.loss import LossOptions
    from rlpost.recipe.recipe import Recipe

_CLIPS = tuple(round(0.01 * one, 2) for one in range(1, 61))
_DUALS = (1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.75, 2.5, 4.0, 6.0, 8.0, 20.0)
_AROUND = 12  # thousandths on both sides of a clip range of two digits


class Attempt(NamedTuple):
    """The candidates that were computed, on the sample."""

    data: Aggregated
    fitting: Fitting


class Found(NamedTuple):
    """The best choice of a search, with what it was chosen from."""

    data: Aggregated
    fits: Fits
    choice: Choice
    hows: Sequence[int]
    tolerance: float
    known: KlLoss

    @property
    def reader(self) -> Reader:
        """How targets are computed."""
        return Reader(self.choice, self.fits, self.data, self.hows, self.tolerance, self.known)

    def settled(self, targets: Sequence[Target]) -> Found:
        """Return the choice whose losses reproduce the most with further terms, with its ties.

        The scores of a search are without these terms.
        """
        targets = [one for one in targets if one.metric in ("kl_loss", "pg_loss", "loss")]
        if self.choice.grid is None or len(targets) == sum(x.metric == "kl_loss" for x in targets):
            return self
        own = self._terms_reproduced(self.choice, targets)
        others = [
            (replace(self.choice, grid=grid, place=place), (grid, place))
            for grid, place in self.choice.tied_losses
        ]
        counts = [self._terms_reproduced(one, targets) for one, _ in others]
        if max(counts, default=0) > own:
            at = counts.index(max(counts))
            first = replace(others[at][0], tied_losses=(), tied_bounds={})
            return self._replace(choice=first)
        tied = [name for (_, name), count in zip(others, counts, strict=True) if count == own]
        choice = replace(self.choice, tied_losses=tuple(tied))
        return self._replace(choice=choice).without_false_ties(targets)

    def without_false_ties(self, targets: Sequence[Target]) -> Found:
        """Return the choice with the bounds and splits that reproduce a loss with its terms."""
        choice, grid, reader = self.choice, self.choice.grid, self.reader
        own = [
            (target, read.reading)
            for target, read in zip(targets, reader.all(targets), strict=True)
            if read.reading is not None
            and read.reading.terms
            and reader.reproduced(target, read.reading)
        ]
        if not own or grid is None:
            return self
        most = self._terms_reproduced(choice, targets)

        def bound_ties(side: str, bound: float | str) -> bool:
            number = SIDES.index(side) if grid.clipped else 0
            if bound not in grid.bounds[number]:
                return True  # the same numbers
            places = list(choice.place)
            places[number] = grid.bounds[number].index(bound)
            other = replace(choice, place=tuple(places))
            return self._terms_reproduced(other, targets) >= most

        def split_ties(split: Split) -> bool:
            levels = [level for level in LEVELS if (split, level) in self.fits.at]
            return all(
                any(reader.reproduced(x, y._replace(split=split, level=one)) for one in levels)
                for x, y in own
            )

        bounds = {
            side: tuple(one for one in values if bound_ties(side, one))
            for side, values in choice.tied_bounds.items()
        }
        splits = tuple(one for one in choice.tied_splits if split_ties(one))
        return self._replace(choice=replace(choice, tied_bounds=bounds, tied_splits=splits))

    def _terms_reproduced(self, choice: Choice, targets: Sequence[Target]) -> int:
        """Return how many losses a choice reproduces, with further terms."""
        reader = self._replace(choice=choice).reader
        return sum(
            reader.reproduced(target, read.reading)
            for target, read in zip(targets, reader.all(targets), strict=True)
            if target.metric in ("pg_loss", "loss")
        )

    def candidates_of(self, columns: Collection[Column]) -> Candidates | None:
        """Return the losses that some columns are of."""
        candidates = self.data.measured.candidates
        return None if candidates is None else candidates.only(columns)

    def unexplained(self, targets: Sequence[Target]) -> bool:
        """Return whether a metric of a loss differs, which other bounds may reproduce."""
        if self.choice.grid is None:
            return False
        reader = self.reader
        return any(
            not reader.reproduced(target, read.reading)
            for target, read in zip(targets, reader.all(targets), strict=True)
            if target.metric in LOSS_METRICS and target.informative
        )


@dataclass(frozen=True)
class Inputs:
    """What a search reads besides the dump and the log."""

    recipe: Recipe
    loss: LossOptions | None
    fixed: frozenset[str]
    """The fields of `loss` that stay."""
    tolerance: float
    split: Mapping[str, int | None]
    """`micro`, `ranks` and `updates`; None: searched for."""
    options: Options | None = None

    @property
    def length(self) -> float | None:
        """The length of seq-mean-token-sum-norm; None: not set."""
        if self.loss is None or self.loss.agg_length is None or "agg_length" not in self.fixed:
            return None
        return float(self.loss.agg_length)

    @property
    def known(self) -> KlLoss:
        """What is set of the KL loss."""
        return KlLoss.of(self.loss, self.fixed)

    @property
    def hows(self) -> list[int]:
        """The aggregations of the loss to try."""
        if self.loss is None or "aggregation" not in self.fixed:
            return [*range(len(HOWS))]
        return [at for at, one in enumerate(HOWS) if one.aggregation == self.loss.aggregation]

    def measured(
        self,
        table: pa.Table | Source,
        *,
        candidates: Candidates | None = None,
        wanted: Collection[Column] | None = None,
    ) -> Measured:
        """Return the responses of an input with the sums of candidates, see `measure`."""
        source = table if isinstance(table, Source) else TableSource(table)
        return measure(
            source, self.recipe, self.loss, self.fixed,
            candidates=candidates, wanted=wanted, options=self.options,
        )  # fmt: skip


@dataclass
class Search:
    """The search on a sample of whole steps."""

    inputs: Inputs
    table: pa.Table | Source
    steps: list[str]
    losses: bool
    """Whether a metric of a loss was recorded."""

    @cached_property
    def first(self) -> Attempt:
        """The usual candidates."""
        return self._attempt(None if self.losses else Candidates({}))

    def _attempt(self, candidates: Candidates | None) -> Attempt:
        measured = self.inputs.measured(self.table, candidates=candidates)
        data = Aggregated(measured, self.steps, self.inputs.length)
        return Attempt(data, Fitting(data, self.inputs.tolerance, self.inputs.known))

    def run(self, targets: Sequence[Target]) -> Found:
        """Return the choice that reproduces the most targets, of the first attempt that fits."""
        searched = [one for one in targets if one.metric in (*QUANTITIES, *LOSS_METRICS)]
        best = latest = self._found(self.first, searched)
        candidates = self.first.data.measured.candidates
        if (
            candidates is None
            or not candidates.clipped
            or {"pg_clip", "pg_clip_low", "pg_clip_high"} & self.inputs.fixed
        ):
            return best
        for narrow in (_other_duals, _coarse, _fine):
            if not best.unexplained(searched):
                break
            latest = self._found(self._attempt(narrow(candidates, best, latest)), searched)
            if latest.choice.score > best.choice.score:
                best = latest
        return best

    def _found(self, attempt: Attempt, searched: Sequence[Target]) -> Found:
        data, fitting = attempt
        splits, hows = all_splits(data.counts, **self.inputs.split), self.inputs.hows
        with single_threaded_torch():
            fits = fits_of(data, fitting, searched, splits, hows)
        choice, own = choose(fits, fitting, splits), self.inputs
        return Found(data, fits, choice, hows, own.tolerance, own.known).settled(searched)


def _family(candidates: Candidates, best: Found) -> Family:
    """Return the loss whose bounds are tried: that of the best choice, if it has bounds."""
    family = best.choice.grid.family if best.choice.grid else Family("ppo")
    return family if family in candidates.clipped else next(iter(candidates.clipped))


def _other_duals(candidates: Candidates, best: Found, _: Found) -> Candidates:
    """Return the usual clip ranges with other dual clips."""
    family = _family(candidates, best)
    duals = tuple(dict.fromkeys([*candidates.duals, *_DUALS]))
    return Candidates({family: candidates.clipped[family]}, duals)


def _coarse(candidates: Candidates, best: Found, _: Found) -> Candidates:
    """Return all clip ranges of two digits."""
    family = _family(candidates, best)
    clips = tuple(dict.fromkeys([*candidates.clipped[family], *_CLIPS]))
    return Candidates({family: clips}, _chosen_duals(best))


def _chosen_duals(best: Found) -> tuple[float, ...]:
    """Return no dual clip, and the one of the best choice."""
    grid, place = best.choice.grid, best.choice.place
    own = bounds_of(grid, place)["dual"] if grid is not None and grid.clipped else math.inf
    return tuple(dict.fromkeys([math.inf, float(own)]))


def _fine(candidates: Candidates, best: Found, latest: Found) -> Candidates:
    """Return clip ranges of three digits around those that are closest over whole steps."""
    family, grid = _family(candidates, best), latest.choice.grid
    if grid is None or not grid.clipped:
        return Candidates({family: candidates.clipped[family]}, _chosen_duals(best))
    tables = latest.fits.losses[0]
    total = np.add.reduce([table[0].astype(np.float64) for table in tables.values()])
    place = np.unravel_index(int(np.argmin(total)), total.shape)
    centers = [float(grid.bounds[side][int(place[side])]) for side in (0, 1)]
    near = {
        round(center + 0.001 * offset, 3)
        for center in centers
        if math.isfinite(center)
        for offset in range(-_AROUND, _AROUND + 1)
        if center + 0.001 * offset > 0
    }
    clips = tuple(dict.fromkeys([*candidates.clipped[family], *sorted(near)]))
    return Candidates({family: clips}, _chosen_duals(best))
