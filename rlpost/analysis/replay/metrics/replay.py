"""Replay of a trainer's metrics: which loss, aggregation and split reproduce what was logged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.metrics.attempts import Inputs, Search
from rlpost.analysis.replay.metrics.findings import (
    ComputedMetric,
    about_reading,
    description,
    findings,
    relation,
    terms_of,
    ties,
)
from rlpost.analysis.replay.metrics.fit import (
    HOWS,
    LOSS_METRICS,
    QUANTITIES,
    Aggregated,
    quantity_columns,
)
from rlpost.analysis.replay.metrics.logs import METRICS, known_metrics, read_log
from rlpost.analysis.replay.metrics.losses import Column
from rlpost.analysis.replay.metrics.steps import extreme_columns, match_steps, simple_values
from rlpost.analysis.replay.rollouts import read_rows
from rlpost.errors import DataError, UsageError
from rlpost.io.parquet.source import Source
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.attempts import Found
    from rlpost.analysis.replay.metrics.fit import Target
    from rlpost.analysis.replay.metrics.logs import Log, Recorded
    from rlpost.analysis.replay.metrics.measure import Measured
    from rlpost.analysis.replay.metrics.search import Read, Reading
    from rlpost.analysis.replay.metrics.steps import Matched
    from rlpost.pipeline.options import Options
    from rlpost.recipe.loss import LossOptions

    Numbers = NDArray[np.float64]

Json = dict[str, Any]
TOLERANCE = 1e-5
"""Relative difference between a logged metric and the computed one."""
SAMPLE_RESPONSES = 2048
"""Responses of the steps that the search reads; the result is computed on all steps."""
_NEEDS = {
    "ppo_kl": ("log_probs", "old_log_probs"),
    "ratio_mean": ("log_probs", "old_log_probs"),
    "ratio_max": ("log_probs", "old_log_probs"),
    "ratio_min": ("log_probs", "old_log_probs"),
    "kl_loss": ("log_probs", "ref_log_probs"),
    "engine_kl": ("old_log_probs", "infer_log_probs"),
    "engine_diff_max": ("old_log_probs", "infer_log_probs"),
    **dict.fromkeys(("value_mean", "value_max", "value_min"), ("values",)),
    **dict.fromkeys(("advantage_mean", "advantage_max", "advantage_min"), ("advantages",)),
    **dict.fromkeys(("reward_mean", "reward_max", "reward_min", "reward_std"), ("reward",)),
}


def replay_metrics(
    table: pa.Table | Source,
    metrics: str | Path,
    recipe: Recipe | None = None,
    loss: LossOptions | None = None,
    *,
    fixed: Collection[str] = (),
    keys: Mapping[str, str] | None = None,
    micro_batch: int | None = None,
    ranks: int | None = None,
    updates: int | None = None,
    tolerance: float = TOLERANCE,
    options: Options | None = None,
) -> Json:
    """Find the loss, the aggregation and the split that reproduce a trainer's metrics.

    Args:
        table: the dump: whole steps, with `step` to match the lines of the log. Files are read in
            chunks, and the steps that are searched are in memory.
        metrics: file of a logger, see `rlpost.analysis.replay.metrics.logs`.
        recipe: names columns (`columns={"advantages": "their_column"}`), and computes the
            advantages if the input has none.
        loss: options of the loss; only those in `fixed` count.
        fixed: the fields of `loss` that stay; the others are searched for.
        keys: keys of the log by metric, for other names than those of the frameworks.
        micro_batch: responses of a micro-batch; None: searched for.
        ranks: data-parallel ranks; None: searched for.
        updates: optimiser updates of a step; None: searched for.
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
    log, recorded, unknown = _known(Path(metrics), keys)
    split = {"micro": micro_batch, "ranks": ranks, "updates": updates}
    inputs = Inputs(recipe or Recipe(), loss, frozenset(fixed), tolerance, split, options)
    light = inputs.measured(table, wanted=())
    matched = match_steps(light, log, recorded)
    sample = _sample(light, matched)
    labels = [matched.steps[one] for one in sample]
    part = _rows_of(table, light, labels)
    losses = any(one.metric in LOSS_METRICS for one in recorded)
    search = Search(inputs, part, labels, losses=losses)
    whole, not_computed = _targets(recorded, matched, search.first.data)
    found = search.run([one.of(sample) for one in whole])
    read = found.reader.all([one.of(sample) for one in whole])
    every = found.data
    if part is not table:
        every = _measured_whole(table, inputs, found, whole, read, matched)
    rows = [
        _replayed(target, one, every, matched, tolerance)
        for target, one in zip(whole, read, strict=True)
    ]
    both = zip(rows, read, strict=True)
    kept = [(row, one.reading) for row, one in both if not _is_proxy(row, one.reading, every)]
    not_computed += [
        {"metric": row["metric"], "key": row["key"], "needs": None, "text": _NO_ENTROPY}
        for row in rows
        if not any(row is one for one, _ in kept)
    ]
    rows, readings = [row for row, _ in kept], [reading for _, reading in kept]
    described = description(found.choice, rows, readings)
    logged = [matched.target(one) for one in recorded]
    computed = [
        ComputedMetric(row, reading, described) for row, reading in zip(rows, readings, strict=True)
    ]
    texts = [text for one in recorded if (text := matched.not_numbers(one)) is not None]
    return {
        "file": log.path,
        "format": log.kind,
        "steps": matched.facts(log),
        "responses": int(sum(every.counts)),
        "reproduced": bool(rows)
        and all(one["reproduced"] for one in rows)
        and not any(one.broken for one in logged),
        "description": described,
        "metrics": rows,
        "ties": ties(found.choice, rows, readings),
        "findings": findings(matched, logged, computed),
        "not_computed": not_computed,
        "unknown_keys": unknown,
        "tolerance": tolerance,
        "warnings": [*log.warnings, *matched.warnings, *texts],
    }


def _known(path: Path, keys: Mapping[str, str] | None) -> tuple[Log, list[Recorded], list[str]]:
    """Return a log, its known metrics, and its unknown keys; DataError without known ones."""
    log = read_log(path)
    recorded, unknown = known_metrics(log, keys)
    if not recorded:
        raise DataError(
            f"--metrics {log.path}: no known metric among {len(unknown)} keys "
            f"({', '.join(unknown[:8])}); --map-metric pg_loss=KEY names one; the metrics are "
            f"{', '.join(METRICS)}"
        )
    return log, recorded, unknown


def _targets(
    recorded: Sequence[Recorded], matched: Matched, data: Aggregated
) -> tuple[list[Target], list[Json]]:
    """Return the metrics that the dump has numbers for, and the others with the reason."""
    whole, not_computed = [], []
    for one in recorded:
        target = matched.target(one)
        why = _why_not(target, data)
        if why is None:
            whole.append(target)
        else:
            not_computed.append({"metric": one.metric, "key": one.key, **why})
    return whole, not_computed


def _measured_whole(
    table: pa.Table | Source,
    inputs: Inputs,
    found: Found,
    targets: Sequence[Target],
    read: Sequence[Read],
    matched: Matched,
) -> Aggregated:
    """Return all matched steps with the columns that were found on the sample."""
    wanted = {column for one in read if one.reading for column in one.reading.needs}
    wanted |= {column for one in targets for column in extreme_columns(one.metric)}
    candidates = found.candidates_of(wanted)
    wanted.add(Column("sum", "one"))
    full = inputs.measured(table, wanted=wanted, candidates=candidates)
    return Aggregated(full, matched.steps, inputs.length)


_NO_ENTROPY = "no column of tokens `entropy`; it is not the mean of -log_probs"


def _is_proxy(row: Json, reading: Reading | None, data: Aggregated) -> bool:
    """Return whether an entropy differs from the only estimate of it, the mean of -log_probs."""
    missing = Column("sum", "entropy") not in data.index
    estimated = reading is not None and reading.columns[0].name != "entropy"
    return row["metric"] == "entropy" and missing and estimated and row.get("share") == 0


def _rows_of(
    table: pa.Table | Source, measured: Measured, steps: Sequence[str]
) -> pa.Table | Source:
    """Return the rows of some steps; the whole input if they have all rows.

    Advantages that are computed may depend on other steps, so the input stays whole then.
    """
    rows = np.sort(np.concatenate([measured.rows_of(step) for step in steps]))
    if len(rows) == len(measured.step) or not measured.apart:
        return table
    if isinstance(table, Source):
        return read_rows(table, table.columns, rows)
    return table.take(pa.array(rows))


def _sample(measured: Measured, matched: Matched) -> list[int]:
    """Return the numbers of the matched steps that the search reads."""
    counts = [len(measured.rows_of(step)) for step in matched.steps]
    most = max(1, min(len(counts), SAMPLE_RESPONSES // max(1, *counts)))
    most = max(most, min(len(counts), 2))
    return sorted({round(one) for one in np.linspace(0, len(counts) - 1, most)})


def _why_not(target: Target, data: Aggregated) -> Json | None:
    """Return why a metric cannot be computed: the role that is missing, and a sentence."""
    metric, measured = target.metric, data.measured
    if np.isnan(target.recorded).all():
        return {"needs": None, "text": "no number at a matched step"}
    lacks = {} if metric not in LOSS_METRICS else measured.lacks
    if metric in LOSS_METRICS and not lacks:
        return None
    columns = quantity_columns(metric, data.index) if metric in QUANTITIES else iter(())
    if simple_values(metric, data) is not None or next(columns, None) is not None:
        return None
    missing = [*lacks] or [one for one in _NEEDS.get(metric, ()) if one not in measured.roles]
    if not missing:
        return {"needs": None, "text": f"no column of tokens `{metric.partition('_')[0]}`"}
    maps = " ".join(f"--map {role}=COLUMN" for role in missing)
    return {"needs": missing[0], "text": f"no column for {' and '.join(missing)}; {maps}"}


def _replayed(
    full: Target, read: Read, every: Aggregated, matched: Matched, tolerance: float
) -> Json:
    """Return a metric with recorded and computed numbers, and how it is computed."""
    reading, others, instead = read
    simple = simple_values(full.metric, every) if reading is None else None
    if simple is not None:
        gaps = {name: full.gaps(numbers, tolerance, np.abs(numbers)) for name, numbers in simple}
        about = min(gaps, key=lambda one: gaps[one] * (gaps[one] > 1))
        computed = dict(simple)[about]
    elif reading is not None:
        computed, about = reading.computed(every), about_reading(full.metric, reading)
    else:
        computed, about = np.full(len(full.recorded), np.nan), "nothing"
    magnitude = np.abs(computed) if reading is None else reading.magnitude(every)
    gap = full.gaps(computed, tolerance, magnitude)
    differences = np.abs(computed - full.recorded)
    present = ~np.isnan(full.recorded)
    reproduced = bool(gap <= 1) and not full.broken
    row: Json = {
        "metric": full.metric,
        "key": full.key,
        "reproduced": reproduced,
        "informative": full.informative,
        "rounding": _float(np.max(full.rounding)),
        "computed_as": about,
        "max_difference": _float(np.max(differences[present])),
        "median_difference": _float(np.median(differences[present])),
        "steps": [
            {"step": step, "recorded": _float(left), "computed": _float(right)}
            for step, left, right in zip(matched.steps, full.recorded, computed, strict=True)
        ],
    }
    if reading is not None:
        row["aggregation"] = HOWS[reading.how].name
        row["level"] = reading.level
        same = {HOWS[one.how].aggregation for one in others if one.level == reading.level}
        row["also"] = sorted(same - {HOWS[reading.how].aggregation})
    if gap > 1:
        equal = full.equal(computed, tolerance, magnitude)
        row["relation"] = relation(
            full.recorded[present], computed[present], equal[present], tolerance
        )
        row["share"] = float(equal[present].mean())
        row["differs_at"] = [matched.steps[at] for at in np.flatnonzero(~equal)]
        if instead is not None:
            row["fits"] = about_reading(full.metric, instead)
            row["fits_options"] = [part for pair in terms_of(instead).items() for part in pair]
    return row


def _float(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
