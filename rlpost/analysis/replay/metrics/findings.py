"""Checks of a log: what is wrong with it, and what explains the metrics that differ."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlpost.analysis.replay.findings.base import (
    AnyFunction,
    ExplainedFinding,
    Explanation,
    ReplayChecks,
)
from rlpost.analysis.replay.metrics.aggregates import REDUCTIONS
from rlpost.analysis.replay.metrics.configurations import SIDES
from rlpost.analysis.replay.metrics.description import options_of, split_fields, term_fields
from rlpost.analysis.replay.metrics.steps import at_steps
from rlpost.analysis.replay.search.candidates import in_line
from rlpost.display.text import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlpost.analysis.replay.metrics.description import ComputedMetric
    from rlpost.analysis.replay.metrics.methods import MetricMethod
    from rlpost.analysis.replay.metrics.search import Solution
    from rlpost.analysis.replay.metrics.steps import MatchedSteps, MetricSeries

Json = dict[str, Any]
Values = dict[str, Any]
Phase = Literal["steps", "log", "configuration", "metric", "difference"]
"""When a check runs, and what it is called with. It yields explanations.

- steps: the matched steps.
- log: a metric of the log, and the matched steps.
- configuration: options that the log contradicts.
- metric: a computed metric.
- difference: a metric that is not reproduced, and that no such options explain; the first
  explanation counts.
"""


class Contradiction(NamedTuple):
    """Options that a log contradicts, and those that reproduce its metrics."""

    keys: list[str]
    """Of the metrics."""
    needed: Values
    """The values that reproduce the metrics, by field."""
    configured: Values
    """The values of the configuration, by field."""


FINDINGS = ReplayChecks()
"""Every check of a log, by the name of its finding."""


def check(phase: Phase, **fields: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Return a decorator that adds a check of a phase to FINDINGS."""
    return FINDINGS.check(phase, **fields)


def findings(
    matched: MatchedSteps,
    series: Sequence[MetricSeries],
    metrics: Sequence[ComputedMetric],
    solutions: Sequence[Solution],
) -> list[Json]:
    """Return what is wrong with a log, and what explains the metrics that differ.

    Args:
        matched: the steps.
        series: the metrics of the log.
        metrics: those that are computed.
        solutions: of the configuration as it is, then of others that reproduce more.
    """
    found = [*_of("steps", matched)]
    found += [one for own in series for one in _of("log", own, matched.steps)]
    contradicted = [*_contradictions(solutions)]
    found += [one for own in contradicted for one in _of("configuration", own)]
    explained = {key for own in contradicted for key in own.keys}
    for metric in metrics:
        found += _of("metric", metric)
        if "relation" in metric.row and metric.series.key not in explained:
            found += islice(_of("difference", metric), 1)
    return [asdict(one) | {"options": [*one.options]} for one in found]


def _of(phase: Phase, *args: Any) -> Iterator[ExplainedFinding]:
    """Yield what the checks of a phase find."""
    for own in FINDINGS.of(phase):
        for one in own.run(*args):
            name = one.name or own.name
            yield ExplainedFinding(name, one.text, own.advice, one.explains, one.options)


@check("steps", prefix="input:")
def step_order(matched: MatchedSteps) -> Iterator[Explanation]:
    """Each step has a number in the log that is one higher, or one lower, than in the dump.

    The trainer increases its step counter before it logs, or after. Compare a step of the dump with
    the line of the log that the text names.
    """
    if matched.by == "shift":
        text = f"step {matched.steps[0]} of the input is step {matched.labels[0]} of the log"
        yield Explanation(text, 1.0)


@check("log")
def not_finite(series: MetricSeries, steps: Sequence[str]) -> Iterator[Explanation]:
    """A metric is NaN or infinite in the log.

    The update of that step may have made the weights NaN. Look for log ratios without a bound, and
    means over no token.
    """
    if series.broken:
        kinds = {False: "infinite", True: "NaN"}
        names = " or ".join({kinds[bool(np.isnan(series.logged[at]))]: 0 for at in series.broken})
        where = at_steps([steps[at] for at in series.broken])
        yield Explanation(f"{series.key} is {names} in the log at {where}", 0.0)


@check("configuration")
def option(own: Contradiction) -> Iterator[Explanation]:
    """The log contradicts an option of the loss or of the split.

    The trainer has another setting than its configuration, or the configuration is another run's.
    Add the options of the text if the trainer is right, else change the trainer.
    """
    options = options_of(_with_one_clip(own.needed))
    configured = in_line(options_of(_with_one_clip(own.configured)))
    need = f"{', '.join(own.keys)} need{'s' * (len(own.keys) == 1)} {' '.join(options)}"
    name = f"option:{next(iter(own.needed))}"
    yield Explanation(f"{need}; the configuration has {configured}", 1.0, tuple(options), name)


@check("metric")
def kl_loss(metric: ComputedMetric) -> Iterator[Explanation]:
    """A logged loss includes a KL loss, and no option sets its coefficient.

    Add the options of the text, and compare the coefficient with the trainer's.
    """
    if metric.fitted_terms and (fields := term_fields(metric.fitted_terms)):
        yield Explanation(metric.further_term, 1.0, tuple(options_of(fields)))


@check("metric")
def entropy_bonus(metric: ComputedMetric) -> Iterator[Explanation]:
    """A logged loss includes an entropy bonus, which no option sets.

    All other terms of the loss are reproduced. Compare the coefficient with the trainer's.
    """
    if metric.fitted_terms and not term_fields(metric.fitted_terms):
        yield Explanation(metric.further_term, 1.0)


@check("difference")
def factor(metric: ComputedMetric) -> Iterator[Explanation]:
    """At all steps the logged metric is the computed one times a constant.

    The trainer computes a sum in place of a mean, divides once too often, or has the other sign. In
    the loss this acts as another learning rate; in a metric that is only logged it is harmless.
    """
    value = metric.relation.get("factor")
    if value is not None:
        about = _about_factor(value, metric.method)
        yield Explanation(f"{metric.series.key} is {value:.6g} times the computed one{about}", 1.0)


@check("difference")
def some_steps(metric: ComputedMetric) -> Iterator[Explanation]:
    """The metric is reproduced at some steps, and differs at others.

    A setting changed during the run, by hand or by a schedule, or these steps have other
    micro-batches. Compare the settings that the trainer logged at these steps.
    """
    share = metric.relation.get("equal_steps")
    if share is not None:
        where = at_steps(metric.row["differs_at"])
        text = f"is reproduced at {percent(share)} of the steps; it differs at {where}"
        yield Explanation(f"{metric.series.key} {text}", share)


@check("difference")
def unexplained(metric: ComputedMetric) -> Iterator[Explanation]:
    """The metric differs at all steps, and by no constant factor.

    The trainer has another formula, or the log is of other rows than the dump. Set the options of
    the loss that are certain, and compare one step by hand.
    """
    text = f"is not explained: the closest is {metric.row['computed_as']}"
    yield Explanation(f"{metric.series.key} {text}", 0.0)


def _about_factor(factor: float, method: MetricMethod | None) -> str:
    """Return the number of the split that a factor is, in words; empty for none."""
    split = None if method is None else method.split
    for value, why in (
        (split and split.micro, "responses of a micro-batch"),
        (split and split.ranks, "ranks"),
        (split and split.updates, "updates"),
    ):
        for one, verb in ((factor, "a sum, not a mean"), (1 / factor, "divided once more")):
            if value and value > 1 and abs(one - value) < 1e-4 * value:
                return f", the number of {why}: {verb}"
    return ""


def _contradictions(solutions: Sequence[Solution]) -> Iterator[Contradiction]:
    """Yield the options in which each solution differs from the one before it."""
    for older, newer in pairwise(solutions):
        found = Contradiction([], {}, {})
        for series, before, after in zip(older.series, older.chosen, newer.chosen, strict=True):
            if after.reproduced and not before.reproduced and after.best is not None:
                found.keys.append(series.key)
                for name, value, configured in _changed(older, newer, series, after.best):
                    found.needed[name], found.configured[name] = value, configured
        if found.needed:
            yield found


def _with_one_clip(fields: Values) -> Values:
    """Return fields with one clip range in place of two equal bounds."""
    low, high = fields.get("pg_clip_low"), fields.get("pg_clip_high")
    if low is None or low != high:
        return fields
    others = {name: x for name, x in fields.items() if name not in ("pg_clip_low", "pg_clip_high")}
    return {"pg_clip": low, **others}


def _changed(
    older: Solution, newer: Solution, series: MetricSeries, best: MetricMethod
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
        needed = {
            "kl_loss_coef": 0.0,
            **REDUCTIONS[best.reduction].options,
            **term_fields(best.terms),
        }
    for name, value in (needed | split_fields(best)).items():
        configured = configuration.value(name)
        if configured is not None and configured != value:
            yield name, value, configured
