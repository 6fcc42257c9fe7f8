"""How a logged metric is computed from the dump: the simplest method, or the closest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.aggregates import REDUCTIONS
from rlpost.kernels.layouts import LEVELS, Units

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.aggregates import Aggregated
    from rlpost.analysis.replay.metrics.formulas import FittedFormula
    from rlpost.analysis.replay.metrics.steps import MetricSeries
    from rlpost.analysis.replay.metrics.sums import SumColumn
    from rlpost.kernels.layouts import Level, Split

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_LOOSE = 10
"""Times the tolerance: what ratios of proportional numbers may differ by."""
_WIDE = 0.1
"""Share of a coefficient that its range may have."""


class MetricMethod(NamedTuple):
    """How a metric is computed."""

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
        sizes = [np.ones(count, np.int64) for count in data.counts]
        units = [Units.by(self.split, self.level, own) for own in sizes]
        values, magnitudes = (x[:, self.reduction] for x in data.values(units))
        at = data.index[self.column]
        added = sum(scale * values[data.index[column]] for scale, column in self.terms)
        return values[at] + added, magnitudes[at]


class BestMethod(NamedTuple):
    """The simplest method that reproduces a metric, else the closest."""

    best: MetricMethod | None = None
    """None for a metric of whole steps."""
    others: tuple[MetricMethod, ...] = ()
    """Other methods that reproduce it."""
    reproduced: bool = False


class MethodFit(NamedTuple):
    """A method with its numbers, [s] each."""

    method: MetricMethod
    computed: Numbers
    equal: Flags

    def distance(self, series: MetricSeries) -> tuple[bool, int, int, float]:
        """Return how far it is: a constant factor, then the steps that differ, then the median."""
        terms, present = self.method.fitted, series.present
        recorded, computed = series.recorded[present], self.computed[present]
        factor = constant_factor(recorded, computed, series.tolerance)
        median = float(np.median(np.abs(computed - recorded)))
        return terms > 0 or factor is None, -int(self.equal.sum()), terms, median


def methods_of(
    fit: FittedFormula, reductions: Flags, split: Split, level: Level
) -> Iterator[MethodFit]:
    """Yield the methods of a formula, by reduction; of fitted terms those that were found.

    Args:
        fit: of the means of a split.
        reductions: [r] those that the formula may have.
        split: the split.
        level: of its units.
    """
    formula = fit.formula
    for at in np.flatnonzero(reductions & np.isfinite(fit.coefficients).all(1)):
        fitted = zip(map(float, fit.coefficients[at]), formula.unknown, strict=True)
        low, high = (0.0, 0.0) if fit.ranges is None else map(float, fit.ranges[at])
        wide = high - low > _WIDE * max(abs(low), abs(high))
        method = MetricMethod(
            formula.column,
            int(at),
            split,
            level,
            (*formula.known, *fitted),
            len(formula.unknown),
            (low, high) if wide else None,
        )
        yield MethodFit(method, fit.computed[at], fit.equal[at])


def best_method(
    fits: Sequence[MethodFit],
    series: MetricSeries,
    kl: MetricMethod | None,
    aggregation: str,
) -> BestMethod:
    """Return the method by which a metric is computed.

    Args:
        fits: of all methods, with simple formulas first.
        series: the metric.
        kl: how the logged KL loss is computed, which a loss has as its term, if possible.
        aggregation: of the configuration.
    """

    def unlikeness(fit: MethodFit) -> tuple[int | bool, ...]:
        own, reduction = fit.method, REDUCTIONS[fit.method.reduction]
        return (
            own.fitted,
            kl is not None and len(own.terms) > 0 and own.terms[0][1].name != kl.column.name,
            LEVELS.index(own.level),
            order.index(own.columns),
            reduction.aggregation != aggregation,
            reduction.cost,
        )

    order = [*dict.fromkeys(fit.method.columns for fit in fits)]
    fits = sorted(fits, key=unlikeness)
    fitting = [fit.method for fit in fits if (fit.equal | ~series.present).all()]
    if fitting:
        return BestMethod(fitting[0], tuple(fitting[1:]), reproduced=True)
    closest = min(fits, key=lambda fit: fit.distance(series), default=None)
    return BestMethod() if closest is None else BestMethod(closest.method)


def constant_factor(recorded: Numbers, computed: Numbers, tolerance: float) -> float | None:
    """Return the constant by which all recorded numbers are the computed ones; None without it."""
    if len(recorded) == 1 or not (np.isfinite(computed) & (computed != 0)).all():
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # of computed numbers near 0
        ratios = recorded / computed
        factor = float(np.median(ratios))
        near = np.abs(ratios - factor) <= _LOOSE * tolerance * abs(factor)
    return factor if factor and near.all() else None
