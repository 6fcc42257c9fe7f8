"""Options of a configuration that a log contradicts: other values reproduce it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlpost.analysis.replay.metrics.configurations import SIDES
from rlpost.analysis.replay.metrics.description import as_typed, split_fields, term_fields
from rlpost.analysis.replay.metrics.reductions import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.analysis.replay.metrics.search import Explanation, Solution
    from rlpost.analysis.replay.metrics.series import MetricSeries

Json = dict[str, Any]
Values = dict[str, Any]


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
