"""Solutions: what reproduces a log by a configuration, and with other clip bounds than it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rlpost.analysis.replay.metrics.aggregated import Aggregated
from rlpost.analysis.replay.metrics.clip_bounds import distances_of, solve_bounds
from rlpost.analysis.replay.metrics.formulas import formulas_of
from rlpost.analysis.replay.metrics.search import LogSearch
from rlpost.analysis.replay.metrics.splits import all_means
from rlpost.analysis.replay.metrics.sums import LossCandidate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.replay.metrics.clip_bounds import ClipBound
    from rlpost.analysis.replay.metrics.configurations import RunConfiguration
    from rlpost.analysis.replay.metrics.measure import Dump
    from rlpost.analysis.replay.metrics.search import Solution
    from rlpost.analysis.replay.metrics.series import MetricSeries
    from rlpost.analysis.replay.metrics.splits import Split
    from rlpost.analysis.replay.metrics.sums import SumColumn
    from rlpost.recipe.loss import LossOptions


@dataclass(frozen=True)
class Sample:
    """The steps that are searched."""

    dump: Dump
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
        options, losses = configuration.loss, list[LossCandidate | None]([None])
        if not self.dump.missing(options):
            losses = [
                LossCandidate(options, one) for one in ((True, False) if weights else (False,))
            ]
        search = self._search(configuration, losses)
        first = search.solve()
        if first.loss is None or all(one.reproduced for one in first.explained):
            return [first]
        splits = search.splits_without_loss()
        changes = self._changes(first, first.loss, search.data, splits)
        if not changes:
            return [first]
        again = self._search(configuration, [first.loss, *changes], splits).solve()
        assert again.loss is not None
        again = replace(again, bounds=changes.get(again.loss, ()))
        return [first, again] if again.score > first.score else [first]

    def _search(
        self,
        configuration: RunConfiguration,
        losses: Sequence[LossCandidate | None],
        splits: Sequence[Split] = (),
    ) -> LogSearch:
        """Return the search of some losses and splits; without any, of all splits."""
        computable = partial(self._computable, configuration.loss)
        formulas = partial(formulas_of, configuration=configuration, computable=computable)
        columns = (
            column
            for series in self.series
            for loss in losses
            for formula in formulas(series, loss)
            for column in formula.columns
        )
        measured = self.dump.measure([*dict.fromkeys(columns)], configuration.loss)
        data = Aggregated(measured, self.steps, configuration.loss.agg_length)
        splits = splits or configuration.splits(data.counts)
        return LogSearch(configuration, self.series, losses, splits, data, formulas)

    def _computable(self, options: LossOptions, column: SumColumn) -> bool:
        return self.dump.roles.issuperset(column.roles(options))

    def _changes(
        self, first: Solution, loss: LossCandidate, data: Aggregated, splits: Sequence[Split]
    ) -> dict[LossCandidate, tuple[ClipBound, ...]]:
        """Return losses with other bounds and policies, with the bounds that were solved for."""
        configuration = first.configuration
        bases = [loss.options]
        if "behaviour" not in configuration.stated:
            other = "infer" if loss.options.behaviour == "old" else "old"
            bases.append(loss.options.model_copy(update={"behaviour": other}))
        bases = [one for one in bases if not self.dump.missing(one)]
        changes: dict[LossCandidate, tuple[ClipBound, ...]] = {
            LossCandidate(one, loss.weighted): () for one in bases[1:]
        }
        shares = [
            series
            for series, one in zip(self.series, first.explained, strict=True)
            if series.definition.kind == "clipped" and not one.reproduced
        ]
        if not (shares and configuration.bounds):
            return changes
        means = all_means(splits, data.counts)
        for options in bases:
            distances = distances_of(self.dump, options, data)
            for bounds in solve_bounds(
                shares, options, configuration.bounds, distances, data, means
            ):
                own = {bound.option: bound.value for bound in bounds}
                changes[LossCandidate(options.model_copy(update=own), loss.weighted)] = bounds
        return changes
