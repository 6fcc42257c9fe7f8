"""The search for the loss, the aggregation and the split that reproduce logged metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.fit import (
    HOWS,
    LOSS_METRICS,
    OF_QUANTITIES,
    QUANTITIES,
    Fitting,
    kinds_of,
    quantity_columns,
    sides_of,
)
from rlpost.analysis.replay.metrics.losses import SIDES, Column
from rlpost.analysis.replay.metrics.splits import LEVELS, Units, all_means
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
                    gaps = target.gaps(computed, fitting.tolerance, size)
                    quantities[target.key][number] = gaps.min()
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
    of_first, own = replace(means, units=means.units[:1]), Fitting(first, fitting.tolerance)
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
        base = sum(int(table[own].min() <= 1) for table in fits.quantities.values())
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
    """Return how many targets each combination of bounds reproduces."""
    return sum((table[own].min(0) <= 1).astype(np.int64) for table in tables.values())


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
    base = sum(int(table[own].min() <= 1) for table in fits.quantities.values())
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


def best_reading(
    target: Target,
    choice: Choice,
    fits: Fits,
    data: Aggregated,
    hows: Collection[int],
    tolerance: float,
) -> Read:
    """Return how a target is computed with a choice.

    If no way reproduces it, a loss may have a KL loss or an entropy bonus as further terms. Of the
    ways that differ, those at a constant ratio come first, then the closest of the usual ones.
    """
    ways = []
    for reading in readings(target, choice, fits, data, hows):
        means = fits.means[fits.at[reading.split, reading.level]]
        value, magnitude = data.values(means)
        places = [data.index[column] for column in reading.columns]
        computed, size = (x[reading.how, places].sum(0) for x in (value, magnitude))
        ways.append((reading, computed, size, float(target.gaps(computed, tolerance, size))))
    fitting = [reading for reading, _, _, gap in ways if gap <= 1]
    if fitting:
        return Read(fitting[0], tuple(fitting[1:]))
    if target.metric in ("pg_loss", "loss"):
        for reading, computed, size, _ in ways:
            value, _ = data.values(fits.means[fits.at[reading.split, reading.level]])
            for terms in term_sets(data):
                places = [data.index[column] for column in terms]
                scales = target.scales(computed, value[reading.how, places], tolerance, size)
                if scales is not None:
                    both = zip(scales, terms, strict=True)
                    return Read(reading._replace(terms=tuple(both)))
    usual = [way for way in ways if HOWS[way[0].how].cost <= _USUAL]
    for reading, computed, _, _ in usual:
        if target.constant_ratio(computed, tolerance):
            return Read(reading)
    closest = min(usual or ways, key=lambda way: way[-1], default=None)
    return Read(None if closest is None else closest[0])


_USUAL = 2  # the highest cost of an aggregation that is named as the closest


def term_sets(data: Aggregated) -> Iterator[tuple[Column, ...]]:
    """Yield the columns of tokens that a trainer may add to the policy loss."""
    names = ("k3", "ratio k3", "k1", "k2", "abs", "ratio k1", "ratio k2", "ratio abs")
    kl = [Column("sum", f"{one} new/ref") for one in names]
    entropy = Column("sum", "entropy")
    present = [one for one in kl if one in data.index]
    yield from ((one,) for one in present)
    if entropy in data.index:
        yield (entropy,)
        yield from ((one, entropy) for one in present)
