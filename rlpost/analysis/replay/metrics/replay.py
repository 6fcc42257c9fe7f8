"""Replay of a trainer's metrics: the loss, aggregation and split that reproduce what was logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.differences import finite
from rlpost.analysis.replay.metrics.aggregates import (
    REDUCTIONS,
    Aggregated,
    extreme_columns,
    is_of_step,
    step_values,
)
from rlpost.analysis.replay.metrics.configurations import FOUND, TOLERANCE, RunConfiguration
from rlpost.analysis.replay.metrics.definitions import METRICS
from rlpost.analysis.replay.metrics.description import (
    ComputedMetric,
    about_method,
    description,
    other_aggregations,
    ties,
)
from rlpost.analysis.replay.metrics.dump import DumpInput
from rlpost.analysis.replay.metrics.findings import findings
from rlpost.analysis.replay.metrics.logs import known_metrics, read_log
from rlpost.analysis.replay.metrics.methods import BestMethod, constant_factor
from rlpost.analysis.replay.metrics.search import SearchedSteps
from rlpost.analysis.replay.metrics.steps import match_steps
from rlpost.analysis.replay.metrics.sums import roles_of
from rlpost.analysis.replay.rollouts import read_rows
from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.source import Source, TableSource
from rlpost.pipeline.device import single_threaded
from rlpost.recipe.recipe import PROXIMAL, Recipe
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.dump import MeasuredResponses
    from rlpost.analysis.replay.metrics.logs import LoggedMetric, MetricLog
    from rlpost.analysis.replay.metrics.search import Solution
    from rlpost.analysis.replay.metrics.steps import MatchedSteps, MetricSeries
    from rlpost.pipeline.options import Options
    from rlpost.recipe.loss import LossOptions

    Numbers = NDArray[np.float64]

Json = dict[str, Any]
SAMPLE_RESPONSES = 2048
"""Responses of the steps that the search reads; the result is computed on all steps."""


def replay_metrics(
    table: pa.Table | Source,
    metrics: str | Path,
    recipe: Recipe | None,
    loss: LossOptions,
    *,
    stated: Collection[str] = (),
    keys: Mapping[str, str] | None = None,
    split: Mapping[str, int] | None = None,
    tolerance: float = TOLERANCE,
    options: Options | None = None,
) -> Json:
    """Find the aggregation, the split and the terms of a loss that reproduce a trainer's metrics.

    Args:
        table: the dump: whole steps, with `step` to match the lines of the log. Files are read in
            chunks, and the steps that are searched are in memory.
        metrics: file of a logger, see `rlpost.analysis.replay.metrics.logs`.
        recipe: names columns (`columns={"advantages": "their_column"}`), and computes the
            advantages if the input has none; None for the default.
        loss: the loss of the run.
        stated: the fields of `loss` that stay; others are replaced if the log needs other values.
        keys: keys of the log by metric, for other names than those of the frameworks.
        split: `micro_batch`, `ranks` and `updates`, as far as they are known.
        tolerance: relative tolerance.
        options: how the dump is read.

    Returns:
        A plain mapping: `reproduced`, `description` (with `options`, as typed), `metrics` (of each
        its steps, differences and how it is computed), `ties`, `findings`, `not_computed`,
        `unknown_keys`, `warnings`.

    Raises:
        DataError: the log cannot be read, has no known metric, or no step of the input.
        ReadWriteError: the log cannot be opened.
        UsageError: a metric in `keys` does not exist, or `metrics` is no path.
    """
    if not isinstance(metrics, str | Path):
        raise UsageError(
            f"metrics is of type {type(metrics).__name__}: the path of a log is needed; write it "
            "as JSON lines or CSV first"
        )
    if loss.behaviour in PROXIMAL:
        raise UsageError(f"--behaviour {loss.behaviour}: metrics are replayed for old or infer")
    log, logged, unknown = _known(Path(metrics), keys)
    source = table if isinstance(table, Source) else TableSource(table)
    dump = DumpInput(source, recipe or Recipe(), options)
    configuration = RunConfiguration(loss, FOUND & {*stated}, {**(split or {})})
    configuration = configuration.for_roles(dump.roles)
    light = dump.measure((), loss)
    matched = match_steps(light, log, logged)
    every = [matched.series(one, tolerance) for one in logged]
    reasons = {one.key: _why_not(one, dump, light, configuration.loss) for one in every}
    series = [one for one in every if reasons[one.key] is None]
    solution, others = _solve(dump, light, matched, series, configuration)
    computed = _computed(dump, matched, series, solution)
    reasons |= {one.series.key: _NO_ENTROPY for one in computed if _is_poor(one, dump)}
    computed = [one for one in computed if reasons[one.series.key] is None]
    rows = [one.row for one in computed]
    equal = bool(rows) and all(one["reproduced"] for one in rows)
    return {
        "file": log.path,
        "format": log.kind,
        "steps": matched.facts,
        "responses": sum(len(light.rows_of(step)) for step in matched.steps),
        "reproduced": equal and not any(one.broken for one in every),
        "description": description(solution, computed),
        "metrics": rows,
        "ties": [*ties(solution, computed)],
        "findings": findings(matched, every, computed, others),
        "not_computed": [
            {"metric": one.name, "key": one.key, **why}
            for one in every
            if (why := reasons[one.key]) is not None
        ],
        "unknown_keys": unknown,
        "tolerance": tolerance,
        "warnings": [*log.warnings, *matched.warnings(logged)],
    }


def _known(
    path: Path, keys: Mapping[str, str] | None
) -> tuple[MetricLog, list[LoggedMetric], list[str]]:
    """Return a log, its known metrics, and its unknown keys; DataError without known ones."""
    log = read_log(path)
    metrics, unknown = known_metrics(log, keys)
    if not metrics:
        raise DataError(
            f"--metrics {log.path}: no known metric among {len(unknown)} keys "
            f"({', '.join(unknown[:8])}); --map-metric pg_loss=KEY names one; the metrics are "
            f"{', '.join(METRICS)}"
        )
    return log, metrics, unknown


def _solve(
    dump: DumpInput,
    light: MeasuredResponses,
    matched: MatchedSteps,
    series: Sequence[MetricSeries],
    configuration: RunConfiguration,
) -> tuple[Solution, list[Solution]]:
    """Return the solution by a configuration, and what it is chosen from, the best last.

    If a metric differs, the last one is by no option that the user set.
    """
    counts = [len(light.rows_of(step)) for step in matched.steps]
    most = max(2, SAMPLE_RESPONSES // max(1, *counts))
    places = np.linspace(0, len(counts) - 1, min(most, len(counts)))
    numbers = sorted({round(one) for one in places})
    steps = [matched.steps[at] for at in numbers]
    rows = np.sort(np.concatenate([light.rows_of(step) for step in steps]))
    searched = [one.at(numbers) for one in series if not is_of_step(one.definition)]
    sample = SearchedSteps(_part(dump, light, rows), steps, searched)
    with single_threaded():
        solutions = sample.solve(configuration)
        best = solutions[-1]
        if not best.reproduced and configuration != configuration.unstated:
            free = sample.solve(configuration.unstated)[-1]
            solutions += [free] if free.score > best.score else []
    return best, solutions


def _part(dump: DumpInput, light: MeasuredResponses, rows: NDArray[np.int64]) -> DumpInput:
    """Return some rows of an input; all of them if advantages of a step depend on other steps."""
    if len(rows) == len(light.step) or not light.independent:
        return dump
    table = read_rows(dump.source, dump.source.columns, rows)
    return replace(dump, source=TableSource(table))


_NO_ENTROPY = {
    "needs": None,
    "text": "no column of tokens `entropy`; it is not the mean of -log_probs",
}


def _is_poor(one: ComputedMetric, dump: DumpInput) -> bool:
    """Return whether an entropy differs from the only estimate of it, the mean of -log_probs."""
    missing = one.series.name == "entropy" and "entropy" not in dump.roles
    return missing and one.row["share"] == 0


def _why_not(
    series: MetricSeries, dump: DumpInput, light: MeasuredResponses, loss: LossOptions
) -> Json | None:
    """Return why a metric cannot be computed: the role that is missing, and a sentence."""
    definition, missing = series.definition, list[str]()
    if not series.present.any():
        return {"needs": None, "text": "no number at a matched step"}
    if series.of_loss:
        missing = dump.missing(loss)
    elif definition.kind == "tokens":
        needs = [roles_of(name, loss) for name in definition.of]
        if not any(dump.roles.issuperset(one) for one in needs):
            missing = [one for one in needs[0] if one not in dump.roles]
    elif definition.of == ("rewards",) and not light.rewards:
        missing = ["reward"]
    if not missing:
        return None
    if missing[0] not in ROLES:
        return {"needs": None, "text": f"no column of tokens `{missing[0]}`"}
    maps = " ".join(f"--map {role}=COLUMN" for role in missing)
    return {"needs": missing[0], "text": f"no column for {' and '.join(missing)}; {maps}"}


def _computed(
    dump: DumpInput, matched: MatchedSteps, series: Sequence[MetricSeries], solution: Solution
) -> list[ComputedMetric]:
    """Return the metrics of a log with the numbers of all steps of a dump."""
    pairs = zip(solution.series, solution.chosen, strict=True)
    chosen = {one.key: own for one, own in pairs}
    columns = [column for one in chosen.values() if one.best for column in one.best.columns]
    loss = solution.configuration.loss
    extremes = [column for one in series for column in extreme_columns(one.definition)]
    columns += [one for one in extremes if dump.roles.issuperset(one.roles(loss))]
    measured = dump.measure([*dict.fromkeys(columns)], loss)
    data = Aggregated(measured, matched.steps, loss.agg_length)
    whole = [(one, chosen.get(one.key, BestMethod())) for one in series]
    return [ComputedMetric(*one, _row(*one, data, matched)) for one in whole]


def _row(series: MetricSeries, chosen: BestMethod, data: Aggregated, matched: MatchedSteps) -> Json:
    """Return a metric with recorded and computed numbers, and how it is computed."""
    best, present = chosen.best, series.present
    if best is not None:
        about = about_method(series, best)
        computed, magnitude = best.computed(data)
    else:
        about, computed = _of_steps(series, data)
        magnitude = np.abs(computed)
    equal, differences = series.equal(computed, magnitude), np.abs(computed - series.recorded)
    reproduced = bool((equal | ~present).all())
    row: Json = {
        "metric": series.name,
        "key": series.key,
        "reproduced": reproduced and not series.broken,
        "informative": series.informative,
        "rounding": finite(np.max(series.rounding)),
        "computed_as": about,
        "max_difference": finite(np.max(differences[present])),
        "median_difference": finite(np.median(differences[present])),
        "share": float(equal[present].mean()),
        "steps": [
            {"step": step, "recorded": finite(left), "computed": finite(right)}
            for step, left, right in zip(matched.steps, series.logged, computed, strict=True)
        ],
    }
    if best is not None:
        row["aggregation"] = str(REDUCTIONS[best.reduction])
        row["level"] = best.level
        row["also"] = other_aggregations(best, chosen.others)
    if not reproduced:
        own = series.recorded[present], computed[present], equal[present], series.tolerance
        row["relation"] = _relation(*own)
        row["differs_at"] = [matched.steps[at] for at in np.flatnonzero(~equal & present)]
    return row


def _of_steps(series: MetricSeries, data: Aggregated) -> tuple[str, Numbers]:
    """Return what a metric of whole steps is, or is closest to, and its numbers."""

    def closeness(numbers: Numbers) -> tuple[int, float]:
        equal = series.equal(numbers, np.abs(numbers))
        gaps = np.abs(numbers - series.recorded)[series.present]
        return -int(equal.sum()), float(np.median(gaps))

    return min(step_values(series.definition, data), key=lambda one: closeness(one[1]))


def _relation(
    recorded: Numbers, computed: Numbers, equal: NDArray[np.bool_], tolerance: float
) -> Json | None:
    """Return what recorded and computed numbers have in common: a factor, or equal steps."""
    factor = constant_factor(recorded, computed, tolerance)
    if factor is not None:
        return {"factor": factor}
    return {"equal_steps": float(equal.mean())} if 0 < equal.sum() < len(equal) else None
