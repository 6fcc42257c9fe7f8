"""What logged metrics that differ have in common with the computed ones."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.aggregates import REDUCTIONS
from rlpost.analysis.replay.metrics.configurations import SIDES
from rlpost.analysis.replay.metrics.description import MOST, as_typed, split_fields, term_fields
from rlpost.analysis.replay.metrics.steps import at_steps
from rlpost.display.text import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.description import ReplayedMetric
    from rlpost.analysis.replay.metrics.explanations import Explanation
    from rlpost.analysis.replay.metrics.search import Solution
    from rlpost.analysis.replay.metrics.steps import MetricSeries

    Numbers = NDArray[np.float64]

Json = dict[str, Any]
Values = dict[str, Any]


def relation(
    recorded: Numbers, computed: Numbers, equal: NDArray[np.bool_], tolerance: float
) -> Json | None:
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
    if 0 < equal.sum() < len(equal):
        return {"finding": "some-steps", "value": float(equal.mean())}
    return None


_LEAST = 2  # steps that show a relation
_LOOSE = 10


def findings(
    metrics: Sequence[ReplayedMetric], description: Json, contradicted: Sequence[Json]
) -> list[Json]:
    """Return what the metrics that are not reproduced have in common with the computed ones.

    Args:
        metrics: of the log.
        description: of the solution.
        contradicted: of `contradictions`, which explain some metrics.
    """
    findings: list[Json] = []
    named = {key for one in contradicted for key in one["metrics"]}
    for row, own in ((one.row, one.explained.best) for one in metrics):
        if own is not None and own.fitted and row["share"] > MOST:
            added = row["computed_as"].partition(", ")[2]
            options = as_typed(term_fields(own))
            findings.append(
                {
                    "finding": "option:kl_loss_coef" if options else "entropy-bonus",
                    "text": f"{row['key']} has a further term: {added}",
                    "options": options,
                    "explains": 1.0,
                }
            )
        if row["reproduced"] or "relation" not in row or row["key"] in named:
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
            text = (
                f"{row['key']} is reproduced at {percent(found['value'], 0)} of the steps; "
                f"it differs at {at_steps(row['differs_at'])}"
            )
        share = found["value"] if name == "some-steps" else float(name in ("factor", "sign"))
        findings.append({"finding": name, "text": text, "options": [], "explains": share})
    return findings


def not_finite(targets: Sequence[MetricSeries], steps: Sequence[str]) -> Iterator[Json]:
    """Yield a finding for each metric that is NaN or infinite in the log."""
    for one in targets:
        if one.broken:
            kinds = {False: "infinite", True: "NaN"}
            names = " or ".join({kinds[bool(np.isnan(one.logged[at]))]: 0 for at in one.broken})
            where = at_steps([steps[at] for at in one.broken])
            text = f"{one.key} is {names} in the log at {where}"
            yield {"finding": "not-finite", "text": text, "options": [], "explains": 0.0}


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


def contradictions(solutions: Sequence[Solution]) -> Iterator[Json]:
    """Yield a finding for options in whose place others reproduce more metrics of a log.

    Args:
        solutions: of the configuration as it is, then of others that reproduce more.
    """
    for older, newer in pairwise(solutions):
        keys, needed, configured = list[str](), Values(), Values()
        for metric, before, after in zip(
            older.series, older.explained, newer.explained, strict=True
        ):
            if after.reproduced and not before.reproduced and after.best is not None:
                keys.append(metric.key)
                for name, value, present in _changed(older, newer, metric, after.best):
                    needed[name], configured[name] = value, present
        if needed:
            options = as_typed(_with_one_clip(needed))
            yield {
                "finding": f"option:{next(iter(needed))}",
                "text": f"{', '.join(keys)} need{'s' * (len(keys) == 1)} {' '.join(options)}; the "
                f"configuration has {' '.join(as_typed(_with_one_clip(configured)))}",
                "options": options,
                "explains": 1.0,
                "metrics": keys,
            }


def _with_one_clip(fields: Values) -> Values:
    """Return fields with one clip range in place of two equal bounds."""
    low, high = fields.get("pg_clip_low"), fields.get("pg_clip_high")
    if low is None or low != high:
        return fields
    others = {name: x for name, x in fields.items() if name not in ("pg_clip_low", "pg_clip_high")}
    return {"pg_clip": low, **others}


def _changed(
    older: Solution, newer: Solution, series: MetricSeries, best: Explanation
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the options that a metric needs: name, value, and the one of the configuration.

    Of the bounds and the ratio also those that the user did not set.
    """
    configuration = older.configuration
    if series.of_loss and older.loss is not None and newer.loss is not None:
        before, after = older.loss.config.resolved(), newer.loss.config.resolved()
        sides = series.definition.of or tuple(SIDES)
        for name in (*(SIDES[side] for side in sides), "behaviour"):
            if before.get(name) != after.get(name):
                yield name, after[name], before[name]
    needed: dict[str, Any] = {}
    if series.definition.kind == "loss":
        needed = {"kl_loss_coef": 0.0, **REDUCTIONS[best.reduction].options, **term_fields(best)}
    for name, value in (needed | split_fields(best)).items():
        configured = configuration.value(name)
        if configured is not None and configured != value:
            yield name, value, configured
