"""The steps of a log beside those of a dump, and the metrics of responses alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.metrics.fit import EXTREMES, StepData, target_of
from rlpost.analysis.replay.metrics.losses import Column
from rlpost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.fit import Aggregated, Target
    from rlpost.analysis.replay.metrics.logs import Log, Recorded
    from rlpost.analysis.replay.metrics.measure import Measured

    Numbers = NDArray[np.float64]

Json = dict[str, Any]
_CLOSE = 1e-4
_MOST_NAMES = 4


@dataclass(frozen=True)
class Matched:
    """The steps of the dump that the log has."""

    steps: list[str]
    """Labels of the dump."""
    labels: list[str]
    """Labels of the log, one for each step."""
    by: str
    """`value`, `order`, or `shift`."""
    of_dump: int
    """Steps of the dump."""
    warnings: list[str] = field(default_factory=list)

    def target(self, recorded: Recorded) -> Target:
        """Return a recorded metric by matched step."""
        return target_of(recorded, self.labels)

    def not_numbers(self, recorded: Recorded) -> str | None:
        """Return a warning of the steps at which a metric has text or null; None without any."""
        found = [(label, recorded.texts[label]) for label in self.labels if label in recorded.texts]
        if not found:
            return None
        texts = ", ".join([*dict.fromkeys(text for _, text in found)][:_MOST_NAMES])
        return (
            f"{recorded.key} is {texts} at {at_steps([label for label, _ in found])} of the log; "
            "a number is needed, and nothing is compared there"
        )

    def facts(self, log: Log) -> Json:
        """Return the numbers of steps, and how they were matched."""
        return {
            "dump": self.of_dump,
            "log": len(log.steps),
            "matched": len(self.steps),
            "matched_by": self.by,
            "key": log.step_key,
            "averaged": log.repeated,
        }


def match_steps(measured: Measured, log: Log, recorded: Sequence[Recorded]) -> Matched:
    """Match the steps of a dump with those of a log, by value or by order.

    If the rewards or lengths of a step are those of another line of the log, at the same distance
    for all steps, the lines are shifted.

    Raises:
        DataError: no step of the dump is in the log, and their numbers differ.
    """
    own, others = measured.steps, log.steps
    options = [_by_value(own, others, shift) for shift in (0, 1, -1)]
    if len(own) == len(others):
        options.append(Matched([*own], [*others], "order", len(own)))
    options = [one for one in options if one.steps]
    if not options:
        raise DataError(
            f"--metrics {log.path}: steps {_few(others)}, but the input has {_few(own)}; "
            "steps of the same numbers, or as many lines as the input has steps, are needed"
        )
    scores = [_agreement(one, measured, recorded) for one in options]
    best = max(range(len(options)), key=lambda at: (scores[at], -at))
    found = options[best] if scores[best] > scores[0] else options[0]
    if len(found.steps) < len(own):
        found.warnings.append(
            f"{len(own) - len(found.steps)} of {len(own)} steps of the input are not in "
            f"{log.path}; they are left out"
        )
    if len(found.labels) < len(others):
        found.warnings.append(
            f"{len(others) - len(found.labels)} of {len(others)} steps of {log.path} are not in "
            "the input; they are left out"
        )
    if log.repeated:
        found.warnings.append(
            f"{log.path}: {log.repeated} steps have several lines; their mean is compared"
        )
    return found


def at_steps(labels: Sequence[str]) -> str:
    """Return the names of some steps, such as `steps 1, 2`."""
    more = len(labels) - _MOST_NAMES
    names = ", ".join(labels[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"step{'s' if len(labels) > 1 else ''} {names}"


def _few(labels: Sequence[str]) -> str:
    return ", ".join(labels[:3]) + (f", ..., {labels[-1]}" if len(labels) > 3 else "")  # noqa: PLR2004


def _by_value(own: Sequence[str], others: Sequence[str], shift: int) -> Matched:
    """Return the steps whose number, plus a shift, is in the log."""
    present, pairs = {*others}, []
    for label in own:
        whole = label.lstrip("-").isdigit()
        if not whole and shift:
            continue
        other = str(int(label) + shift) if whole else label
        if other in present:
            pairs.append((label, other))
    by = "shift" if shift else "value"
    return Matched([one for one, _ in pairs], [one for _, one in pairs], by, len(own))


def _agreement(matched: Matched, measured: Measured, recorded: Sequence[Recorded]) -> float:
    """Return the share of numbers of responses that agree: rewards and lengths."""
    steps = [StepData(measured, step) for step in matched.steps]
    agree, count = 0.0, 0
    for one in recorded:
        functions = _OF_RESPONSES.get(one.metric)
        if functions is None:
            continue
        target = matched.target(one)
        present = ~np.isnan(target.recorded)
        best = 0
        for _, numbers in functions(steps):
            gap = np.abs(numbers - target.recorded)
            near = gap <= _CLOSE * np.abs(target.recorded) + target.rounding + 1e-12
            best = max(best, int((near & present).sum()))
        agree, count = agree + best, count + int(present.sum())
    return agree / count if count else 0.0


Named = list[tuple[str, "Numbers"]]


def simple_values(metric: str, data: Aggregated) -> Named | None:
    """Return the numbers that a metric of responses or an extreme may be, by name, [s] each.

    None for other metrics, and if the dump lacks the columns.
    """
    if metric in _OF_RESPONSES:
        return _OF_RESPONSES[metric](data.steps) or None
    if metric in EXTREMES:
        kind, names = EXTREMES[metric]
        reduce: Callable[..., Any] = np.max if kind == "max" else np.min
        found = [name for name in names if Column(kind, name) in data.index]
        return [
            (
                f"{kind} of {name} over policy tokens",
                np.array(
                    [reduce(step.sums[:, data.index[Column(kind, name)]]) for step in data.steps]
                ),
            )
            for name in found
        ] or None
    return None


def extreme_columns(metric: str) -> list[Column]:
    """Return the columns that a metric may be an extreme of."""
    kind, names = EXTREMES.get(metric, ("", ()))
    return [Column(kind, name) for name in names]


def _rewards(reduce: Callable[[Numbers], float], name: str) -> Callable[[Sequence[Any]], Named]:
    def values(steps: Sequence[StepData]) -> Named:
        found: Named = []
        for column in steps[0].rewards if steps else ():
            every = np.array([reduce(one.rewards[column]) for one in steps])
            found.append((f"{name} of `{column}` over all responses", every))
            if not all(one.kept.all() for one in steps):
                kept = [one.rewards[column][one.kept] for one in steps]
                own = np.array([reduce(one) if len(one) else np.nan for one in kept])
                found.append((f"{name} of `{column}` over kept responses", own))
        return found

    return values


def _lengths(reduce: Callable[[Numbers], float], name: str) -> Callable[[Sequence[Any]], Named]:
    def values(steps: Sequence[StepData]) -> Named:
        return [
            (f"{name} of {what} of a response", np.array([reduce(one) for one in numbers]))
            for what, numbers in (
                ("policy tokens", [one.tokens for one in steps]),
                ("tokens", [one.length for one in steps]),
            )
        ]

    return values


def _std(ddof: int) -> Callable[[Numbers], float]:
    return lambda x: float(np.std(x, ddof=ddof)) if len(x) > ddof else float("nan")


def _both_stds(steps: Sequence[StepData]) -> Named:
    return [
        *_rewards(_std(1), "standard deviation (n - 1)")(steps),
        *_rewards(_std(0), "standard deviation (n)")(steps),
    ]


_OF_RESPONSES: dict[str, Callable[[Sequence[StepData]], Named]] = {
    "reward_mean": _rewards(np.mean, "mean"),
    "reward_max": _rewards(np.max, "maximum"),
    "reward_min": _rewards(np.min, "minimum"),
    "reward_std": _both_stds,
    "length_mean": _lengths(np.mean, "mean"),
    "length_max": _lengths(np.max, "maximum"),
    "length_min": _lengths(np.min, "minimum"),
}
