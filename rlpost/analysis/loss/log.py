"""A trainer's log beside the computed loss: the logged metrics of each step, and where they differ.

A log is JSON lines, or CSV, with a row for each training step.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number
from rlpost.errors import DataError, ReadWriteError, UsageError, no_such
from rlpost.io.memory_limit import memory_limit
from rlpost.pipeline.findings import finding
from rlpost.recipe.roles import columns_here

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Json = dict[str, Any]
Numbers = dict[str, float]

RELATIVE, ABSOLUTE = 1e-4, 1e-7
"""Differences that float32 arithmetic makes: numbers within them are equal."""
_COPIES = 20  # times the bytes of a log: its text, rows and numbers
_DECIMALS = range(3, 9)
"""Decimals of a logger that rounds; half of the last one is the tolerance."""
_MEANS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
"""Aggregations that are tried if the given one is not the log's."""
STEP = "step"
STEP_COLUMNS = (
    "step", "global_step", "_step", "training/global_step", "train/global_step", "train/step",
    "trainer/global_step", "rollout/step", "training_step", "iteration",
)  # fmt: skip
_PREFIXES = ("train", "actor", "policy", "training", "ppo_actor", "update", "loss", "metrics")
_SUFFIX = re.compile(r"(@sum|@mean|[/_]avg)$")


METRICS = {
    "pg_loss": ("policy_loss actor_loss loss/policy", "policy_loss"),
    "loss": ("total_loss final_loss loss/total loss/mean", "total_loss"),
    "kl_loss": ("kl kl_penalty policy_kl loss/kl ref_kl", "kl_loss"),
    "clip_frac": ("pg_clipfrac clipfrac clip_ratio/region_mean clip_ratio ppo_ratio_clipfrac",
                  "clipped_low+clipped_high clipped"),
    "clip_frac_low": ("clip_ratio/low_mean ppo_ratio_low_clipfrac pg_clipfrac_low", "clipped_low"),
    "clip_frac_high": ("clip_ratio/high_mean ppo_ratio_high_clipfrac pg_clipfrac_higher",
                       "clipped_high"),
    "clip_frac_dual": ("pg_clipfrac_lower", "clipped_dual"),
    "ppo_kl": ("approxkl approx_kl policykl policy/approxkl", "-log_ratio policy_k3 log_ratio"),
    "ratio_mean": ("ratio probs_ratio importance_weight", "ratio"),
    "ratio_max": ("probs_ratio_max", "ratio.max"),
    "ratio_min": ("probs_ratio_min", "ratio.min"),
    "engine_kl": ("mismatch_kl/mean mismatch_kl rollout_kl rollout_corr/kl rollout_corr/k3_kl",
                  "engine_k1 engine_k3 -engine_k1"),
    "entropy": ("entropy_loss policy_entropy entropy/mean entropy_mean policy/entropy", ""),
}  # fmt: skip
"""By metric: names of its column, besides its own and without a first part such as `actor/`; and
what it may be, by name in `computed_steps`. `rlpost loss` computes no entropy."""
_BY_COLUMN = {x: name for name, (also, _) in METRICS.items() for x in (name, *also.split())}


def metric_of(column: str) -> str | None:
    """Return the metric that a column has; None for an unknown one.

    >>> metric_of("actor/pg_clipfrac"), metric_of("clip_ratio/region_mean"), metric_of("lr")
    ('clip_frac', 'clip_frac', None)
    """
    name = _SUFFIX.sub("", column.strip().lower())
    first, _, rest = name.partition("/")
    return _BY_COLUMN.get(name) or (_BY_COLUMN.get(rest) if first in _PREFIXES else None)


@dataclass(frozen=True)
class TrainerLog:
    """The known metrics of a log."""

    path: str
    columns: dict[str, str]
    """Column -> metric."""
    steps: dict[str, dict[str, str]]
    """Step -> column -> the text of a number."""


def read_log(path: Path, columns: Mapping[str, str] | None = None) -> TrainerLog:
    """Read the log of a trainer.

    Args:
        path: of JSON lines or CSV, with a row for each training step.
        columns: metric, or `step`, to column, where the name does not say it.

    Raises:
        UsageError: a metric does not exist.
        DataError: the log cannot be parsed, or lacks steps, metrics or a column that is named.
        ReadWriteError: it cannot be read.
    """
    chosen = dict(columns or {})
    for name, column in chosen.items():
        if name not in (STEP, *METRICS):
            known = f"the metrics are {', '.join(METRICS)}, and {STEP}"
            text = f"--log-map {name}={column}: no metric {name!r}"
            raise UsageError(no_such(text, name, METRICS, known))
    needed = "JSON lines or CSV with a row for each training step is needed"
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise ReadWriteError(f"--log {path}: not a regular file; {needed}")
        memory_limit().check(_COPIES * path.stat().st_size, f"--log {path}")
        rows = _rows(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ReadWriteError(f"--log {path}: {error.strerror or error}; {needed}") from None
    except (ValueError, RecursionError, csv.Error) as error:
        raise DataError(
            f"--log {path}: cannot be parsed ({str(error)[:200]}...); {needed}"
        ) from None
    step, kept = _columns(path, list(dict.fromkeys(name for row in rows for name in row)), chosen)
    steps: dict[str, dict[str, str]] = {}
    for row in rows:
        if step in row:  # of several rows of a step, the last that has a column counts
            texts = {name: row[name] for name in kept if name in row}
            steps.setdefault(_label(row[step]), {}).update(texts)
    return TrainerLog(str(path), kept, steps)


def _columns(
    path: Path, names: Sequence[str], chosen: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return the column of the step, and the metric of each known column."""
    for name, column in chosen.items():
        if column not in names:
            text = f"--log {path}: --log-map {name}={column}: no column {column!r}"
            raise DataError(no_such(text, column, names))
    step = chosen.get(STEP) or next((name for name in STEP_COLUMNS if name in names), None)
    if step is None:
        raise DataError(f"--log {path}: no column for the step; --log-map step=COLUMN names it")
    named = {column: metric for metric, column in chosen.items() if metric != STEP}
    metrics = {name: named.get(name) or metric_of(name) for name in names if name != step}
    kept = {x: metric for x, metric in metrics.items() if metric and chosen.get(metric, x) == x}
    if not kept:
        text = f"--log {path}: no column is a known metric"
        raise DataError(text, tip=f"--log-map METRIC=COLUMN  # {columns_here(names)}")
    return step, kept


def _rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a log: the text of each number by column."""
    if not text.lstrip().startswith("{"):
        return [dict(_flat(row)) for row in csv.DictReader(io.StringIO(text))]
    lines = [line for line in text.split("\n") if line.strip()]
    parsed = (json.loads(x, parse_float=str, parse_int=str, parse_constant=str) for x in lines)
    return [dict(_flat(row)) for row in parsed if isinstance(row, dict)]


def _flat(row: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of a row; names of nested ones are joined by `/`, without a first `data`."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, "" if not prefix and key == "data" else f"{prefix}{key}/")
        elif isinstance(value, str) and value.strip():
            yield f"{prefix}{key}", value


def _label(step: Any) -> str:
    """Return a step as text: 3 for 3.0 and "3"."""
    return re.sub(r"\.0*$", "", str(step).strip())


def computed_steps(facts: Json) -> dict[str, Numbers]:
    """Return the numbers that a trainer may log by step: means, sums and extremes of measures."""
    steps: dict[str, Numbers] = {}
    for name in dict.fromkeys(name for _, names in METRICS.values() for name in names.split()):
        parts = [part.lstrip("-").partition(".") for part in name.split("+")]
        slices = [facts[x]["step"] for x, *_ in parts if "step" in facts.get(x, ())]
        if len(slices) < len(parts):
            continue
        columns = [part[end or "mean"] for part, (*_, end) in zip(slices, parts, strict=True)]
        for label, *values in zip(slices[0]["label"], *columns, strict=True):
            if None not in values:
                step = steps.setdefault(_label(label), {})
                step[name] = -sum(values) if name.startswith("-") else sum(values)
    return steps


def add_log(summary: Json, log: TrainerLog) -> Json:
    """Return the summary of a loss with `log`, its metrics beside those of a log, and `findings`.

    Args:
        summary: of one setting.
        log: of the trainer.
    """
    computed, findings = computed_steps(summary["facts"]), [*summary["findings"]]
    steps = [step for step in computed if step in log.steps]
    if not steps:
        ends = [", ".join([*labels][:3]) for labels in (log.steps, computed)]
        text = f"--log {log.path}: none of its steps, {ends[0]}, ..., is in the input: "
        findings.append(finding("log", f"{text}{ends[1]}, ..."))
    metrics = []
    for column, name in log.columns.items():
        texts = {step: log.steps[step][column] for step in steps if column in log.steps[step]}
        metric = {"metric": name, "column": column, **_nearest(name, texts, computed)}
        metrics.append(metric)
        if not all(metric["step"]["equal"]):
            findings.append(_finding(metric))
    sides = {"only_in_log": len(log.steps), "only_in_input": len(computed)}
    facts = {side: count - len(steps) for side, count in sides.items()} | {"metrics": metrics}
    return summary | {"log": {"path": log.path, "steps": len(steps), **facts}, "findings": findings}


def _nearest(metric: str, texts: Mapping[str, str], computed: Mapping[str, Numbers]) -> Json:
    """Return the numbers of a column by step beside the computed ones that are the nearest."""
    nearest: Json = {"computed_as": None, "rounding": _rounding([*texts.values()])}
    nearest["step"] = {"label": [], "logged": [], "computed": [], "equal": []}
    logged = {step: number for step, text in texts.items() for number in _numbers(text)}
    for name in METRICS[metric][1].split():
        labels = [step for step in logged if name in computed[step]]
        numbers = [logged[step] for step in labels], [computed[step][name] for step in labels]
        equal = [_equal(x, y, nearest["rounding"]) for x, y in zip(*numbers, strict=True)]
        if labels and sum(equal) >= sum(nearest["step"]["equal"]) + bool(nearest["computed_as"]):
            columns = zip(nearest["step"], (labels, *numbers, equal), strict=True)
            nearest |= {"computed_as": name, "step": dict(columns)}
    return nearest


def _numbers(text: str) -> list[float]:
    """Return the finite number of a text, if it is one."""
    with suppress(ValueError):
        return [float(text)] if math.isfinite(float(text)) else []
    return []


def _rounding(texts: Sequence[str]) -> float:
    """Return half of the last decimal of a column, if its logger rounds."""
    decimals = max((len(text.strip().partition(".")[2]) for text in texts), default=0)
    exact = decimals not in _DECIMALS or any("e" in text.lower() for text in texts)
    return 0.0 if exact else 0.501 * 10.0**-decimals


def _equal(logged: float, computed: float, slack: float) -> bool:
    return abs(logged - computed) <= RELATIVE * abs(computed) + ABSOLUTE + slack


def _finding(metric: Json) -> Json:
    """Return how a metric differs as plain data: by a factor at every step, or where the most."""
    rows = [*zip(*metric["step"].values(), strict=True)]
    wrong = [row[:3] for row in rows if not row[3]]
    times = median([x / y for _, x, y, _ in rows if y] or [1.0])
    if len(rows) > 1 and all(_equal(x, times * y, metric["rounding"]) for _, x, y, _ in rows):
        how = f"logged = {times:.4g} x computed at every step"
    else:
        sides = sorted({"higher" if x > y else "lower" for _, x, y in wrong})
        how = f"the logged one is {' or '.join(sides)}"
    step, logged, computed = max(wrong, key=lambda row: abs(row[1] - row[2]))
    text = (
        f"{metric['metric']} (`{metric['column']}`) differs at {len(wrong)} of "
        f"{counted(len(rows), 'step')}: {how}; at step {step} {number(logged)} logged, "
        f"{number(computed)} computed"
    )
    return finding("log", text) | {"metric": metric["metric"], "columns": [metric["column"]]}


def log_tables(log: Json, *, verbose: bool) -> Iterator[TextTable]:
    """Yield the logged metrics beside the computed ones; by step if verbose."""
    rows = []
    for metric in log["metrics"]:
        equal = metric["step"]["equal"]
        names = (metric["metric"], metric["column"], metric["computed_as"] or "not computed")
        rows.append((*names, f"{sum(equal)} of {len(equal)}"))
    notes = ["A trainer's means over micro-batches, and after a step's first update, are others."]
    for side in ("log", "input"):
        count = log[f"only_in_{side}"]
        notes += [f"{counted(count, 'step')} only in the {side}"] if count else []
    title = f"Logged metrics of {counted(log['steps'], 'step')} in {log['path']}"
    yield TextTable(
        ("metric", "column", "computed as", "equal steps"), rows, title, notes=notes, text=(0, 1, 2)
    )
    for metric in log["metrics"] if verbose else ():
        steps = zip(*metric["step"].values(), strict=True)
        lines = [(x, number(y), number(z), "≠"[equal:]) for x, y, z, equal in steps]
        if lines:
            yield TextTable(("step", "logged", "computed", ""), lines, metric["metric"])
