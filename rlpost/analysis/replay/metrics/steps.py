"""The steps of a log beside those of a dump, and logged metrics by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.aggregates import StepSums, values_of_responses
from rlpost.analysis.replay.metrics.definitions import METRICS
from rlpost.analysis.replay.metrics.logs import LoggedNumber
from rlpost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.definitions import MetricDefinition
    from rlpost.analysis.replay.metrics.dump import MeasuredResponses
    from rlpost.analysis.replay.metrics.logs import LoggedMetric, MetricLog

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]

Json = dict[str, Any]
_CLOSE = 1e-4
"""Relative difference of rewards and lengths that agree."""
_MOST_NAMES = 4
MOST = 0.5
"""Share of the steps; what reproduces more of them counts."""
_SUMS = 0.1
"""Share of the tolerance that a sum may lose to cancellation, of the sum of absolute values."""
_TINY = 1e-300


@dataclass(frozen=True)
class MetricSeries:
    """A logged metric by matched step, [s]."""

    name: str
    key: str
    logged: Numbers
    """NaN also for a step without a number."""
    rounding: Numbers
    """Half a unit of the last digit."""
    absent: Flags
    """The log has no number of the step."""
    tolerance: float

    @classmethod
    def of(cls, metric: LoggedMetric, labels: Sequence[str], tolerance: float) -> MetricSeries:
        """Return a metric at the steps of a log with these labels."""
        numbers = [metric.by_step.get(label, LoggedNumber(np.nan, 0.0)) for label in labels]
        return cls(
            metric.metric,
            metric.key,
            np.array([one.value for one in numbers]),
            np.array([one.rounding for one in numbers]),
            np.array([label not in metric.by_step for label in labels]),
            tolerance,
        )

    @property
    def definition(self) -> MetricDefinition:
        """The metric."""
        return METRICS[self.name]

    @property
    def of_loss(self) -> bool:
        """Whether the policy loss determines it."""
        return self.definition.kind in ("loss", "clipped")

    @cached_property
    def recorded(self) -> Numbers:
        """[s]: the finite numbers; 0 otherwise."""
        return np.where(np.isfinite(self.logged), self.logged, 0.0)

    @cached_property
    def present(self) -> Flags:
        """[s]: there is a finite number."""
        return np.isfinite(self.logged)

    @property
    def broken(self) -> list[int]:
        """The numbers of the steps at which NaN or an infinite number is logged."""
        return [int(at) for at in np.flatnonzero(~self.present & ~self.absent)]

    @property
    def informative(self) -> bool:
        """Whether any number differs from 0."""
        return bool(np.any(self.recorded != 0))

    @cached_property
    def sharp(self) -> bool:
        """Whether no step can be reproduced by chance: no count, and with all digits."""
        digits = self.rounding <= self.tolerance * np.abs(self.recorded)
        return self.definition.kind != "clipped" and self.informative and bool(np.all(digits))

    def at(self, steps: Sequence[int]) -> MetricSeries:
        """Return the metric at some steps."""
        own = {name: getattr(self, name)[[*steps]] for name in ("logged", "rounding", "absent")}
        return replace(self, **own)

    @cached_property
    def _allowed(self) -> Numbers:
        return np.asarray(self.tolerance * np.abs(self.recorded) + self.rounding + _TINY)

    def allowed(self, magnitude: Numbers) -> Numbers:
        """Return the differences that are allowed, [..., s].

        Args:
            magnitude: [..., s] aggregated absolute values, of which the sum may lose digits.
        """
        return np.asarray(self._allowed + _SUMS * self.tolerance * magnitude)

    def equal(self, computed: Numbers, magnitude: Numbers) -> Flags:
        """Return the steps that are reproduced, [..., s]; one without a number is not."""
        return (np.abs(computed - self.recorded) <= self.allowed(magnitude)) & self.present


@dataclass(frozen=True)
class MatchedSteps:
    """The steps of the dump that the log has."""

    steps: list[str]
    """Labels of the dump."""
    labels: list[str]
    """Labels of the log, one for each step."""
    by: str
    """`value`, `order`, or `shift`."""
    of_dump: int
    """Steps of the dump."""
    log: MetricLog

    def series(self, metric: LoggedMetric, tolerance: float) -> MetricSeries:
        """Return a metric by matched step."""
        return MetricSeries.of(metric, self.labels, tolerance)

    def warnings(self, metrics: Sequence[LoggedMetric]) -> Iterator[str]:
        """Yield what is left out of the dump and the log, and what is no number."""
        path, matched, of_log = self.log.path, len(self.steps), len(self.log.steps)
        if matched < self.of_dump:
            yield (
                f"{self.of_dump - matched} of {self.of_dump} steps of the input are not in "
                f"{path}; they are left out"
            )
        if matched < of_log:
            yield (
                f"{of_log - matched} of {of_log} steps of {path} are not in the input; "
                "they are left out"
            )
        if self.log.repeated:
            yield f"{path}: {self.log.repeated} steps have several lines; their mean is compared"
        for metric in metrics:
            texts = {label: x for label in self.labels if (x := metric.texts.get(label))}
            if texts:
                names = ", ".join([*dict.fromkeys(texts.values())][:_MOST_NAMES])
                yield (
                    f"{metric.key} is {names} at {at_steps([*texts])} of the log; "
                    "a number is needed, and nothing is compared there"
                )

    @property
    def facts(self) -> Json:
        """The numbers of steps, and how they were matched."""
        return {
            "dump": self.of_dump,
            "log": len(self.log.steps),
            "matched": len(self.steps),
            "matched_by": self.by,
            "key": self.log.step_key,
            "averaged": self.log.repeated,
        }


def match_steps(
    measured: MeasuredResponses, log: MetricLog, metrics: Sequence[LoggedMetric]
) -> MatchedSteps:
    """Match the steps of a dump with those of a log, by value or by order.

    If the rewards or lengths of a step are those of another line of the log, at the same distance
    for all steps, the lines are shifted.

    Raises:
        DataError: no step of the dump is in the log, and their numbers differ.
    """
    own, others = measured.steps, log.steps
    options = [_by_value(own, log, shift) for shift in (0, 1, -1)]
    if len(own) == len(others):
        options.append(MatchedSteps([*own], [*others], "order", len(own), log))
    options = [one for one in options if one.steps]
    if not options:
        raise DataError(
            f"--metrics {log.path}: steps {_few(others)}, but the input has {_few(own)}; "
            "steps of the same numbers, or as many lines as the input has steps, are needed"
        )
    return max(options, key=lambda one: _agreement(one, measured, metrics))


def at_steps(labels: Sequence[str]) -> str:
    """Return the names of some steps, such as `steps 1, 2`."""
    more = len(labels) - _MOST_NAMES
    names = ", ".join(labels[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"step{'s' if len(labels) > 1 else ''} {names}"


def _few(labels: Sequence[str]) -> str:
    return ", ".join(labels[:3]) + (f", ..., {labels[-1]}" if len(labels) > 3 else "")  # noqa: PLR2004


def _by_value(own: Sequence[str], log: MetricLog, shift: int) -> MatchedSteps:
    """Return the steps whose number, plus a shift, is in the log."""
    present, pairs = {*log.steps}, []
    for label in own:
        whole = label.lstrip("-").isdigit()
        if not whole and shift:
            continue
        other = str(int(label) + shift) if whole else label
        if other in present:
            pairs.append((label, other))
    by = "shift" if shift else "value"
    return MatchedSteps([one for one, _ in pairs], [one for _, one in pairs], by, len(own), log)


def _agreement(
    matched: MatchedSteps, measured: MeasuredResponses, metrics: Sequence[LoggedMetric]
) -> float:
    """Return the share of numbers of responses that agree: rewards and lengths."""
    steps = [StepSums.of(measured, step) for step in matched.steps]
    agree, count = 0, 0
    for metric in metrics:
        definition = METRICS[metric.metric]
        if definition.kind == "responses" and (values := values_of_responses(definition, steps)):
            series = matched.series(metric, _CLOSE)
            equal = [int(series.equal(one, np.zeros(len(one))).sum()) for _, one in values]
            agree, count = agree + max(equal), count + int(series.present.sum())
    return agree / count if count else 0.0
