"""The search for the split, and the formula of each metric, that reproduce the most of a log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.formulas import groups_of
from rlpost.analysis.replay.metrics.reductions import REDUCTIONS, response_weights
from rlpost.analysis.replay.metrics.splits import LEVELS, Units, all_means
from rlpost.losses.config import LossConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.aggregated import Aggregated
    from rlpost.analysis.replay.metrics.clip_bounds import ClipBound
    from rlpost.analysis.replay.metrics.configurations import RunConfiguration
    from rlpost.analysis.replay.metrics.formulas import Formula, FormulaGroup
    from rlpost.analysis.replay.metrics.series import MetricSeries
    from rlpost.analysis.replay.metrics.splits import Level, Means, Split
    from rlpost.analysis.replay.metrics.sums import LossCandidate, SumColumn

    Numbers = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_LEAST_STEPS = 2
_MOST = 0.5
"""Share of the steps; more of them count if they cannot be equal by chance."""
_USUAL = 2
"""The highest cost of a reduction that is named as the closest."""
_LOOSE = 10
_WIDE = 0.1
"""Share of a coefficient that its range may have."""


class FitScore(NamedTuple):
    """How much of a log is reproduced; more is better, from the first number on."""

    metrics: int
    """Metrics that are reproduced at all steps."""
    without_terms: int
    """Those of them that need no fitted term."""
    steps: int
    """Reproduced steps of the other metrics of which most are reproduced."""


class Explanation(NamedTuple):
    """How a metric is computed from the dump."""

    column: SumColumn
    reduction: int
    split: Split
    level: Level
    terms: tuple[tuple[float, SumColumn], ...] = ()
    """Coefficients and columns that are added, such as those of a KL loss."""
    fitted: int = 0
    """How many of these coefficients are fitted: the last ones."""
    open: tuple[float, float] | None = None
    """The range of a fitted coefficient, if the digits of the log leave it open."""

    @property
    def columns(self) -> tuple[SumColumn, ...]:
        """All columns that are read."""
        return (self.column, *(column for _, column in self.terms))

    def computed(self, data: Aggregated) -> tuple[Numbers, Numbers]:
        """Return the numbers of the steps, and the aggregated absolute values, [s] each."""
        numbers, magnitudes = [], []
        for step in data.steps:
            units = Units.of(self.split, self.level, len(step))
            weights = response_weights(step.sizes, units, data.length)[self.reduction]
            sums = step.sums[:, data.index[self.column]]
            for scale, column in self.terms:
                sums = sums + scale * step.sums[:, data.index[column]]
            numbers.append(weights @ sums)
            magnitudes.append(weights @ np.abs(sums))
        return np.array(numbers), np.array(magnitudes)


class Explained(NamedTuple):
    """How a metric is computed: the simplest way that reproduces it, else the closest."""

    best: Explanation | None = None
    """None for a metric of responses, and if the dump lacks what the metric is computed from."""
    others: tuple[Explanation, ...] = ()
    """Other ways that reproduce it."""
    reproduced: bool = False


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
    explained: tuple[Explained, ...]
    """Of each metric."""
    bounds: tuple[ClipBound, ...] = ()
    """The bounds of the loss that the configuration does not have."""


@dataclass(frozen=True)
class LogSearch:
    """The search on the steps of a sample."""

    configuration: RunConfiguration
    series: Sequence[MetricSeries]
    losses: Sequence[LossCandidate | None]
    """The simplest first."""
    splits: Sequence[Split]
    """The simplest first."""
    data: Aggregated
    formulas: Callable[[MetricSeries, LossCandidate | None], list[Formula]]

    @cached_property
    def means(self) -> list[Means]:
        """The different means of all splits."""
        return all_means(self.splits, self.data.counts)

    def solve(self) -> Solution:
        """Return the simplest loss and split that reproduce the most."""
        scores = self._totals([*range(len(self.series))])
        best = max(one for of_loss in scores for one in of_loss)
        loss = next(at for at, of_loss in enumerate(scores) if best in of_loss)
        split = scores[loss].index(best)
        chosen, own = self.splits[split], self.losses[loss]
        tied = [one for one, score in zip(self.splits, scores[loss], strict=True) if score == best]
        losses = [one for one, of in zip(self.losses, scores, strict=True) if of[split] == best]
        return Solution(
            self.configuration,
            own,
            chosen,
            best,
            tuple(one for one in losses if one is not None and one != own),
            tuple(one for one in tied if one != chosen),
            tuple(self.series),
            self._explain_all(own, chosen),
        )

    def splits_without_loss(self) -> list[Split]:
        """Return the splits that reproduce the most of the metrics that no loss determines."""
        (scores, *_) = self._totals([at for at, x in enumerate(self.series) if not x.of_loss])
        best = max(scores)
        return [one for one, score in zip(self.splits, scores, strict=True) if score == best]

    def _groups(self, series: MetricSeries, loss: LossCandidate | None) -> list[FormulaGroup]:
        own = self.formulas(series, loss)
        return groups_of(own, self.data.index, self.configuration.reductions)

    @cached_property
    def _scores(self) -> Counts:
        """[means, losses, metrics, 3]: how much is reproduced, as FitScore."""
        groups = [[self._groups(one, loss) for one in self.series] for loss in self.losses]
        table = np.zeros((len(self.means), len(self.losses), len(self.series), 3), np.int64)
        for row, own in zip(table, self.means, strict=True):
            values = self.data.values(own.units)
            for metric, series in enumerate(self.series):
                for loss, of_loss in enumerate(groups):
                    shared = loss > 0 and not series.of_loss
                    score = row[0, metric] if shared else _score(of_loss[metric], series, *values)
                    row[loss, metric] = score
        return table

    def _totals(self, metrics: Sequence[int]) -> list[list[FitScore]]:
        """Return how much of some metrics each loss reproduces with each split."""
        places = {name: at for at, own in enumerate(self.means) for name in own.splits}
        of_splits = np.array([
            [places.get((split, level), places[split, "step"]) for level in LEVELS]
            for split in self.splits
        ])  # fmt: skip
        best = self._scores[:, :, [*metrics]][of_splits].max(1)  # [splits, losses, metrics, 3]
        best[..., 2] *= best[..., 0] == 0
        totals = best.sum(2).swapaxes(0, 1).tolist()
        return [[FitScore(*one) for one in of_loss] for of_loss in totals]

    def _explain_all(self, loss: LossCandidate | None, split: Split) -> tuple[Explained, ...]:
        """Return how each metric is computed with a loss and a split.

        The loss with all terms is like the logged policy loss and KL loss, if possible.
        """
        values = {
            level: self.data.values(own.units)
            for own in self.means
            for name, level in own.splits
            if name == split
        }
        found: dict[str, Explained] = {}
        by_name = dict.fromkeys(("kl_loss", "pg_loss"), Explained())
        ordered = sorted(self.series, key=lambda one: (one.name == "loss", one.name == "pg_loss"))
        for series in ordered:
            ways = [
                way
                for level, own in values.items()
                for group in self._groups(series, loss)
                for way in _ways(group, series, split, level, *own)
            ]
            kl, policy = by_name["kl_loss"].best, by_name["pg_loss"].best
            key = partial(self._unlikeness, kl=kl, policy=policy)
            found[series.key] = by_name[series.name] = _explained(sorted(ways, key=key), series)
        return tuple(found[one.key] for one in self.series)

    def _unlikeness(
        self, way: Way, kl: Explanation | None, policy: Explanation | None
    ) -> tuple[Any, ...]:
        """Return what orders ways that reproduce a metric: the simplest and most likely first."""
        own, reduction = way.explanation, REDUCTIONS[way.explanation.reduction]
        terms = [column for _, column in own.terms]
        other_kl = kl is not None and bool(terms) and terms[0].name != kl.column.name
        place = None if policy is None else (policy.reduction, policy.level)
        return (
            own.fitted,
            other_kl,
            place is not None and own.column.kind == "loss" and place != (own.reduction, own.level),
            LEVELS.index(own.level),
            way.order,
            reduction.aggregation != LossConfig(self.configuration.loss).aggregation,
            reduction.cost,
        )


class Way(NamedTuple):
    """A way to compute a metric, with its numbers, [s] each."""

    explanation: Explanation
    order: int
    """Of its formula; the simplest is 0."""
    computed: Numbers
    equal: Flags

    def reproduces(self, series: MetricSeries) -> bool:
        """Return whether all steps are reproduced."""
        return bool((self.equal | ~series.present).all())

    def distance(self, series: MetricSeries) -> tuple[Any, ...]:
        """Return how far it is: a constant factor, then the steps that differ, then the median."""
        terms, present = self.explanation.fitted, series.present
        recorded, computed = series.recorded[present], self.computed[present]
        proportional = not terms and _proportional(recorded, computed, series.tolerance)
        median = float(np.median(np.abs(computed - recorded)))
        return not proportional, -int(self.equal.sum()), terms, median


def _ways(
    group: FormulaGroup,
    series: MetricSeries,
    split: Split,
    level: Level,
    values: Numbers,
    magnitudes: Numbers,
) -> Iterator[Way]:
    """Yield the ways to compute a metric; of fitted terms those that reproduce any step."""
    fit = group.fit(series, values, magnitudes)
    for at, formula in enumerate(group.formulas):
        for reduction in np.flatnonzero(group.reductions[at]):
            place, count = (at, reduction), len(formula.unknown)
            if count and not fit.equal[place].any():
                continue
            fitted = zip(map(float, fit.coefficients[place]), formula.unknown, strict=True)
            low, high = (0.0, 0.0) if fit.ranges is None else map(float, fit.ranges[place])
            wide = high - low > _WIDE * max(abs(low), abs(high))
            explanation = Explanation(
                formula.column,
                int(reduction),
                split,
                level,
                (*formula.known, *fitted),
                count,
                (low, high) if wide else None,
            )
            yield Way(explanation, at, fit.computed[place], fit.equal[place])


def _explained(ways: Sequence[Way], series: MetricSeries) -> Explained:
    """Return how a metric is computed; of equal ways the first."""
    fitting = [way.explanation for way in ways if way.reproduces(series)]
    if fitting:
        return Explained(fitting[0], tuple(fitting[1:]), reproduced=True)
    usual = [way for way in ways if REDUCTIONS[way.explanation.reduction].cost <= _USUAL]
    closest = min(usual or ways, key=lambda way: way.distance(series), default=None)
    return Explained() if closest is None else Explained(closest.explanation)


def _score(
    groups: Sequence[FormulaGroup], series: MetricSeries, values: Numbers, magnitudes: Numbers
) -> FitScore:
    """Return how much of a metric is reproduced."""
    present, steps = series.present, 0
    for group in groups:
        equal = group.fit(series, values, magnitudes).equal
        if ((equal | ~present).all(-1) & group.reductions).any():
            return FitScore(1, int(group.unknown.shape[1] == 0), 0)
        if series.sharp and present.sum() > _LEAST_STEPS:
            steps = max(steps, int(equal.sum(-1).max()))
    return FitScore(0, 0, steps if steps > _MOST * present.sum() else 0)


def _proportional(recorded: Numbers, computed: Numbers, tolerance: float) -> bool:
    """Return whether recorded numbers are a constant times the computed ones, [s]."""
    if len(recorded) < _LEAST_STEPS or np.any(computed == 0):
        return False
    ratios = recorded / computed
    return bool(np.ptp(ratios) <= _LOOSE * tolerance * np.abs(ratios).max())
