"""What a logged metric may be computed from: sums of responses, with further terms of a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.reductions import OF_ALL_TOKENS, OF_COUNTS
from rlpost.analysis.replay.metrics.sums import SumColumn
from rlpost.analysis.replay.metrics.terms import fit_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.configurations import RunConfiguration
    from rlpost.analysis.replay.metrics.series import MetricSeries
    from rlpost.analysis.replay.metrics.sums import LossCandidate

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]

ENTROPY = SumColumn("sum", "entropy")


class Formula(NamedTuple):
    """What a metric may be the mean of."""

    column: SumColumn
    known: tuple[tuple[float, SumColumn], ...] = ()
    """Further terms whose coefficient is known."""
    unknown: tuple[SumColumn, ...] = ()
    """Further terms whose coefficient is fitted."""

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
        first = configuration.kl_term
        names = tuple(sorted(names, key=lambda one: one != first))
        columns = [SumColumn(how, name) for name in names for how in ("sum", "all")]
        return [Formula(one) for one in columns if computable(one)]
    if loss is None:
        return []
    if kind == "clipped":
        sides = ", ".join(names)
        bounded = any(bound is not None for bound in loss.config.ratio_bounds)
        outside = [Formula(SumColumn("outside", sides, loss))] if bounded else []
        return [Formula(SumColumn("clipped", sides, loss)), *(outside if sides != "dual" else [])]
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


class FittedFormulas(NamedTuple):
    """How well formulas with the same number of fitted terms reproduce a metric, by reduction."""

    formulas: tuple[Formula, ...]
    """[f]."""
    computed: Numbers
    """[f, r, s]."""
    equal: Flags
    """[f, r, s]: the step is reproduced, by a reduction that the formula may have."""
    coefficients: Numbers
    """[f, r, t] of the fitted terms."""
    ranges: Numbers | None = None
    """[f, r, 2]: the lowest and the highest first coefficient, if any is fitted."""


class FormulaGroup(NamedTuple):
    """Formulas of a metric with the same number of fitted terms, as numbers of columns."""

    formulas: tuple[Formula, ...]
    """[f]."""
    columns: NDArray[np.int64]
    """[f]."""
    scales: Numbers
    """[f] coefficients of known terms; 0 for none."""
    known: NDArray[np.int64]
    """[f]."""
    unknown: NDArray[np.int64]
    """[f, t]."""
    positive: Flags
    """[f]: the first fitted coefficient is that of a KL loss."""
    reductions: Flags
    """[f, r]: the formula may have the reduction."""

    def fit(self, series: MetricSeries, values: Numbers, magnitudes: Numbers) -> FittedFormulas:
        """Return how well the formulas reproduce a metric.

        Args:
            series: the metric.
            values: [columns, r, s] aggregated sums.
            magnitudes: [columns, r, s] aggregated absolute values.
        """
        plain = values[self.columns]
        if self.scales.any():
            plain = plain + self.scales[:, None, None] * values[self.known]
        rest, allowed = series.recorded - plain, series.allowed(magnitudes[self.columns])
        if not self.unknown.shape[1]:
            equal = (np.abs(rest) <= allowed) & series.present
            none = np.zeros((*plain.shape[:2], 0))
            return FittedFormulas(self.formulas, plain, equal & self.reductions[..., None], none)
        terms = np.moveaxis(values[self.unknown], 1, 2)  # [f, r, t, s]
        found = fit_terms(rest, terms, allowed, series.present, positive=self.positive[:, None])
        return FittedFormulas(
            self.formulas,
            plain + np.einsum("frt,frts->frs", np.nan_to_num(found.coefficients), terms),
            found.equal & self.reductions[..., None],
            found.coefficients,
            np.stack([found.low, found.high], -1),
        )


def groups_of(
    formulas: Sequence[Formula], index: Mapping[SumColumn, int], of_loss: Flags
) -> list[FormulaGroup]:
    """Return formulas by the number of their fitted terms, the fewest first.

    Args:
        formulas: of a metric, the simplest first.
        index: the numbers of columns.
        of_loss: [r] the reductions that a loss may have.
    """
    groups = []
    for count in sorted({len(one.unknown) for one in formulas}):
        own = tuple(one for one in formulas if len(one.unknown) == count)
        known = [one.known[0] if one.known else (0.0, one.column) for one in own]
        unknown = [[index[column] for column in one.unknown] for one in own]
        groups.append(
            FormulaGroup(
                own,
                np.array([index[one.column] for one in own]),
                np.array([scale for scale, _ in known]),
                np.array([index[column] for _, column in known]),
                np.array(unknown, np.int64).reshape(len(own), count),
                np.array([one.unknown[:1] != (ENTROPY,) for one in own]),
                np.stack([_reductions(one.column, of_loss) for one in own]),
            )
        )
    return groups


def _reductions(column: SumColumn, of_loss: Flags) -> Flags:
    """Return the reductions that a column may have, [r]."""
    if column.kind == "loss":
        return of_loss
    return OF_COUNTS & OF_ALL_TOKENS if column.kind == "all" else OF_COUNTS
