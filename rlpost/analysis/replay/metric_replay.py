"""Replay of a trainer's metrics: which loss, aggregation and split reproduce what was logged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.losses import SIDES
from rlpost.analysis.replay.measure import measure
from rlpost.analysis.replay.metric_fit import HOWS, LOSS_METRICS, QUANTITIES, Aggregated, Fitting
from rlpost.analysis.replay.metric_search import best_reading, bounds_of, choose, fits_of
from rlpost.analysis.replay.metric_steps import match_steps, simple_values
from rlpost.analysis.replay.metrics import METRICS, known_metrics, read_log
from rlpost.analysis.replay.splits import ABOUT_LEVELS, all_splits
from rlpost.errors import DataError
from rlpost.io.parquet.source import TableSource
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import DEFAULTS, word
from rlpost.recipe.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.measure import Measured
    from rlpost.analysis.replay.metric_fit import Grid, Target
    from rlpost.analysis.replay.metric_search import Choice, Place, Reading
    from rlpost.analysis.replay.metric_steps import Matched
    from rlpost.io.parquet.source import Source
    from rlpost.pipeline.options import Options
    from rlpost.recipe.loss import LossOptions

    Numbers = NDArray[np.float64]

Json = dict[str, Any]
TOLERANCE = 1e-5
"""Relative difference between a logged metric and the computed one."""
SAMPLE_RESPONSES = 4096
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
    table: pa.Table | Source | TableSource,
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
        table: the dump: whole steps, with `step` to match the lines of the log.
        metrics: file of a logger, see `rlpost.analysis.replay.metrics`.
        recipe: names columns (`columns={"advantages": "their_column"}`), and computes the
            advantages if the input has none.
        loss: options of the loss; only those in `fixed` count.
        fixed: the fields of `loss` that are known; the others are searched.
        keys: keys of the log by metric, for other names than those of the frameworks.
        micro_batch: responses of a micro-batch, if known.
        ranks: data-parallel ranks, if known.
        updates: optimiser updates of a step, if known.
        tolerance: relative tolerance.
        options: how the dump is read.

    Returns:
        A plain mapping: `reproduced`, `description` (with `options`, as typed), `metrics` (of each
        its steps, differences and how it is computed), `ties`, `findings`, `not_computed`,
        `unknown_keys`, `warnings`.

    Raises:
        DataError: the log cannot be read, has no known metric, or no step of the input.
        UsageError: a metric in `keys` does not exist.
    """
    log = read_log(Path(metrics))
    recorded, unknown = known_metrics(log, keys)
    if not recorded:
        raise DataError(
            f"--metrics {log.path}: no known metric among {len(unknown)} keys "
            f"({', '.join(unknown[:8])}); --map-metric pg_loss=KEY names one; the metrics are "
            f"{', '.join(METRICS)}"
        )
    source = TableSource(table) if isinstance(table, pa.Table) else table
    measured = measure(source, recipe or Recipe(), loss, fixed, options=options)
    matched = match_steps(measured, log, recorded)
    every = Aggregated(measured, matched.steps, _length(loss, fixed))
    sample = _sample(measured, matched)
    data = every if sample == [*range(len(matched.steps))] else _part(every, sample)
    hows = _hows(loss, fixed)
    fitting = Fitting(data, tolerance)
    targets, whole = [], []
    not_computed: list[Json] = []
    for one in recorded:
        target = matched.target(one)
        why = _why_not(one.metric, measured, data)
        if why is not None:
            not_computed.append({"metric": one.metric, "key": one.key, **why})
        elif np.isnan(target.recorded).all():
            not_computed.append(
                {"metric": one.metric, "key": one.key, "needs": None, "text": "no matched step"}
            )
        else:
            whole.append(target)
            targets.append(target.of(sample))
    splits = all_splits(data.counts, micro=micro_batch, ranks=ranks, updates=updates)
    searched = [one for one in targets if one.metric in (*QUANTITIES, *LOSS_METRICS)]
    fits = fits_of(data, fitting, searched, splits, hows)
    choice = choose(fits, fitting, splits)
    rows, used = [], []
    for target, full in zip(targets, whole, strict=True):
        row, reading = _replayed(target, full, choice, fits, data, every, matched, hows, tolerance)
        rows.append(row)
        used.append(reading)
    description = _description(choice, rows, used)
    return {
        "file": log.path,
        "format": log.kind,
        "steps": matched.facts(log),
        "responses": int(sum(every.counts)),
        "reproduced": bool(rows) and all(one["reproduced"] for one in rows),
        "description": description,
        "metrics": rows,
        "ties": _ties(choice, rows, used),
        "findings": [*matched.findings, *_findings(rows, description)],
        "not_computed": not_computed,
        "unknown_keys": unknown,
        "tolerance": tolerance,
        "warnings": [*log.warnings, *matched.warnings],
    }


def _length(loss: LossOptions | None, fixed: Collection[str]) -> float | None:
    known = loss is not None and "agg_length" in fixed and loss.agg_length is not None
    return float(loss.agg_length) if known else None  # type: ignore[union-attr, arg-type]


def _hows(loss: LossOptions | None, fixed: Collection[str]) -> list[int]:
    """Return the aggregations of the loss to try."""
    if loss is None or "aggregation" not in fixed:
        return [*range(len(HOWS))]
    return [at for at, one in enumerate(HOWS) if one.aggregation == loss.aggregation]


def _sample(measured: Measured, matched: Matched) -> list[int]:
    """Return the numbers of the matched steps that the search reads."""
    counts = [len(measured.rows_of(step)) for step in matched.steps]
    most = max(1, min(len(counts), SAMPLE_RESPONSES // max(1, *counts)))
    most = max(most, min(len(counts), 2))
    return sorted({round(one) for one in np.linspace(0, len(counts) - 1, most)})


def _part(every: Aggregated, steps: Sequence[int]) -> Aggregated:
    part = Aggregated(every.measured, [], every.length)
    part.steps = [every.steps[one] for one in steps]
    part.absolute = [every.absolute[one] for one in steps]
    return part


def _why_not(metric: str, measured: Measured, data: Aggregated) -> Json | None:
    """Return why a metric cannot be computed: the role that is missing, and a sentence."""
    if metric in LOSS_METRICS:
        if measured.candidates is not None:
            return None
        role, why = next(iter(measured.lacks.items()))
        return {"needs": role, "text": f"no column for {role} ({why})"}
    if simple_values(metric, data) is not None:
        return None
    if metric in QUANTITIES and any(
        column.kind == "sum" and column.name in QUANTITIES[metric] for column in data.index
    ):
        return None
    roles = _NEEDS.get(metric, ())
    missing = [role for role in roles if role not in measured.roles]
    if missing:
        return {"needs": missing[0], "text": f"no column for {' and '.join(missing)}"}
    column = metric.partition("_")[0]
    return {"needs": None, "text": f"no column of tokens `{column}`"}


def _replayed(
    target: Target,
    full: Target,
    choice: Choice,
    fits: Any,
    data: Aggregated,
    every: Aggregated,
    matched: Matched,
    hows: Collection[int],
    tolerance: float,
) -> tuple[Json, Reading | None]:
    """Return a metric with recorded and computed numbers, and how it is computed."""
    simple = simple_values(target.metric, every)
    reading: Reading | None = None
    others: list[Reading] = []
    if simple is not None:
        gaps = {name: full.gaps(numbers, tolerance, np.abs(numbers)) for name, numbers in simple}
        name = min(gaps, key=lambda one: (gaps[one] > 1, gaps[one] * (gaps[one] > 1)))
        computed, about = dict(simple)[name], name
    else:
        reading, _, others = best_reading(target, choice, fits, data, hows, tolerance)
        if reading is None:
            computed, about = np.full(len(full.recorded), np.nan), "nothing"
        else:
            computed, about = reading.computed(every), about_reading(target.metric, reading)
    magnitude = np.abs(computed) if reading is None else reading.magnitude(every)
    gap = full.gaps(computed, tolerance, magnitude)
    differences = np.abs(computed - full.recorded)
    present = ~np.isnan(full.recorded)
    reproduced = bool(gap <= 1)
    row: Json = {
        "metric": target.metric,
        "key": target.key,
        "reproduced": reproduced,
        "informative": target.informative,
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
        row["also"] = sorted({HOWS[one.how].name for one in others if one.level == reading.level})
    if not reproduced:
        row["relation"] = relation(full.recorded[present], computed[present], tolerance)
    return row, reading


def _float(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def about_reading(metric: str, reading: Reading) -> str:
    """Return how a metric is computed, in words."""
    how = HOWS[reading.how]
    where = ABOUT_LEVELS[reading.level]
    column = reading.columns[0]
    population = "all tokens" if column.kind == "all" else how.population
    population = f" of {population}" if population != "policy tokens" else ""
    kind = f"{column.name} " if metric in QUANTITIES and column.name != metric else ""
    kind = "ratio outside the bounds, any advantage: " if column.kind == "outside" else kind
    rows = " (all responses)" if how.rows == "all" and "seq-mean" in how.aggregation else ""
    return f"{kind}{how.aggregation}{population}{rows}, {where}"


def relation(recorded: Numbers, computed: Numbers, tolerance: float) -> Json | None:
    """Return what recorded and computed numbers have in common: a factor or an offset."""
    usable = np.isfinite(computed) & (computed != 0)
    if usable.sum() >= _LEAST and usable.all():
        ratios = recorded / computed
        factor = float(np.median(ratios))
        if np.all(np.abs(ratios - factor) <= _LOOSE * tolerance * abs(factor) + 1e-12):
            name = "sign" if abs(factor + 1) <= _LOOSE * tolerance else "factor"
            return {"finding": name, "value": factor}
    if np.isfinite(computed).all() and len(recorded) >= _LEAST:
        offsets = recorded - computed
        offset = float(np.median(offsets))
        spread = _LOOSE * tolerance * float(np.abs(recorded).max() + np.abs(computed).max())
        if np.all(np.abs(offsets - offset) <= spread) and offset:
            return {"finding": "offset", "value": offset}
    equal = np.abs(recorded - computed) <= tolerance * np.abs(recorded) + 1e-12
    if 0 < equal.sum() < len(equal):
        return {"finding": "some-steps", "value": float(equal.mean())}
    return None


_LEAST = 2  # steps that show a relation
_LOOSE = 10


def _description(choice: Choice, rows: Sequence[Json], used: Sequence[Reading | None]) -> Json:
    """Return the smallest description, with the options as typed."""
    options: list[str] = []
    loss: Json | None = None
    if choice.grid is not None and any(row["metric"] in LOSS_METRICS for row in rows):
        loss = loss_of(choice.grid, choice.place)
        options += [part for name, value in loss.items() for part in (flag_of(name), word(value))]
    for row, reading in zip(rows, used, strict=True):
        if reading is not None and row["metric"] in ("pg_loss", "loss"):
            options += HOWS[reading.how].options
            break
    return {
        "options": [*options, *choice.split.options],
        "loss": loss,
        "micro_batch": choice.split.micro,
        "ranks": choice.split.ranks,
        "updates": choice.split.updates,
        "rank_order": "strided" if choice.split.strided else "consecutive",
        "split": str(choice.split),
        "explains": [row["key"] for row in rows if row["reproduced"]],
    }


def loss_of(grid: Grid, place: Place) -> Json:
    """Return the options of a loss that differ from its defaults, and its clip range."""
    family, bounds = grid.family, bounds_of(grid, place)
    values: Json = {"loss": family.loss}
    if family.behaviour == "infer":
        values["behaviour"] = "infer"
    if not grid.clipped:
        pairs = (part.partition("=") for part in str(bounds["whole"]).split())
        defaults = {name: word(x) for name, x in DEFAULTS[family.loss].items()}
        return values | {name: x for name, _, x in pairs if defaults.get(name) != x}
    low, high = bounds["low"], bounds["high"]
    if low == high and low != math.inf:
        values["pg_clip"] = low
    else:
        values["pg_clip_low"], values["pg_clip_high"] = _bound(low), _bound(high)
    if bounds["dual"] != math.inf:
        values["dual_clip"] = bounds["dual"]
    return values


def _bound(value: float | str) -> float | str:
    return "never" if value == math.inf else value


_WHAT_TELLS = {
    "low": "tokens with a negative advantage and a ratio between these bounds",
    "high": "tokens with a positive advantage and a ratio between these bounds",
    "dual": "tokens with a negative advantage and a ratio above these bounds",
    "whole": "steps in which the options change the loss of a token",
}
_FIELDS = {"low": "--pg-clip-low", "high": "--pg-clip-high", "dual": "--dual-clip"}


def _ties(choice: Choice, rows: Sequence[Json], used: Sequence[Reading | None]) -> list[Json]:
    """Return the other descriptions that reproduce as much, and what data would tell them apart."""
    ties: list[Json] = []
    for side, values in choice.tied_bounds.items():
        if values and side in SIDES:
            names = [word(_bound(one)) for one in values]
            ties.append(
                {
                    "option": _FIELDS[side],
                    "values": names,
                    "text": f"{_FIELDS[side]} {', '.join(names)} reproduce the same numbers",
                    "told_apart_by": _WHAT_TELLS[side],
                }
            )
    for row, reading in zip(rows, used, strict=True):
        if reading is not None and row["metric"] in ("pg_loss", "loss") and row["also"]:
            ties.append(
                {
                    "option": "--aggregation",
                    "values": row["also"],
                    "text": f"{row['key']} is the same with {', '.join(row['also'])}",
                    "told_apart_by": "responses of different lengths in each unit",
                }
            )
            break
    if choice.tied_losses:
        names = [
            " ".join(f"{flag_of(k)} {word(x)}" for k, x in loss_of(grid, place).items())
            for grid, place in choice.tied_losses
        ]
        ties.append(
            {
                "option": "--loss",
                "values": names,
                "text": f"{len(names)} other losses reproduce the same numbers",
                "told_apart_by": "more steps, and steps in which tokens are clipped",
            }
        )
    if choice.tied_splits:
        names = [str(one) for one in choice.tied_splits]
        ties.append(
            {
                "option": "--micro-batch, --ranks",
                "values": names,
                "text": f"{len(names)} other splits reproduce the same numbers",
                "told_apart_by": "a metric that is a mean of micro-batches of different lengths",
            }
        )
    return ties


def _findings(rows: Sequence[Json], description: Json) -> list[Json]:
    """Return what the metrics that are not reproduced have in common with the computed ones."""
    findings: list[Json] = []
    for row in rows:
        if row["reproduced"]:
            continue
        found: Json = row.get("relation") or {"finding": "unexplained", "value": 0.0}
        name = found["finding"]
        text = f"{row['key']} is not explained: the closest is {row['computed_as']}"
        if name == "factor":
            text = f"{row['key']} is {found['value']:.6g} times the computed one"
            text += _about_factor(found["value"], description)
        elif name == "sign":
            text = f"{row['key']} has the other sign"
        elif name == "offset":
            text = f"{row['key']} is the computed one plus {found['value']:.6g}"
        elif name == "some-steps":
            text = f"{row['key']} is reproduced at {found['value']:.0%} of the steps"
        share = found["value"] if name == "some-steps" else float(name in ("factor", "sign"))
        findings.append({"finding": name, "text": text, "options": [], "explains": share})
    return findings


def _about_factor(factor: float, description: Json) -> str:
    """Return what a factor may be."""
    for value, why in (
        (description["micro_batch"], "responses of a micro-batch"),
        (description["ranks"], "ranks"),
        (description["updates"], "updates"),
    ):
        for one, verb in ((factor, "a sum, not a mean"), (1 / factor, "divided once more")):
            if value and value > 1 and abs(one - value) < 1e-4 * value:
                return f", the number of {why}: {verb}"
    return ""
