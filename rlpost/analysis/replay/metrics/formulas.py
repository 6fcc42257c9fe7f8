"""What a logged metric may be computed from: sums of responses, with further terms of a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.steps import MOST
from rlpost.analysis.replay.metrics.sums import SumColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.configurations import RunConfiguration
    from rlpost.analysis.replay.metrics.steps import MetricSeries
    from rlpost.analysis.replay.metrics.sums import LossCandidate

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]

ENTROPY = SumColumn("sum", "entropy")
MOST_DIGITS = 4
"""Significant digits that a number of a configuration has at most."""


class Formula(NamedTuple):
    """What a metric may be the mean of."""

    column: SumColumn
    known: tuple[tuple[float, SumColumn], ...] = ()
    """Further terms with their coefficients."""
    unknown: tuple[SumColumn, ...] = ()
    """Further terms whose coefficients are fitted."""

    @property
    def columns(self) -> tuple[SumColumn, ...]:
        """All columns that it reads."""
        return (self.column, *(column for _, column in self.known), *self.unknown)


def formulas_of(
    series: MetricSeries,
    loss: LossCandidate | None,
    configuration: RunConfiguration,
    computable: Callable[[SumColumn], bool],
) -> list[Formula]:
    """Return what a metric may be computed from, the simplest first.

    Args:
        series: a metric of tokens or of a loss.
        loss: the policy loss; None if the input lacks what it needs.
        configuration: of the run.
        computable: returns whether the input has what a column is computed from.
    """
    kind, names = series.definition.kind, series.definition.of
    if kind == "tokens":
        names = tuple(sorted(names, key=lambda one: one != configuration.kl_term))
        columns = [SumColumn(how, name) for name in names for how in ("sum", "all")]
        return [Formula(one) for one in columns if computable(one)]
    if loss is None:
        return []
    if kind == "clipped":
        sides = ", ".join(names)
        counts = [SumColumn("clipped", sides, loss)]
        if sides != "dual" and loss.config.ratio_bounds != (None, None):
            counts.append(SumColumn("outside", sides, loss))
        return [Formula(one) for one in counts]
    plain = [Formula(SumColumn("loss", loss=loss))]
    if series.name == "pg_loss":
        return plain
    terms = [SumColumn("sum", name) for name in configuration.kl_terms]
    terms = [one for one in terms if computable(one)]
    coefficient = configuration.value("kl_loss_coef")
    if coefficient and terms:
        plain = [plain[0]._replace(known=((coefficient, one),)) for one in terms]
        terms = []
    unknown: list[tuple[SumColumn, ...]] = [(one,) for one in terms]
    if computable(ENTROPY):
        unknown += [(ENTROPY,), *((one, ENTROPY) for one in terms)]
    return plain + [one._replace(unknown=own) for own in unknown for one in plain]


class FittedFormula(NamedTuple):
    """The numbers of a formula beside a logged metric, by reduction."""

    formula: Formula
    computed: Numbers
    """[r, s]."""
    equal: Flags
    """[r, s]: the step is reproduced."""
    coefficients: Numbers
    """[r, t] of the fitted terms."""
    ranges: Numbers | None = None
    """[r, 2]: the lowest and the highest value of one fitted coefficient."""


def fitted(
    formula: Formula,
    series: MetricSeries,
    index: Mapping[SumColumn, int],
    values: Numbers,
    magnitudes: Numbers,
) -> FittedFormula:
    """Return the numbers of a formula, with the coefficients that reproduce the most of a metric.

    A coefficient has at most 4 digits, as in a configuration; that of a KL loss is not below 0. One
    coefficient reproduces more than half of the steps, two reproduce all of them.

    Args:
        formula: with 0, 1 or 2 unknown terms.
        series: the metric.
        index: the numbers of columns.
        values: [columns, r, s] aggregated sums.
        magnitudes: [columns, r, s] aggregated absolute values.
    """
    at, present = index[formula.column], series.present
    plain, allowed = values[at], series.allowed(magnitudes[at])
    for scale, column in formula.known:
        plain = plain + scale * values[index[column]]
    rest = series.recorded - plain
    if not formula.unknown:
        equal = (np.abs(rest) <= allowed) & present
        return FittedFormula(formula, plain, equal, np.zeros((len(plain), 0)))
    terms = np.stack([values[index[column]] for column in formula.unknown], 1)  # [r, t, s]
    ranges = None
    if present.sum() <= len(formula.unknown):
        coefficients = np.full(terms.shape[:2], np.nan)
    elif len(formula.unknown) == 1:
        coefficients, ranges = _one_coefficient(rest, terms[:, 0], allowed, present)
    else:
        coefficients = _two_coefficients(rest, terms, allowed, present)
    if formula.unknown[0] != ENTROPY:
        coefficients[coefficients[:, 0] < 0] = np.nan
    added = (coefficients[:, None] @ terms)[:, 0]  # NaN without coefficients
    equal = (np.abs(rest - added) <= allowed) & present
    return FittedFormula(formula, plain + added, equal, coefficients, ranges)


def _one_coefficient(
    rest: Numbers, term: Numbers, allowed: Numbers, present: Flags
) -> tuple[Numbers, Numbers]:
    """Return the shortest coefficient that the most steps have in common, [r, 1], and its range."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.stack([(rest - allowed) / term, (rest + allowed) / term], -1)
    ends = np.sort(np.where((term == 0)[..., None], [-np.inf, np.inf], ends), -1)[:, present]
    low, high, count = overlap(ends[..., 0], ends[..., 1])
    coefficients = np.full((len(rest), 1), np.nan)
    for at in np.flatnonzero(count > max(1, MOST * present.sum())):
        coefficients[at] = shortest(float(low[at]), float(high[at]))
    return coefficients, np.stack([low, high], -1)


def _two_coefficients(rest: Numbers, terms: Numbers, allowed: Numbers, present: Flags) -> Numbers:
    """Return the shortest coefficients that reproduce all steps, [r, 2], by least squares."""
    rest, terms, allowed = rest[:, present], terms[..., present], allowed[:, present]
    exact = (np.linalg.pinv(terms.swapaxes(1, 2)) @ rest[..., None])[..., 0]
    gaps = np.abs(rest - (exact[:, None] @ terms)[:, 0])
    coefficients = np.full(exact.shape, np.nan)
    for at in np.flatnonzero((gaps <= 2 * allowed).all(1)):  # rounding makes them no smaller
        for digits in range(1, MOST_DIGITS + 1):
            rounded = np.array([float(f"{one:.{digits}g}") for one in exact[at]])
            if np.all(np.abs(rest[at] - rounded @ terms[at]) <= allowed[at]):
                coefficients[at] = rounded
                break
    return coefficients


def overlap(low: Numbers, high: Numbers) -> tuple[Numbers, Numbers, NDArray[np.int64]]:
    """Return what the most of some intervals have in common: its ends, and how many these are.

    Args:
        low: [..., s].
        high: [..., s]; an interval with low > high is empty.
    """
    points = low[..., :, None]  # the most intervals overlap at the lower end of one of them
    inside = (low[..., None, :] <= points) & (points <= high[..., None, :])
    best = inside.sum(-1).argmax(-1)
    inside = np.take_along_axis(inside, best[..., None, None], -2)[..., 0, :]
    lowest = np.where(inside, low, -np.inf).max(-1)
    return lowest, np.where(inside, high, np.inf).min(-1), inside.sum(-1)


def shortest(low: float, high: float) -> float:
    """Return the number with the fewest digits in an interval; NaN with more than 4.

    >>> shortest(0.27996, 0.28003), shortest(0.271828, 0.271829)
    (0.28, nan)
    """
    if not np.isfinite([low, high]).all():
        return np.nan
    numbers = (float(f"{(low + high) / 2:.{digits}g}") for digits in range(1, MOST_DIGITS + 1))
    return next((one for one in numbers if low <= one <= high), np.nan)
