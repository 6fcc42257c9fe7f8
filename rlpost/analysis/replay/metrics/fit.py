"""How well candidate losses and means of units reproduce what a trainer logged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from rlpost.analysis.replay.metrics.logs import Logged
from rlpost.analysis.replay.metrics.losses import KL_ESTIMATORS, SIDES, Column, Family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.kl import KlLoss
    from rlpost.analysis.replay.metrics.logs import Recorded
    from rlpost.analysis.replay.metrics.measure import Measured
    from rlpost.analysis.replay.metrics.splits import Means, Units

    Numbers = NDArray[np.float64]


class How(NamedTuple):
    """A way from numbers of responses to the number of a unit."""

    name: str
    aggregation: str
    rows: str = ""
    """agg_rows: `valid` or `all`; empty if responses are not counted."""
    norm: str = ""
    """agg_norm of seq-mean-token-sum-norm."""
    population: str = "policy tokens"
    cost: int = 0

    @property
    def options(self) -> list[str]:
        """The options as typed."""
        parts = ["--aggregation", self.aggregation]
        parts += ["--agg-norm", self.norm] if self.norm == "rows" else []
        return parts + (["--agg-rows", self.rows] if self.rows == "all" else [])


HOWS = (
    How("token-mean", "token-mean"),
    How("seq-mean-token-mean", "seq-mean-token-mean", "valid", cost=1),
    How("seq-mean-token-mean all", "seq-mean-token-mean", "all", cost=2),
    How("seq-mean-token-sum", "seq-mean-token-sum", "valid", cost=2),
    How("seq-mean-token-sum all", "seq-mean-token-sum", "all", cost=3),
    How("seq-mean-token-sum-norm rows", "seq-mean-token-sum-norm", "all", "rows", cost=3),
    How("seq-mean-token-sum-norm", "seq-mean-token-sum-norm", norm="length", cost=3),
    How("token-sum", "token-sum", cost=3),
    How("token-mean all", "token-mean", population="all tokens", cost=3),
    How("token-mean padded", "token-mean", population="tokens and padding", cost=4),
)
OF_LOSSES = tuple(range(len(HOWS)))
OF_QUANTITIES = tuple(i for i, one in enumerate(HOWS) if "norm" not in one.name)
QUANTITIES: dict[str, tuple[str, ...]] = {
    "ppo_kl": (
        *(f"{one} {of}" for of in ("old", "infer") for one in KL_ESTIMATORS),
        "k3 new/old", "k3 new/infer",
    ),
    "kl_loss": tuple(
        f"{one} {of}/ref" for of in ("new", "old") for one in KL_ESTIMATORS
    ) + tuple(f"ratio {one} new/ref" for one in KL_ESTIMATORS),
    "engine_kl": (
        "abs old/infer", *(f"{one} engine" for one in ("k1", "k3", "k2")), "k3 old/infer",
        "prob old/infer", "k3 infer", "k1 infer", "k2 infer", "abs new/infer", "k3 new/infer",
        "prob new/infer",
    ),
    "entropy": ("entropy", "minus new", "minus old"),
    "ratio_mean": ("ratio new/old", "ratio new/infer"),
    "advantage_mean": ("advantages",),
    "return_mean": ("returns",),
    "value_mean": ("values",),
}  # fmt: skip
"""The quantities of tokens that a metric may be the mean of, the most usual ones first."""
EXTREMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "advantage_max": ("max", ("advantages",)),
    "advantage_min": ("min", ("advantages",)),
    "return_max": ("max", ("returns",)),
    "return_min": ("min", ("returns",)),
    "value_max": ("max", ("values",)),
    "value_min": ("min", ("values",)),
    "ratio_max": ("max", ("ratio new/old", "ratio new/infer")),
    "ratio_min": ("min", ("ratio new/old", "ratio new/infer")),
    "engine_diff_max": ("max", ("prob old/infer", "abs old/infer", "abs new/infer")),
}


@dataclass(frozen=True)
class Target:
    """What was recorded of a metric, by matched step."""

    metric: str
    key: str
    recorded: Numbers
    """[s]."""
    rounding: Numbers
    """[s]: half a unit of the last digit."""
    logged: Numbers
    """[s] as logged: NaN or infinite where `recorded` is NaN, if the log has that."""
    absent: NDArray[np.bool_]
    """[s]: the log has no number of the step."""

    @property
    def broken(self) -> list[int]:
        """The numbers of the steps at which NaN or an infinite number is logged."""
        return [int(at) for at in np.flatnonzero(np.isnan(self.recorded) & ~self.absent)]

    @property
    def informative(self) -> bool:
        """Whether any number differs from 0."""
        return bool(np.any(np.nan_to_num(self.recorded) != 0))

    def sharp(self, tolerance: float) -> bool:
        """Return whether no step can be reproduced by chance: no count, and with all digits."""
        if self.metric.startswith("clip_frac"):
            return False
        return bool(np.all(self.rounding <= tolerance * np.abs(np.nan_to_num(self.recorded))))

    def of(self, steps: Sequence[int]) -> Target:
        """Return the target of some steps."""
        own = ("recorded", "rounding", "logged", "absent")
        return replace(self, **{name: getattr(self, name)[[*steps]] for name in own})

    def gaps(self, computed: Numbers, tolerance: float, magnitude: Numbers | float) -> Numbers:
        """Return the largest difference of any step in units of what is allowed, [...].

        Args:
            computed: [..., s].
            tolerance: relative tolerance.
            magnitude: [..., s] aggregated absolute values, of which the sum may lose digits.
        """
        own = np.abs(computed - self.recorded) / self.allowed(tolerance, magnitude)
        return np.asarray(np.where(np.isnan(self.recorded), 0.0, own).max(-1))

    def errors(self, computed: Numbers, tolerance: float, magnitude: Numbers | float) -> Numbers:
        """Return `gaps`; a number that orders candidates, if some steps are reproduced exactly.

        If more than half of the steps are, of a log with all digits, it is 1 + `PARTS` times the
        share of those that differ, plus less than 1: all other candidates are above that.
        """
        present = ~np.isnan(self.recorded)
        if present.sum() <= _LEAST_STEPS or not self.informative or not self.sharp(tolerance):
            return self.gaps(computed, tolerance, magnitude)
        own = np.abs(computed - self.recorded) / self.allowed(tolerance, magnitude)
        gaps = np.where(present, own, 0.0).max(-1)
        share = np.count_nonzero(own <= 1, axis=-1) / present.sum()  # a comparison with NaN fails
        partly = 1 + PARTS * (1 - share) + 1 - 1 / (1 + gaps)
        others = np.where(share > _MOST, partly, 1 + PARTS + np.minimum(gaps, _FAR))
        return np.asarray(np.where(gaps <= 1, gaps, others))

    def allowed(self, tolerance: float, magnitude: Numbers | float) -> Numbers:
        """Return the differences that are allowed, [..., s]."""
        allowed = tolerance * np.abs(self.recorded) + self.rounding
        return np.asarray(allowed + _SUMS * tolerance * magnitude + _TINY)

    def equal(
        self, computed: Numbers, tolerance: float, magnitude: Numbers | float
    ) -> NDArray[np.bool_]:
        """Return the steps that are reproduced, [..., s]; those without a number are."""
        equal = np.abs(computed - self.recorded) <= self.allowed(tolerance, magnitude)
        return np.asarray(equal | np.isnan(self.recorded))

    def share(self, computed: Numbers, tolerance: float, magnitude: Numbers) -> float:
        """Return the share of the steps with a number that are reproduced, of [s]."""
        present = ~np.isnan(self.recorded)
        return float(self.equal(computed, tolerance, magnitude)[present].mean())

    def scales(
        self, computed: Numbers, terms: Numbers, tolerance: float, magnitude: Numbers
    ) -> list[float] | None:
        """Return the coefficients of further terms that reproduce the target, by least squares.

        Args:
            computed: [s] without the terms.
            terms: [t, s].
            tolerance: relative tolerance.
            magnitude: [s].

        Returns:
            [t], rounded to the fewest digits that reproduce it; None if nothing does.
        """
        present = ~np.isnan(self.recorded)
        rest = (self.recorded - computed)[present]
        exact = np.linalg.lstsq(terms[:, present].T, rest, rcond=None)[0]
        for digits in range(1, _DIGITS):
            rounded = [float(f"{one:.{digits}g}") for one in exact]
            total = computed + np.asarray(rounded) @ terms
            if self.gaps(total, tolerance, magnitude) <= 1:
                return rounded
        return None

    def constant_ratio(self, computed: Numbers, tolerance: float) -> bool:
        """Return whether the recorded numbers are a constant times the computed ones, [s]."""
        present = ~np.isnan(self.recorded)
        if present.sum() < _LEAST_STEPS or np.any(computed[present] == 0):
            return False
        ratios = self.recorded[present] / computed[present]
        return bool(np.ptp(ratios) <= _LOOSE * tolerance * np.abs(ratios).max())


_LEAST_STEPS = 2
_MOST = 0.5  # share of the steps; more of them count
_FAR = 1e30
PARTS = 1000
"""Credits of a target that is reproduced at all steps."""


def credits_of(errors: Numbers) -> NDArray[np.int64]:
    """Return how much of a target is reproduced, [...], of `Target.errors`: `PARTS` for all of it.

    A part counts if it is more than half of the steps.
    """
    parts = np.where(errors < 1 + PARTS / 2, PARTS - np.floor(errors - 1), 0)
    return np.asarray(np.where(errors <= 1, PARTS, parts), np.int64)


_LOOSE = 10
_DIGITS = 5  # of a coefficient
_TINY = 1e-300
_SUMS = 0.1
"""Share of the tolerance that a sum may lose to cancellation, of the sum of absolute values."""


class StepData:
    """The responses of a step: sums, and what they may be divided by."""

    def __init__(self, measured: Measured, step: str) -> None:
        rows = measured.rows_of(step)
        index = {column: at for at, column in enumerate(measured.columns)}
        one = index.get(Column("sum", "one"))
        self.count = len(rows)
        tokens = measured.tokens[rows] if one is None else measured.sums[rows, one]
        self.tokens = tokens.astype(np.float64)
        self.valid = (self.tokens > 0).astype(np.float64)
        self.rows = np.ones(len(rows))
        self.length = measured.length[rows].astype(np.float64)
        self.longest = float(self.length.max(initial=0.0))
        self.sums = measured.sums[rows]
        self.kept = measured.kept[rows]
        self.rewards = {name: numbers[rows] for name, numbers in measured.rewards.items()}

    def weights(self, units: Units, length: float | None) -> Numbers:
        """Return the weight of each response's sums in a mean of units, [hows, n]."""
        sizes = np.diff(np.append(units.starts, len(units.order)))

        def total(numbers: Numbers) -> Numbers:
            return np.asarray(np.add.reduceat(numbers[units.order], units.starts))

        tokens, valid, rows = total(self.tokens), total(self.valid), total(self.rows)
        every = total(self.length)
        longest = np.maximum.reduceat(self.length[units.order], units.starts)
        norm = longest if length is None else np.full_like(longest, length)
        below = (
            tokens, valid, rows, valid, rows, norm * rows, norm, np.ones_like(rows), every,
            longest * rows,
        )  # fmt: skip
        out = np.zeros((len(HOWS), self.count))
        for at, divisor in enumerate(below):
            share = np.divide(units.weights, divisor, out=np.zeros_like(divisor), where=divisor > 0)
            out[at, units.order] = np.repeat(share, sizes)
        with np.errstate(divide="ignore"):
            own = np.where(self.tokens > 0, 1 / np.maximum(self.tokens, 1), 0.0)
        out[1] *= own
        out[2] *= own
        return out


class Aggregated:
    """The columns of the matched steps, aggregated over the units of many means.

    Args:
        measured: the responses.
        steps: labels of the matched steps.
        length: the length of seq-mean-token-sum-norm, if the user sets it.
    """

    def __init__(self, measured: Measured, steps: Sequence[str], length: float | None) -> None:
        self.measured, self.length = measured, length
        self.index = {column: at for at, column in enumerate(measured.columns)}
        self.steps = [StepData(measured, step) for step in steps]
        self.absolute = [np.abs(one.sums) for one in self.steps]
        self._last: tuple[Means, Numbers, Numbers] | None = None

    def part(self, steps: Sequence[int]) -> Aggregated:
        """Return the data of some steps, by their numbers."""
        part = Aggregated(self.measured, [], self.length)
        part.steps = [self.steps[one] for one in steps]
        part.absolute = [self.absolute[one] for one in steps]
        return part

    @property
    def counts(self) -> list[int]:
        """The responses of each step."""
        return [one.count for one in self.steps]

    def values(self, means: Means) -> tuple[Numbers, Numbers]:
        """Return all columns aggregated, and their absolute values, [hows, columns, s] each."""
        if self._last is None or self._last[0] is not means:
            both: list[list[Numbers]] = [[], []]
            for step, absolute, units in zip(self.steps, self.absolute, means.units, strict=True):
                weights = torch.from_numpy(step.weights(units, self.length))
                for found, columns in zip(both, (step.sums, absolute), strict=True):
                    found.append((weights @ torch.from_numpy(columns)).numpy())
            value, magnitude = (np.stack(one, axis=-1) for one in both)
            self._last = means, value, magnitude
        return self._last[1:]


class Grid(NamedTuple):
    """The combinations of bounds of a family, or the options of losses without bounds."""

    family: Family
    bounds: tuple[tuple[float | str, ...], ...]
    """For each side the bounds that differ: low, high, dual; for other losses the options."""
    same: dict[tuple[str, float | str], tuple[float | str, ...]]
    """By side and bound: the other bounds with the same numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of bounds of each side."""
        return tuple(len(one) for one in self.bounds)

    @property
    def clipped(self) -> bool:
        """Whether it has a bound for each side."""
        return len(self.bounds) == len(SIDES)


class Fitting:
    """The errors of all candidates for the metrics of a loss.

    Args:
        data: the aggregated columns.
        tolerance: relative tolerance.
        known: the KL loss, if it is set.
    """

    def __init__(self, data: Aggregated, tolerance: float, known: KlLoss) -> None:
        self.data, self.tolerance, self.known = data, tolerance, known
        self.at = data.index

    @cached_property
    def grids(self) -> list[Grid]:
        """The losses, without bounds that change nothing in this data."""
        candidates = self.data.measured.candidates
        if candidates is None:
            return []
        grids = []
        for family, clips in candidates.clipped.items():
            sides = {"low": clips, "high": clips, "dual": candidates.duals}
            sides |= {side: (bound,) for side, bound in candidates.sides.items()}
            if family.loss == "cispo":
                del sides["dual"]
            same: dict[tuple[str, float | str], tuple[float | str, ...]] = {}
            kept = [self._distinct(family, side, bounds, same) for side, bounds in sides.items()]
            kept += [(np.inf,)] * (len(SIDES) - len(kept))
            grids.append(Grid(family, tuple(kept), same))
        names: dict[Family, list[float | str]] = {}
        for column in self.at:
            if column.kind == "loss" and column.name == "whole" and column.family is not None:
                names.setdefault(column.family, []).append(column.bound)
        return grids + [Grid(family, (tuple(own),), {}) for family, own in names.items()]

    def _distinct(
        self,
        family: Family,
        side: str,
        bounds: Sequence[float],
        same: dict[tuple[str, float | str], tuple[float | str, ...]],
    ) -> tuple[float | str, ...]:
        """Return the bounds of a side that differ from those before them."""
        groups: dict[bytes, list[float]] = {}
        for bound in bounds:
            kinds = ("loss", "clip", "outside") if side != "dual" else ("loss", "clip")
            places = [self.at[Column(kind, side, family, bound)] for kind in kinds]
            if side != "dual" and family.loss == "cispo":
                places = places[:1] + places[2:]
            own = np.concatenate([one.sums[:, places].ravel() for one in self.data.steps])
            groups.setdefault(np.round(own, 9).tobytes(), []).append(bound)
        for first, *others in groups.values():
            same[side, first] = tuple(others)
        return tuple(first for first, *_ in groups.values())

    def columns(self, grid: Grid, kind: str, side: int) -> list[int]:
        """Return the columns of the bounds of a side."""
        name = SIDES[side] if grid.clipped else "whole"
        family = grid.family
        if kind == "outside" and name == "dual":
            kind = "clip"
        return [
            self.at[column]
            for bound in grid.bounds[side]
            if (column := Column(kind, name, family, bound)) in self.at
        ]

    def errors(self, target: Target, grid: Grid, means: Means) -> Numbers:
        """Return the largest difference in units of what is allowed, [hows, *shape].

        Args:
            target: `pg_loss`, `loss`, or a metric of clipped tokens.
            grid: of the candidates.
            means: the units.
        """
        sides = sides_of(target.metric, grid)
        own = []
        for kind in kinds_of(target.metric, grid):
            value, magnitude = self._composed(grid, means, kind, sides)
            own += [
                target.errors(value + further, self.tolerance, magnitude)
                for further in self._known_terms(target, grid, means)
            ]
        return np.asarray(np.minimum.reduce(own))

    def _known_terms(self, target: Target, grid: Grid, means: Means) -> Iterator[Numbers | float]:
        """Yield the KL losses that a loss has, if the coefficient is set, [hows, ..., s]; or 0."""
        coef, columns = self.known.coef, self.known.columns(self.at)
        if target.metric != "loss" or not coef or not columns:
            yield 0.0
            return
        wide = (len(HOWS), *(1 for _ in grid.bounds), -1)
        for column in columns:
            yield coef * self.data.values(means)[0][:, self.at[column]].reshape(wide)

    def _composed(
        self, grid: Grid, means: Means, kind: str, sides: Sequence[int]
    ) -> tuple[Numbers, Numbers]:
        """Return the sums of a side's columns for every combination, [hows, *shape, s]."""
        shape = (1,) * len(grid.bounds)
        value = magnitude = np.zeros((len(HOWS), *shape, len(self.data.steps)))
        every, absolutes = self.data.values(means)
        for side in sides:
            places = self.columns(grid, kind, side)
            if not places:
                continue
            wide = [1] * len(grid.bounds)
            wide[side] = len(places)
            own, absolute = (x[:, places].reshape(len(HOWS), *wide, -1) for x in (every, absolutes))
            value, magnitude = value + own, magnitude + absolute
        return value, magnitude


def sides_of(metric: str, grid: Grid) -> tuple[int, ...]:
    """Return the sides of a loss that a metric has the sum of."""
    if not grid.clipped:
        return (0,)
    own = {"clip_frac": (0, 1), "clip_frac_low": (0,), "clip_frac_high": (1,)}
    return own.get(metric, (2,) if metric == "clip_frac_dual" else (0, 1, 2))


def kinds_of(metric: str, grid: Grid) -> tuple[str, ...]:
    """Return the kinds of columns that a metric of a loss may have."""
    if metric in ("pg_loss", "loss"):
        return ("loss",)
    return ("clip", "outside") if grid.clipped else ("clip",)


LOSS_METRICS = ("pg_loss", "loss", "clip_frac", "clip_frac_low", "clip_frac_high", "clip_frac_dual")


def quantity_columns(metric: str, index: Mapping[Column, int]) -> Iterator[tuple[Column, int]]:
    """Yield the columns of tokens that a metric may be the mean of, the most usual ones first."""
    for name in QUANTITIES[metric]:
        for kind in ("sum", "all"):
            column = Column(kind, name)
            if column in index:
                yield column, index[column]


def target_of(recorded: Recorded, labels: Sequence[str]) -> Target:
    """Return a recorded metric by matched step; NaN for a step without a number.

    Args:
        recorded: of a log.
        labels: of the log's steps, one for each matched step.
    """
    none = Logged(np.nan, 0.0)
    numbers = [recorded.by_step.get(label, none) for label in labels]
    logged = np.array([one.value for one in numbers])
    return Target(
        recorded.metric,
        recorded.key,
        np.where(np.isfinite(logged), logged, np.nan),
        np.array([one.rounding for one in numbers]),
        logged,
        np.array([label not in recorded.by_step for label in labels]),
    )
