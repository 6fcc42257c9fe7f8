"""The search for the split, and the formula of each metric, that reproduce the most of a log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.aggregates import Aggregated
from rlpost.analysis.replay.metrics.clip_bounds import bound_changes
from rlpost.analysis.replay.metrics.formulas import fitted, formulas_of
from rlpost.analysis.replay.metrics.methods import BestMethod, best_method, methods_of
from rlpost.analysis.replay.metrics.steps import MOST
from rlpost.analysis.replay.metrics.sums import LossCandidate
from rlpost.kernels.layouts import LEVELS, all_means

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.configurations import RunConfiguration
    from rlpost.analysis.replay.metrics.dump import DumpInput
    from rlpost.analysis.replay.metrics.formulas import FittedFormula, Formula
    from rlpost.analysis.replay.metrics.steps import MetricSeries
    from rlpost.analysis.replay.metrics.sums import SumColumn
    from rlpost.kernels.layouts import Split, UnitMeans

    Numbers = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Formulas = list[tuple[Formula, Flags]]

_LEAST_STEPS = 2


class FitScore(NamedTuple):
    """How much of a log is reproduced; more is better, from the first number on."""

    metrics: int
    """Metrics that are reproduced at all steps."""
    steps: int
    """Reproduced steps of the other metrics of which most are reproduced."""


@dataclass(frozen=True)
class Solution:
    """The loss and the split that reproduce the most of a log, and how each metric is computed."""

    configuration: RunConfiguration
    loss: LossCandidate | None
    """None if the input lacks what losses need."""
    split: Split
    score: FitScore
    tied_losses: tuple[LossCandidate, ...]
    """Other losses that reproduce as much."""
    tied_splits: tuple[Split, ...]
    series: tuple[MetricSeries, ...]
    chosen: tuple[BestMethod, ...]
    """Of each metric."""

    @property
    def reproduced(self) -> bool:
        """Whether it reproduces all metrics."""
        return all(one.reproduced for one in self.chosen)


@dataclass(frozen=True)
class LogSearch:
    """The search on some steps."""

    configuration: RunConfiguration
    series: Sequence[MetricSeries]
    losses: Sequence[LossCandidate | None]
    """The first of those that reproduce as much is chosen."""
    splits: Sequence[Split]
    """The simplest first."""
    formulas: dict[tuple[str, LossCandidate | None], Formulas]
    """By key of a metric and by loss: formulas, and their reductions, [r]."""
    data: Aggregated

    @cached_property
    def means(self) -> list[UnitMeans]:
        """The different means of all splits."""
        return all_means(self.splits, self.data.counts)

    def solve(self) -> Solution:
        """Return the simplest loss and split that reproduce the most."""
        scores = self._totals([*range(len(self.series))])
        best = max(one for of_loss in scores for one in of_loss)
        at = next(at for at, of_loss in enumerate(scores) if best in of_loss)
        loss, place = self.losses[at], scores[at].index(best)
        split = self.splits[place]
        tied = [one for one, score in zip(self.splits, scores[at], strict=True) if score == best]
        losses = [one for one, of in zip(self.losses, scores, strict=True) if of[place] == best]
        return Solution(
            self.configuration,
            loss,
            split,
            best,
            tuple(one for one in losses if one is not None and one != loss),
            tuple(one for one in tied if one != split),
            tuple(self.series),
            self._chosen(loss, split),
        )

    def splits_without_loss(self) -> list[Split]:
        """Return the splits that reproduce the most of the metrics that no loss determines."""
        (scores, *_) = self._totals([at for at, x in enumerate(self.series) if not x.of_loss])
        best = max(scores)
        return [one for one, score in zip(self.splits, scores, strict=True) if score == best]

    @cached_property
    def _scores(self) -> Counts:
        """[means, losses, metrics, 2]: how much is reproduced, as FitScore."""
        table = np.zeros((len(self.means), len(self.losses), len(self.series), 2), np.int64)
        for row, own in zip(table, self.means, strict=True):
            values = self.data.values(own.units)
            for metric, series in enumerate(self.series):
                for at, loss in enumerate(self.losses):
                    shared = at > 0 and not series.of_loss
                    row[at, metric] = (
                        row[0, metric] if shared else self._score(series, loss, *values)
                    )
        return table

    def _score(
        self, series: MetricSeries, loss: LossCandidate | None, values: Numbers, sizes: Numbers
    ) -> FitScore:
        """Return how much of a metric is reproduced."""
        present, steps = series.present, 0
        for fit, reductions in self._fits(series, loss, values, sizes):
            if ((fit.equal | ~present).all(-1) & reductions).any():
                return FitScore(1, 0)
            if series.sharp and present.sum() > _LEAST_STEPS:
                steps = max(steps, int(fit.equal[reductions].sum(-1).max()))
        return FitScore(0, steps if steps > MOST * present.sum() else 0)

    def _fits(
        self, series: MetricSeries, loss: LossCandidate | None, values: Numbers, sizes: Numbers
    ) -> Iterator[tuple[FittedFormula, Flags]]:
        for formula, reductions in self.formulas[series.key, loss]:
            yield fitted(formula, series, self.data.index, values, sizes), reductions

    def _totals(self, metrics: Sequence[int]) -> list[list[FitScore]]:
        """Return how much of some metrics each loss reproduces with each split."""
        places = {name: at for at, own in enumerate(self.means) for name in own.splits}
        of_splits = np.array([
            [places.get((split, level), places[split, "step"]) for level in LEVELS]
            for split in self.splits
        ])  # fmt: skip
        best = self._scores[:, :, [*metrics]][of_splits].max(1)  # [splits, losses, metrics, 2]
        best[..., 1] *= best[..., 0] == 0
        totals = best.sum(2).swapaxes(0, 1).tolist()
        return [[FitScore(*one) for one in of_loss] for of_loss in totals]

    def _chosen(self, loss: LossCandidate | None, split: Split) -> tuple[BestMethod, ...]:
        """Return how each metric is computed with a loss and a split."""
        values = {
            level: self.data.values(own.units)
            for own in self.means
            for name, level in own.splits
            if name == split
        }
        found: dict[str, BestMethod] = {}
        kl, aggregation = BestMethod(), self.configuration.loss_config.aggregation
        for series in sorted(self.series, key=lambda one: one.name != "kl_loss"):
            fits = [
                of_reduction
                for level, own in values.items()
                for fit, reductions in self._fits(series, loss, *own)
                for of_reduction in methods_of(fit, reductions, split, level)
            ]
            found[series.key] = best_method(fits, series, kl.best, aggregation)
            kl = found[series.key] if series.name == "kl_loss" else kl
        return tuple(found[one.key] for one in self.series)


@dataclass(frozen=True)
class SearchedSteps:
    """The steps that are searched."""

    dump: DumpInput
    """Of these steps, or of more."""
    steps: list[str]
    """Their labels."""
    series: list[MetricSeries]
    """The metrics that a split or a loss determines, at these steps."""

    def solve(self, configuration: RunConfiguration) -> list[Solution]:
        """Return what reproduces the most by a configuration, then by others that reproduce more.

        The others have another bound, or divide by the other policy, if none is stated.
        """
        weights = {"is_weight", "sample_weight"} & self.dump.roles
        losses: list[LossCandidate | None] = [None]
        if not self.dump.missing(configuration.loss):
            weighted = (True, False) if weights else (False,)
            losses = [LossCandidate(configuration.loss, one) for one in weighted]
        search = self._search(configuration, losses)
        first = search.solve()
        if first.loss is None or first.reproduced:
            return [first]
        splits = search.splits_without_loss()
        changes = self._changes(first, first.loss, search.data, splits)
        again = self._search(configuration, [first.loss, *changes], splits).solve()
        return [first, again] if again.score > first.score else [first]

    def _search(
        self,
        configuration: RunConfiguration,
        losses: Sequence[LossCandidate | None],
        splits: Sequence[Split] = (),
    ) -> LogSearch:
        """Return the search of some losses and splits; without any, of all splits."""

        def computable(column: SumColumn) -> bool:
            return self.dump.roles.issuperset(column.roles(configuration.loss))

        formulas = {
            (series.key, loss): [
                (formula, configuration.reductions(formula.column))
                for formula in formulas_of(series, loss, configuration, computable)
            ]
            for series in self.series
            for loss in losses
        }
        columns = (
            column for own in formulas.values() for formula, _ in own for column in formula.columns
        )
        measured = self.dump.measure([*dict.fromkeys(columns)], configuration.loss)
        data = Aggregated(measured, self.steps, configuration.loss.agg_length)
        splits = splits or configuration.splits(data.counts)
        return LogSearch(configuration, self.series, losses, splits, formulas, data)

    def _changes(
        self, first: Solution, loss: LossCandidate, data: Aggregated, splits: Sequence[Split]
    ) -> list[LossCandidate]:
        """Return the losses with other bounds and policies that may reproduce more."""
        configuration, bases = first.configuration, [loss.options]
        if "behaviour" not in configuration.stated:
            other = "infer" if loss.options.behaviour == "old" else "old"
            bases.append(loss.options.model_copy(update={"behaviour": other}))
        bases = [one for one in bases if not self.dump.missing(one)]
        shares = [
            series
            for series, one in zip(self.series, first.chosen, strict=True)
            if series.definition.kind == "clipped" and not one.reproduced
        ]
        changes, means, sides = bases[1:], all_means(splits, data.counts), configuration.bounds
        for options in bases if shares and sides else ():
            for change in bound_changes(self.dump, options, sides, shares, data, means):
                changes.append(options.model_copy(update=change))
        return [LossCandidate(one, loss.weighted) for one in dict.fromkeys(changes)]
