"""What a replay of metrics found, as plain data: the description, ties, and what differs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlpost.analysis.findings import Finding, Registry
from rlpost.analysis.replay.findings.base import AnyFunction, Explanation, ReplayCheck
from rlpost.analysis.replay.metrics.fit import HOWS, LOSS_METRICS, QUANTITIES
from rlpost.analysis.replay.metrics.losses import KL_ESTIMATORS, SIDES
from rlpost.analysis.replay.metrics.search import bounds_of
from rlpost.analysis.replay.metrics.splits import ABOUT_LEVELS
from rlpost.analysis.replay.metrics.steps import at_steps
from rlpost.display.text import percent
from rlpost.recipe.flags import flag_of
from rlpost.recipe.loss import DEFAULTS, word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.fit import Grid, Target
    from rlpost.analysis.replay.metrics.search import Choice, Place, Reading
    from rlpost.analysis.replay.metrics.steps import Matched

    Numbers = NDArray[np.float64]

Json = dict[str, Any]


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
    terms = "".join(
        f" {'-' if scale < 0 else '+'} {abs(scale):g} x {_TERMS.get(column.name, column.name)}"
        for scale, column in reading.terms
    )
    return f"{kind}{how.aggregation}{population}{rows}, {where}{terms}"


_TERMS = {
    **{f"{one} new/ref": f"KL ({one})" for one in KL_ESTIMATORS},
    **{f"ratio {one} new/ref": f"ratio x KL ({one})" for one in KL_ESTIMATORS},
    "entropy": "entropy",
}


def relation(
    recorded: Numbers, computed: Numbers, equal: NDArray[np.bool_], tolerance: float
) -> Json | None:
    """Return what recorded and computed numbers have in common: a factor, or equal steps."""
    if len(recorded) >= _LEAST and (np.isfinite(computed) & (computed != 0)).all():
        ratios = recorded / computed
        factor = float(np.median(ratios))
        if np.all(np.abs(ratios - factor) <= _LOOSE * tolerance * abs(factor) + 1e-12):
            return {"factor": factor}
    return {"equal_steps": float(equal.mean())} if 0 < equal.sum() < len(equal) else None


_MOST = 0.5  # share of the steps
_LEAST = 2  # steps that show a factor
_LOOSE = 10


def description(choice: Choice, rows: Sequence[Json], used: Sequence[Reading | None]) -> Json:
    """Return the smallest description, with the options as typed."""
    options: list[str] = []
    loss: Json | None = None
    known = any(_explained(row) for row in rows if row["metric"] in LOSS_METRICS)
    if choice.grid is not None and known:
        loss = loss_of(choice.grid, choice.place)
        options += [part for name, value in loss.items() for part in (flag_of(name), word(value))]
    of_loss = [
        reading
        for row, reading in zip(rows, used, strict=True)
        if reading is not None and _explained(row) and row["metric"] in ("pg_loss", "loss")
    ]
    options += HOWS[of_loss[0].how].options if of_loss else []
    options += next((words for one in of_loss if (words := _words(terms_of(one)))), [])
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


def _explained(row: Json) -> bool:
    """Return whether the finite numbers are reproduced, most of them, or but for a constant."""
    if row.get("share", 1.0) > _MOST:
        return True
    own = row.get("relation", {})
    return own is not None and "equal_steps" not in own


def _words(options: dict[str, str]) -> list[str]:
    return [part for pair in options.items() for part in pair if part]


def terms_of(reading: Reading) -> dict[str, str]:
    """Return the options of further terms of a loss, as typed; an entropy bonus has none."""
    options = {}
    for scale, column in reading.terms:
        if column.name != "entropy":
            *ratio, estimator = column.name.split()[:-1]
            options["--kl-loss-coef"] = f"{scale:g}"
            options["--kl-loss-estimator"] = estimator
            if ratio:
                options["--kl-loss-ratio"] = ""
    return options


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


_SEPARATING = {
    "low": "tokens with a negative advantage and a ratio between these bounds",
    "high": "tokens with a positive advantage and a ratio between these bounds",
    "dual": "tokens with a negative advantage and a ratio above these bounds",
    "whole": "steps in which the options change the loss of a token",
}
_FIELDS = {"low": "--pg-clip-low", "high": "--pg-clip-high", "dual": "--dual-clip"}


def ties(choice: Choice, rows: Sequence[Json], used: Sequence[Reading | None]) -> list[Json]:
    """Return the other descriptions that reproduce as much, and what data would separate them."""
    found = []
    if not any(_shows_loss(row) for row in rows):
        return []
    for side, values in choice.tied_bounds.items():
        if values and side in SIDES:
            names = [word(_bound(one)) for one in sorted(values)]
            text = f"{_FIELDS[side]} {', '.join(names)} reproduce the same numbers"
            found.append((_FIELDS[side], names, text, _SEPARATING[side]))
    for row, reading in zip(rows, used, strict=True):
        if reading is not None and row["metric"] in ("pg_loss", "loss") and row["also"]:
            text = f"{row['key']} is the same with {', '.join(row['also'])}"
            tells = "responses of different lengths in each unit"
            found.append(("--aggregation", row["also"], text, tells))
            break
    for row, reading in zip(rows, used, strict=True):
        if reading is not None and reading.open is not None and row["reproduced"]:
            found.append(_open_coefficient(row, reading))
    if choice.tied_losses:
        names = [
            " ".join(f"{flag_of(k)} {word(x)}" for k, x in loss_of(grid, place).items())
            for grid, place in choice.tied_losses
        ]
        text = f"{len(names)} other losses reproduce the same numbers"
        tells = "more steps, and steps in which tokens are clipped"
        found.append(("--loss", names, text, tells))
    if choice.tied_splits:
        found.append(("--micro-batch, --ranks", *_tied_splits(choice, rows)))
    fields = ("option", "values", "text", "separating_data")
    return [dict(zip(fields, one, strict=True)) for one in found]


def _open_coefficient(row: Json, reading: Reading) -> tuple[str, list[str], str, str]:
    """Return the range of a coefficient that the digits of the log leave open."""
    low, high = reading.open or (0.0, 0.0)
    name = reading.terms[0][1].name
    text = f"{row['key']} is the same with {low:.2g} to {high:.2g} x {_TERMS.get(name, name)}"
    option = "entropy bonus" if name == "entropy" else "--kl-loss-coef"
    return option, [f"{low:.2g} to {high:.2g}"], text, "a log with more digits"


def _shows_loss(row: Json) -> bool:
    """Return whether a metric identifies a loss: it is reproduced, and not 0 throughout."""
    return bool(row["metric"] in LOSS_METRICS and row["reproduced"] and row["informative"])


def _tied_splits(choice: Choice, rows: Sequence[Json]) -> tuple[list[str], str, str]:
    """Return the names of other splits, what they have in common, and what separates them."""
    if all(row.get("level", "step") == "step" for row in rows):
        return [], "no metric depends on the split", "a metric that is a mean of micro-batches"
    names = [str(one) for one in choice.tied_splits]
    text = f"{len(names)} other splits have the same means"
    return names, text, "a number of responses that the ranks do not divide evenly"


# ---- findings ----

Phase = Literal["steps", "log", "metric", "difference"]
"""What a check is called with: the matched steps; a metric of the log, and these steps; a computed
metric; or one that is not reproduced, of which the first check that yields counts. It yields
explanations."""


@dataclass(frozen=True)
class MetricCheck(ReplayCheck):
    """A check of a log."""

    phase: Phase


@dataclass(frozen=True)
class MetricFinding(Finding):
    """What explains a metric of a log, or what is wrong with it."""

    options: tuple[str, ...]
    """Options as typed, which reproduce it."""
    explains: float
    """Share of the steps."""


@dataclass(frozen=True)
class ComputedMetric:
    """A metric of a log, as it is computed."""

    row: Json
    """Of the result."""
    reading: Reading | None
    """How it is computed; None for one that is no mean of tokens."""
    description: Json
    """Of all metrics."""

    @property
    def key(self) -> str:
        """The name of the metric in the log."""
        return str(self.row["key"])

    @property
    def relation(self) -> Json:
        """What recorded and computed numbers have in common; empty for nothing."""
        return self.row["relation"] or {}

    @property
    def mostly_equal(self) -> bool:
        """Whether most steps are reproduced."""
        return bool(self.row.get("share", 1.0) > _MOST)

    @property
    def further_term(self) -> str:
        """The sentence that a loss has a further term."""
        return f"{self.key} has a further term: {self.row['computed_as'].partition(', ')[2]}"


FINDINGS: Registry[MetricCheck] = Registry()
"""Every check of a log, by the name of its finding."""


def check(phase: Phase, *, prefix: str = "") -> Callable[[AnyFunction], AnyFunction]:
    """Add a function to FINDINGS; see `Phase`."""

    def add(function: AnyFunction) -> AnyFunction:
        FINDINGS.add(MetricCheck(function, prefix, phase))
        return function

    return add


def findings(
    matched: Matched, targets: Sequence[Target], metrics: Sequence[ComputedMetric]
) -> list[Json]:
    """Return what is wrong with a log, and what explains the metrics that differ.

    Args:
        matched: the steps.
        targets: the metrics of the log.
        metrics: those that are computed.
    """
    found = [*_of("steps", matched)]
    found += [one for target in targets for one in _of("log", target, matched.steps)]
    for metric in metrics:
        found += _of("metric", metric)
        if "relation" in metric.row and "fits" not in metric.row:
            found += islice(_of("difference", metric), 1)
    return [asdict(one) | {"options": [*one.options]} for one in found]


def _of(phase: Phase, *args: Any) -> Iterator[MetricFinding]:
    """Yield what the checks of a phase find."""
    for own in FINDINGS.values():
        for one in own.run(*args) if own.phase == phase else ():
            name = one.name or own.name
            yield MetricFinding(name, one.text, own.advice, one.options, one.explains)


@check("steps", prefix="input:")
def step_order(matched: Matched) -> Iterator[Explanation]:
    """The steps of the log are those of the next, or the previous, step of the dump.

    The trainer counts a step before or after it logs it. Compare a step with the line that is
    printed beside it.
    """
    if matched.by == "shift":
        text = f"step {matched.steps[0]} of the input is step {matched.labels[0]} of the log"
        yield Explanation(text, 1.0)


@check("log")
def not_finite(target: Target, steps: Sequence[str]) -> Iterator[Explanation]:
    """A metric is NaN or infinite in the log.

    The update of that step may have made the weights NaN. Look for log ratios without a bound, and
    means over no token.
    """
    if target.broken:
        kinds = {False: "infinite", True: "NaN"}
        names = " or ".join({kinds[bool(np.isnan(target.logged[at]))]: 0 for at in target.broken})
        where = at_steps([steps[at] for at in target.broken])
        yield Explanation(f"{target.key} is {names} in the log at {where}", 0.0)


@check("metric")
def option(metric: ComputedMetric) -> Iterator[Explanation]:
    """A loss has a KL loss, or another coefficient of it than the options.

    The trainer has another setting. Add the options to those of the loss if the trainer is right,
    else change the trainer.
    """
    row, name = metric.row, "option:kl_loss_coef"
    options = tuple(_words(terms_of(metric.reading))) if metric.reading else ()
    if options and metric.mostly_equal:
        yield Explanation(metric.further_term, 1.0, options, name)
    if "fits" in row:
        fits = tuple(word for word in row["fits_options"] if word)
        text = f"{metric.key} is {row['fits']}, not {row['computed_as']}"
        yield Explanation(text, 1.0, fits, name)


@check("metric")
def entropy_bonus(metric: ComputedMetric) -> Iterator[Explanation]:
    """A loss has an entropy bonus, which no option has.

    The other terms of the loss are reproduced beside it. Compare its coefficient with the trainer's
    setting.
    """
    reading = metric.reading
    if reading is not None and reading.terms and not terms_of(reading) and metric.mostly_equal:
        yield Explanation(metric.further_term, 1.0)


@check("difference")
def factor(metric: ComputedMetric) -> Iterator[Explanation]:
    """The metric is the computed one times a constant, at all steps.

    It is a sum in place of a mean, a division too much, or the other sign. As a loss it acts as
    another learning rate; a number that is only logged is harmless.
    """
    value = metric.relation.get("factor")
    if value is not None:
        about = _about_factor(value, metric.description)
        yield Explanation(f"{metric.key} is {value:.6g} times the computed one{about}", 1.0)


@check("difference")
def some_steps(metric: ComputedMetric) -> Iterator[Explanation]:
    """The metric is reproduced at some steps, and differs at others.

    A setting changed during the run, or a schedule has it, or these steps were split into other
    micro-batches. Compare what the trainer logs about them.
    """
    share = metric.relation.get("equal_steps")
    if share is not None:
        where = at_steps(metric.row["differs_at"])
        text = f"is reproduced at {percent(share, 0)} of the steps; it differs at {where}"
        yield Explanation(f"{metric.key} {text}", share)


@check("difference")
def unexplained(metric: ComputedMetric) -> Iterator[Explanation]:
    """The metric differs at all steps, and no factor explains it.

    Its formula is another one, or the log is of other rows than the dump. Set what is known of the
    loss, and compare one step by hand.
    """
    text = f"is not explained: the closest is {metric.row['computed_as']}"
    yield Explanation(f"{metric.key} {text}", 0.0)


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
