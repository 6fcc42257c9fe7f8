"""A logged metric by step, and the differences from it that are allowed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.metrics.definitions import METRICS
from rlpost.analysis.replay.metrics.logs import Logged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.definitions import MetricDefinition
    from rlpost.analysis.replay.metrics.logs import LoggedMetric

    Numbers = NDArray[np.float64]
    Flags = NDArray[np.bool_]

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
        numbers = [metric.by_step.get(label, Logged(np.nan, 0.0)) for label in labels]
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

    def reproduced(self, computed: Numbers, magnitude: Numbers) -> bool:
        """Return whether all steps with a number are reproduced, of [s]."""
        return bool((self.equal(computed, magnitude) | ~self.present).all())
