"""Metrics that no split changes: of rewards and lengths, and extremes of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.replay.metrics.sums import SumColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.aggregated import Aggregated, StepSums
    from rlpost.analysis.replay.metrics.definitions import MetricDefinition

    Numbers = NDArray[np.float64]
    Named = list[tuple[str, Numbers]]

_STATISTICS: dict[str, dict[str, Callable[[Numbers], float]]] = {
    "mean": {"mean": np.mean},
    "max": {"maximum": np.max},
    "min": {"minimum": np.min},
    "std": {
        "standard deviation (n - 1)": lambda x: float(np.std(x, ddof=1)) if len(x) > 1 else np.nan,
        "standard deviation (n)": np.std,
    },
}
"""The functions of a statistic, by their names."""


def is_of_step(definition: MetricDefinition) -> bool:
    """Return whether a metric is of whole steps."""
    of_tokens = definition.kind == "tokens"
    return definition.kind == "responses" or (of_tokens and definition.statistic != "mean")


def extreme_columns(definition: MetricDefinition) -> list[SumColumn]:
    """Return the columns that a metric may be an extreme of."""
    statistic = definition.statistic
    if definition.kind != "tokens" or statistic not in ("max", "min"):
        return []
    return [SumColumn(statistic, name) for name in definition.of]


def step_values(definition: MetricDefinition, data: Aggregated) -> Named:
    """Return the numbers that a metric of whole steps may be, by name, [s] each."""
    if definition.kind == "responses":
        return values_of_responses(definition, data.steps)
    (reduce,) = _STATISTICS[definition.statistic].values()
    return [
        (
            f"{definition.statistic} of {column.name} over policy tokens",
            np.array([reduce(step.sums[:, data.index[column]]) for step in data.steps]),
        )
        for column in extreme_columns(definition)
        if column in data.index
    ]


def values_of_responses(definition: MetricDefinition, steps: Sequence[StepSums]) -> Named:
    """Return the numbers that a metric of rewards or lengths may be, by name, [s] each."""
    populations = _rewards(steps) if definition.of == ("rewards",) else _lengths(steps)
    return [
        (
            f"{name} of {what}",
            np.array([reduce(one) if len(one) else np.nan for one in numbers]),
        )
        for name, reduce in _STATISTICS[definition.statistic].items()
        for what, numbers in populations
    ]


def _rewards(steps: Sequence[StepSums]) -> list[tuple[str, list[Numbers]]]:
    found = []
    for column in steps[0].rewards if steps else ():
        found.append((f"`{column}` over all responses", [one.rewards[column] for one in steps]))
        if not all(one.kept.all() for one in steps):
            kept = [one.rewards[column][one.kept] for one in steps]
            found.append((f"`{column}` over kept responses", kept))
    return found


def _lengths(steps: Sequence[StepSums]) -> list[tuple[str, list[Numbers]]]:
    return [
        ("policy tokens of a response", [one.sizes.tokens.astype(np.float64) for one in steps]),
        ("tokens of a response", [one.sizes.length.astype(np.float64) for one in steps]),
    ]
