"""The search for the loss, the aggregation and the split that reproduce logged metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.fit import (
    HOWS,
    LOSS_METRICS,
    OF_QUANTITIES,
    QUANTITIES,
    Fitting,
    credits_of,
    kinds_of,
    quantity_columns,
    sides_of,
)
from rlpost.analysis.replay.metrics.kl import KlLoss
from rlpost.analysis.replay.metrics.losses import SIDES, Column
from rlpost.analysis.replay.metrics.splits import LEVELS, Units, all_means
from rlpost.analysis.replay.metrics.steps import simple_values
from rlpost.analysis.replay.metrics.terms import fitted, in_order, term_sets
from rlpost.losses import LOSSES
from rlpost.recipe.loss import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.fit import Aggregated, Grid, Target
    from rlpost.analysis.replay.metrics.splits import Level, Means, Split

    Numbers = NDArray[np.float64]

Json = dict[str, Any]
Place = tuple[int, ...]


class Reading(NamedTuple):
    """How a metric is computed from the dump."""

    columns: tuple[Column, ...]
    """Their sum is aggregated."""
    how: int
    split: Split
    level: Level
    terms: tuple[tuple[float, Column], ...] = ()
    """Coefficients and columns that are added, such as those of a KL loss."""
    open: tuple[float, float] | None = None
    """The range of the first coefficient, if the digits of the log leave it open."""

    @property
    def needs(self) -> tuple[Column, ...]:
        """All columns that are read."""
        return (*self.columns, *(column for _, column in self.terms))

    def computed(self, data: Aggregated) -> Numbers:
        """Return the numbers of the steps, [s]."""
        return np.array([float(weights @ own) for weights, own in self._parts(data)])

    def magnitude(self, data: Aggregated) -> Numbers:
        """Return the aggregated absolute values, [s]."""
        return np.array([float(weights @ np.abs(own)) for weights, own in self._parts(data)])

    def _parts(self, data: Aggregated) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield the weights of responses, and their sums, by step."""
        for step in data.steps:
            units = Units.of(self.split, self.level, step.count)
            own = sum(step.sums[:, data.index[column]] for column in self.columns)
            for scale, column in self.terms:
                own = own + scale * step.sums[:, data.index[column]]
            yield step.weights(units, data.length)[self.how], np.asarray(own)


@dataclass(frozen=True)
class Fits:
    """The largest difference of each target, by means, in units of what is allowed."""

    means: list[Means]
    at: dict[tuple[Split, Level], int]
    """The number of a split's means."""
    quantities: dict[str, Numbers]
    """By key of a target: [means]."""
    losses: list[dict[str, Numbers]]
    """By grid and by key of a target: [means, *shape]."""


@dataclass(frozen=True)
class Choice:
    """A split, and a loss with its bounds, that reproduce the most targets."""

    split: Split
    score: int
    grid: Grid | None = None
    place: Place = ()
    tied_splits: tuple[Split, ...] = ()
    """Others that reproduce as many."""
    tied_losses: tuple[tuple[Grid, Place], ...] = ()
    """Other losses that reproduce as many, with their simplest options."""
    tied_bounds: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    """By side: other bounds that reproduce as many, the rest being equal."""


def fits_of(
    data: Aggregated,
    fitting: Fitting,
    targets: Sequence[Target],
    splits: Sequence[Split],
    hows: Collection[int],
) -> Fits:
    """Compute the differences of all candidates.

    Args:
        data: the aggregated columns.
        fitting: the losses.
        targets: what was recorded.
        splits: to try.
        hows: the aggregations of the loss to try.
    """
    means = all_means(splits, data.counts)
    at = {name: number for number, one in enumerate(means) for name in one.splits}
    of_losses = [one for one in targets if one.metric in LOSS_METRICS]
    quantities = {
        one.key: np.full(len(means), np.inf) for one in targets if one.metric in QUANTITIES
    }
    losses: list[dict[str, Numbers]] = [
        {one.key: np.full((len(means), *grid.shape), np.inf, np.float32) for one in of_losses}
        for grid in fitting.grids
    ]
    first = data.part([0])
    for number, one in enumerate(means):
        if number and not _promising(first, fitting, targets, one):
            continue
        value, magnitude = data.values(one)
        for target in targets:
            if target.metric in QUANTITIES:
                places = [place for _, place in quantity_columns(target.metric, data.index)]
                if places:
                    both = (x[np.ix_([*OF_QUANTITIES], places)] for x in (value, magnitude))
                    computed, size = both
                    errors = target.errors(computed, fitting.tolerance, size)
                    quantities[target.key][number] = errors.min()
        for grid, tables in zip(fitting.grids, losses, strict=True):
            for target in of_losses:
                errors = fitting.errors(target, grid, one)
                own = errors[[*hows]] if target.metric in ("pg_loss", "loss") else errors
                tables[target.key][number] = np.broadcast_to(own.min(0), grid.shape)
    return Fits(means, at, quantities, losses)


def _promising(
    first: Aggregated, fitting: Fitting, targets: Sequence[Target], means: Means
) -> bool:
    """Return whether any metric of the first step is reproduced, so that others are computed."""
    of_first, own = (
        replace(means, units=means.units[:1]),
        Fitting(first, fitting.tolerance, fitting.known),
    )
    own.grids = fitting.grids
    value, magnitude = first.values(of_first)
    for target in (one.of([0]) for one in targets if one.informative):
        if not target.informative:
            return True
        if target.metric in QUANTITIES:
            places = [place for _, place in quantity_columns(target.metric, first.index)]
            gaps = target.gaps(value[:, places], fitting.tolerance, magnitude[:, places])
            if gaps.min(initial=np.inf) <= 1:
                return True
        elif any(own.errors(target, grid, of_first).min() <= 1 for grid in fitting.grids):
            return True
    return False


def choose(fits: Fits, fitting: Fitting, splits: Sequence[Split]) -> Choice:
    """Return the simplest split and loss that reproduce the most targets."""
    best: tuple[float, ...] | None = None
    choice, scores = Choice(splits[0], 0), []
    grids = [grid for grid, table in zip(fitting.grids, fits.losses, strict=True) if table]
    costs = [_costs(grid) for grid in grids]
    for split in splits:
        own = _means_of(fits, split)
        base = sum(int(credits_of(table[own].min())) for table in fits.quantities.values())
        top = base
        for number, grid in enumerate(grids):
            score = base + _score(fits.losses[number], own)
            place = np.unravel_index(int(np.argmax(score * _BIG - costs[number])), grid.shape)
            at = tuple(int(one) for one in place)
            key = (-float(score[at]), split.cost + float(costs[number][at]))
            top = max(top, int(score.max()))
            if best is None or key < best:
                best, choice = key, Choice(split, int(score[at]), grid, at)
        if not grids and (best is None or (-base, split.cost) < best):
            best, choice = (-base, split.cost), Choice(split, base)
        scores.append(top)
    return _with_ties(choice, fits, fitting, splits, scores)


_BIG = 1e6


def _score(tables: Mapping[str, Numbers], own: Sequence[int]) -> Any:
    """Return how much of the targets each combination of bounds reproduces."""
    return sum(credits_of(table[own].min(0)) for table in tables.values())


def _with_ties(
    choice: Choice, fits: Fits, fitting: Fitting, splits: Sequence[Split], scores: Sequence[int]
) -> Choice:
    """Return a choice with what reproduces as many targets."""
    splits = tuple(
        one
        for one, score in zip(splits, scores, strict=True)
        if score == choice.score and one != choice.split
    )
    if choice.grid is None or not any(fits.losses):
        return Choice(choice.split, choice.score, tied_splits=splits)
    own = _means_of(fits, choice.split)
    base = sum(int(credits_of(table[own].min())) for table in fits.quantities.values())
    losses, bounds = [], {}
    for number, grid in enumerate(fitting.grids):
        score = base + _score(fits.losses[number], own)
        if grid is not choice.grid:
            if int(score.max()) == choice.score:
                place = np.unravel_index(int(np.argmax(score * _BIG - _costs(grid))), grid.shape)
                losses.append((grid, tuple(int(one) for one in place)))
            continue
        for side, values in enumerate(grid.bounds):
            line = tuple(
                slice(None) if one == side else choice.place[one] for one in range(len(grid.bounds))
            )
            equal = [
                bound
                for place, bound in enumerate(values)
                if score[line][place] == choice.score and place != choice.place[side]
            ]
            name = SIDES[side] if grid.clipped else "whole"
            here = grid.same.get((name, values[choice.place[side]]), ())
            bounds[name] = (*here, *equal)
    return Choice(
        choice.split, choice.score, choice.grid, choice.place, splits, tuple(losses), bounds
    )


def _means_of(fits: Fits, split: Split) -> list[int]:
    """Return the means that a metric may be of a split, the simplest first."""
    return [fits.at[split, level] for level in LEVELS if (split, level) in fits.at]


def _costs(grid: Grid) -> Numbers:
    """Return how unusual each combination of bounds is."""
    family = grid.family
    base = 0.0 if family.loss == "ppo" else 0.5 + 0.05 * [*LOSSES].index(family.loss)
    base += (family.behaviour == "infer") * 0.3 + 0.0
    if not grid.clipped:
        return np.asarray(base + 0.1 * np.arange(grid.shape[0]))
    costs = np.full(grid.shape, base)
    for side, values in enumerate(grid.bounds):
        shape = [1] * len(grid.bounds)
        shape[side] = -1
        costs = costs + 0.02 * np.arange(len(values)).reshape(shape)
    for low, high in np.ndindex(grid.shape[:2]):
        names = {side: _values(grid, side, place) for side, place in ((0, low), (1, high))}
        costs[low, high] += 0.3 * names[0].isdisjoint(names[1])
    return costs


def _values(grid: Grid, side: int, place: int) -> set[float | str]:
    """Return a bound, and those that the data cannot tell from it."""
    bound = grid.bounds[side][place]
    return {bound, *grid.same.get((SIDES[side], bound), ())}


def bounds_of(grid: Grid, place: Place) -> dict[str, float | str]:
    """Return the bounds of a place by side; the usual ones of those with the same numbers."""
    if not grid.clipped:
        return {"whole": grid.bounds[0][place[0]]}
    low, high, dual = (_values(grid, side, place[side]) for side in range(len(SIDES)))
    usual = DEFAULTS[grid.family.loss]
    both = {one for one in low & high if isinstance(one, float)}
    chosen: dict[str, float | str] = {}
    for name, values in (("low", low), ("high", high)):
        default = usual.get(f"pg_clip_{name}", math.inf)
        default = math.inf if default == "never" else default
        ordered = grid.bounds[SIDES.index(name)]
        first = ordered[place[SIDES.index(name)]]
        chosen[name] = default if default in values else min(both, key=float) if both else first
    if both and chosen["low"] != chosen["high"]:
        shared = {one for one in chosen.values() if one in both}
        common = shared.pop() if shared else min(both, key=float)
        chosen = dict.fromkeys(chosen, common)
    chosen["dual"] = math.inf if math.inf in dual else min(dual, key=float)
    return chosen


def columns_of_loss(
    metric: str, grid: Grid, place: Place, kind: str, index: Mapping[Column, int]
) -> tuple[Column, ...]:
    """Return the columns whose sum is a metric of a loss."""
    names = SIDES if grid.clipped else ("whole",)
    columns = []
    for side in sides_of(metric, grid):
        bound = grid.bounds[side][place[side]]
        own = "clip" if kind == "outside" and names[side] == "dual" else kind
        column = Column(own, names[side], grid.family, bound)
        if column in index:
            columns.append(column)
    return tuple(columns)


def readings(
    target: Target, choice: Choice, fits: Fits, data: Aggregated, hows: Collection[int]
) -> Iterator[Reading]:
    """Yield the ways to compute a target with a choice, the simplest first."""
    levels = [level for level in LEVELS if (choice.split, level) in fits.at]
    if target.metric in QUANTITIES:
        for order, level, (column, _) in (
            (order, level, column)
            for level in levels
            for column in quantity_columns(target.metric, data.index)
            for order in OF_QUANTITIES
        ):
            yield Reading((column,), order, choice.split, level)
        return
    if choice.grid is None:
        return
    of_loss = target.metric in ("pg_loss", "loss")
    ordered = sorted(hows if of_loss else OF_QUANTITIES, key=lambda one: HOWS[one].cost)
    for kind in kinds_of(target.metric, choice.grid):
        columns = columns_of_loss(target.metric, choice.grid, choice.place, kind, data.index)
        if not columns:
            continue
        for level in levels:
            for how in ordered:
                yield Reading(columns, how, choice.split, level)


class Read(NamedTuple):
    """How a target is computed: the simplest way that reproduces it, or the closest."""

    reading: Reading | None = None
    others: tuple[Reading, ...] = ()
    """Other ways that reproduce it."""
    instead: Reading | None = None
    """The way with another KL loss than the one that is set, if only that reproduces it."""


class Way(NamedTuple):
    """A reading with its numbers, [s] each."""

    reading: Reading
    computed: Numbers
    size: Numbers
    gap: float

    def distance(self, target: Target, tolerance: float) -> tuple[float, float]:
        """Return how far it is: the share of the steps that differ, and the median difference."""
        share = target.share(self.computed, tolerance, self.size)
        return 1 - share, float(np.nanmedian(np.abs(self.computed - target.recorded)))


@dataclass(frozen=True)
class Reader:
    """Finds how each target is computed with a choice.

    If no way reproduces a loss, it may have a KL loss or an entropy bonus as further terms. Of the
    ways that differ, those at a constant ratio come first, then those that reproduce the most
    steps, then the closest of the usual ones.
    """

    choice: Choice
    fits: Fits
    data: Aggregated
    hows: Collection[int]
    tolerance: float
    known: KlLoss

    def all(self, targets: Sequence[Target]) -> list[Read]:
        """Return how each target is computed: losses are like the other metrics, if possible."""
        found: dict[str, Read] = {}
        ordered = sorted(targets, key=lambda one: (one.metric == "loss", one.metric == "pg_loss"))
        for target in ordered:
            if simple_values(target.metric, self.data) is not None:
                found[target.key] = Read()
                continue
            of = {one.metric: found[one.key].reading for one in targets if one.key in found}
            found[target.key] = self._read(target, of.get("kl_loss"), of.get("pg_loss"))
        return [found[one.key] for one in targets]

    def reproduced(self, target: Target, reading: Reading | None) -> bool:
        """Return whether a reading reproduces a target."""
        if reading is None:
            return False
        both = reading.computed(self.data), self.tolerance, reading.magnitude(self.data)
        return bool(target.gaps(*both) <= 1)

    def _read(self, target: Target, kl: Reading | None, like: Reading | None) -> Read:
        ways = [*self._ways(target)]
        fitting = [way.reading for way in ways if way.gap <= 1]
        if fitting:
            return Read(fitting[0], tuple(fitting[1:]))
        of_loss = target.metric in ("pg_loss", "loss")
        if of_loss:
            if like is not None:
                ways = sorted(ways, key=lambda x: (x.reading.how, x.reading.level) != like[1:4:2])
            first = None if kl is None else kl.columns[0].name
            found = self._with_terms(target, ways, first)
            if found:
                return Read(found[0], tuple(found[1:]))
        usual = [way for way in ways if HOWS[way.reading.how].cost <= _USUAL]
        for way in usual:
            if target.constant_ratio(way.computed, self.tolerance):
                return Read(way.reading)
        key = partial(Way.distance, target=target, tolerance=self.tolerance)
        if of_loss and kl is not None:
            alike = [way for way in usual if kl.columns[0] in way.reading.needs]
            usual = alike or usual
        closest = min(usual or ways, key=key, default=None)
        if closest is not None and of_loss and target.sharp(self.tolerance):
            found = self._with_terms(target, ways, first, partly=True)
            if found and key(closest)[0] >= _HALF:
                return Read(found[0])
        return Read(
            None if closest is None else closest.reading, (), self._instead(target, kl, like)
        )

    def _instead(self, target: Target, kl: Reading | None, like: Reading | None) -> Reading | None:
        """Return what reproduces a loss without the KL loss that is set; None if nothing does."""
        if target.metric != "loss" or self.known == KlLoss():
            return None
        found = replace(self, known=KlLoss())._read(target, kl, like).reading  # noqa: SLF001
        return found if self.reproduced(target, found) else None

    def _ways(self, target: Target) -> Iterator[Way]:
        """Yield the ways without further terms, but for a KL loss that is set."""
        columns: list[Column | None] = [None]
        if target.metric == "loss" and self.known.in_loss:
            columns = [*self.known.columns(self.data.index)] or columns
        for plain in readings(target, self.choice, self.fits, self.data, self.hows):
            for column in columns:
                terms = () if column is None else ((float(self.known.coef or 0), column),)
                reading = plain._replace(terms=terms)
                value, magnitude = self._values(plain)
                places = [self.data.index[one] for one in plain.columns]
                computed, size = (x[plain.how, places].sum(0) for x in (value, magnitude))
                for scale, one in terms:
                    computed = computed + scale * value[plain.how, self.data.index[one]]
                gap = float(target.gaps(computed, self.tolerance, size))
                yield Way(reading, computed, size, gap)

    def _values(self, reading: Reading) -> tuple[Numbers, Numbers]:
        return self.data.values(self.fits.means[self.fits.at[reading.split, reading.level]])

    def _with_terms(
        self, target: Target, ways: Sequence[Way], first: str | None, *, partly: bool = False
    ) -> list[Reading]:
        """Return the ways with further terms that reproduce a loss, of the first that does."""
        sets = [*term_sets(self.known, self.data.index)]
        for group in in_order(sets, first):
            for way in ways:
                own = way.reading
                entropy = [one for one in sets if one == (Column("sum", "entropy"),)]
                sets_of_way = entropy if own.terms else group  # a KL loss that is set
                value, _ = self._values(own)
                found = []
                for columns in sets_of_way:
                    numbers = {one: value[own.how, self.data.index[one]] for one in columns}
                    terms = fitted(
                        target, way.computed, numbers, self.known, self.tolerance, way.size,
                        partly=partly,
                    )  # fmt: skip
                    if terms is not None:
                        found.append(own._replace(terms=own.terms + terms.parts, open=terms.open))
                if found:
                    return found
        return []


_HALF = 0.5
_USUAL = 2  # the highest cost of an aggregation that is named as the closest
