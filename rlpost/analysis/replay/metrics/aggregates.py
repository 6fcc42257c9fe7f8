"""From the sums of responses to the numbers of units, such as micro-batches, and of whole steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.sums import TOKENS, SumColumn
from rlpost.kernels.aggregate import denominator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.definitions import MetricDefinition
    from rlpost.analysis.replay.metrics.dump import MeasuredResponses
    from rlpost.kernels.layouts import Units

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]
    Named = list[tuple[str, Numbers]]


class Reduction(NamedTuple):
    """A way from the sums of responses to the number of a unit."""

    aggregation: str
    cost: int
    """How unusual it is."""
    rows: Literal["valid", "all", ""] = ""
    """--agg-rows; empty if responses are not counted."""
    norm: Literal["length", "rows", ""] = ""
    """--agg-norm of seq-mean-token-sum-norm."""
    tokens: Literal["policy tokens", "all tokens", "tokens and padding"] = "policy tokens"
    """What token-mean divides by."""

    @property
    def options(self) -> dict[str, str]:
        """The options of the loss, without those that are the default."""
        rows = {"agg_rows": "all"} if self.rows == "all" else {}
        norm = {"agg_norm": "rows"} if self.norm == "rows" else {}
        return {"aggregation": self.aggregation, **norm, **rows}

    def __str__(self) -> str:
        """Return the reduction in words."""
        tokens = "" if self.tokens == "policy tokens" else f" of {self.tokens}"
        rows = " (all responses)" if self.rows == "all" and not self.norm else ""
        return f"{self.aggregation}{tokens}{rows}"


REDUCTIONS = (
    Reduction("token-mean", 0),
    Reduction("seq-mean-token-mean", 1, "valid"),
    Reduction("seq-mean-token-mean", 2, "all"),
    Reduction("seq-mean-token-sum", 2, "valid"),
    Reduction("seq-mean-token-sum", 3, "all"),
    Reduction("seq-mean-token-sum-norm", 3, "all", "rows"),
    Reduction("seq-mean-token-sum-norm", 3, norm="length"),
    Reduction("token-sum", 3),
    Reduction("token-mean", 3, tokens="all tokens"),
    Reduction("token-mean", 4, tokens="tokens and padding"),
)
OF_ALL_TOKENS = np.array([one.tokens != "policy tokens" for one in REDUCTIONS])
"""[r]: the reductions of a sum over all tokens."""
OF_COUNTS = np.array([not one.norm for one in REDUCTIONS])
"""[r]: the reductions of what no loss aggregates, such as the share of clipped tokens."""


@dataclass(frozen=True)
class StepSums:
    """The responses of a step, [n]."""

    sums: Numbers
    """[n, columns]."""
    tokens: Indices
    """Policy tokens."""
    length: Indices
    """Tokens, with observations."""
    kept: NDArray[np.bool_]
    rewards: dict[str, Numbers]

    @cached_property
    def columns(self) -> Numbers:
        """[n, 2·columns]: the sums, and their absolute values."""
        return np.concatenate([self.sums, np.abs(self.sums)], axis=1)

    @classmethod
    def of(cls, measured: MeasuredResponses, step: str) -> StepSums:
        """Return the responses of a step, by its label."""
        rows = measured.rows_of(step)
        tokens = measured.tokens[rows]
        if measured.columns:  # the mask of the sums may drop more
            tokens = measured.sums[rows, measured.columns.index(TOKENS)].astype(np.int64)
        return cls(
            measured.sums[rows],
            tokens,
            measured.length[rows],
            measured.kept[rows],
            {name: numbers[rows] for name, numbers in measured.rewards.items()},
        )

    def weights(self, units: Units, length: int | None) -> Numbers:
        """Return the weight of each response's sum in a mean of units, [reductions, n].

        Args:
            units: of the step.
            length: the length of seq-mean-token-sum-norm; None: the longest response's.
        """

        def total(numbers: NDArray[Any]) -> Indices:
            return np.bincount(units.of, numbers, len(units.weights)).astype(np.int64)

        tokens, rows, valid = total(self.tokens), total(self.tokens >= 0), total(self.tokens > 0)
        longest = np.zeros_like(rows)
        np.maximum.at(longest, units.of, self.length)
        divided_by = {
            "policy tokens": tokens,
            "all tokens": total(self.length),
            "tokens and padding": longest * rows,
        }
        weights = np.zeros((len(REDUCTIONS), len(self.tokens)))
        for at, one in enumerate(REDUCTIONS):
            below = denominator(
                how=one.aggregation,
                tokens=divided_by[one.tokens],
                valid=valid,
                rows=rows,
                longest=longest,
                count_rows=one.rows or "valid",
                norm=one.norm or "length",
                length=length,
            )
            share = np.divide(units.weights, below, out=np.zeros(len(below)), where=below > 0)
            weights[at] = share[units.of]
            if one.aggregation == "seq-mean-token-mean":
                weights[at] /= np.maximum(self.tokens, 1)
        return weights


class Aggregated:
    """The columns of some steps, and their means over units.

    Args:
        measured: the responses.
        steps: labels of the steps.
        length: the length of seq-mean-token-sum-norm; None: the longest response's.
    """

    def __init__(
        self, measured: MeasuredResponses, steps: Sequence[str], length: int | None
    ) -> None:
        self.measured, self.labels, self.length = measured, steps, length
        self.index = {column: at for at, column in enumerate(measured.columns)}
        self.steps = [StepSums.of(measured, step) for step in steps]

    @property
    def counts(self) -> list[int]:
        """The responses of each step."""
        return [len(one.tokens) for one in self.steps]

    def weights(self, units: Sequence[Units]) -> list[Numbers]:
        """Return the weight of each response's sum in the means of units, by step, [r, n] each."""
        return [step.weights(own, self.length) for step, own in zip(self.steps, units, strict=True)]

    def values(self, units: Sequence[Units]) -> tuple[Numbers, Numbers]:
        """Return all columns aggregated, and their absolute values, [columns, r, s] each."""
        weights = self.weights(units)
        both = []
        for own, step in zip(weights, self.steps, strict=True):
            both.append((own @ step.columns).T.reshape(2, -1, len(own)))
        values, magnitudes = np.stack(both, -1)
        return values, magnitudes


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
    populations: dict[str, list[Numbers]] = {}
    if definition.of == ("lengths",):
        populations["policy tokens of a response"] = [
            one.tokens.astype(np.float64) for one in steps
        ]
        populations["tokens of a response"] = [one.length.astype(np.float64) for one in steps]
    for column in steps[0].rewards if definition.of == ("rewards",) else ():
        populations[f"`{column}` over all responses"] = [one.rewards[column] for one in steps]
        if not all(one.kept.all() for one in steps):
            kept = [one.rewards[column][one.kept] for one in steps]
            populations[f"`{column}` over kept responses"] = kept
    return [
        (f"{name} of {what}", np.array([reduce(x) if len(x) else np.nan for x in numbers]))
        for name, reduce in _STATISTICS[definition.statistic].items()
        for what, numbers in populations.items()
    ]
