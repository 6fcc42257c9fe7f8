"""Clip bounds that give a logged share of clipped tokens, from the ratios of the tokens."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlpost.analysis.replay.metrics.configurations import SIDES
from rlpost.analysis.replay.metrics.intervals import overlap, round_numbers
from rlpost.analysis.replay.metrics.reductions import OF_COUNTS
from rlpost.kernels.segments import owners
from rlpost.losses import DUAL, HIGH, LOW
from rlpost.losses.config import LossConfig
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages.loss import STORED, tokens_of
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.aggregated import Aggregated
    from rlpost.analysis.replay.metrics.measure import Dump
    from rlpost.analysis.replay.metrics.series import MetricSeries
    from rlpost.analysis.replay.metrics.splits import Means
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.recipe.loss import LossOptions

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]

_STATES = {"low": LOW, "high": HIGH, "dual": DUAL}
_TIGHT = 1e-12
"""The distance from 1 of a bound that clips every token of its side."""
_WIDE = 0.1
"""Share of a bound that its interval may have."""
_MOST = 0.5
"""Share of the steps; a bound reproduces more of them."""
_MOST_NUMBERS = 12
"""Values of a bound, in an interval that a small input leaves open."""
_MOST_CANDIDATES = 64


class ClipBound(NamedTuple):
    """A bound that gives the logged share of clipped tokens."""

    side: str
    value: float
    """Of the option."""
    low: float
    """The lowest value that gives the same share."""
    high: float

    @property
    def digits(self) -> int:
        """The significant digits of the value; 0 for no bound."""
        if math.isinf(self.value):
            return 0
        return next(n for n in range(1, 18) if float(f"{self.value:.{n}g}") == self.value)

    @property
    def is_open(self) -> bool:
        """Whether the log leaves its digits open."""
        return self.high - self.low > _WIDE * abs(self.low)

    @property
    def option(self) -> str:
        """The field of the option."""
        return SIDES[self.side]


class Distances(NamedTuple):
    """The distances of ratios from 1, on a side of it, [k]."""

    rows: Indices
    """The response of each token."""
    values: Numbers
    """Descending."""

    def of(self, rows: Indices) -> Distances:
        """Return those of some responses, whose numbers are ascending, by their place."""
        inside = np.isin(self.rows, rows)
        return Distances(np.searchsorted(rows, self.rows[inside]), self.values[inside])

    def __add__(self, other: object) -> Distances:
        """Return both."""
        assert isinstance(other, Distances)
        values = np.concatenate([self.values, other.values])
        order = np.argsort(-values, kind="stable")
        return Distances(np.concatenate([self.rows, other.rows])[order], values[order])

    def share(self, bound: float, weights: Numbers) -> float:
        """Return the aggregated count of tokens beyond a bound.

        Args:
            bound: distance from 1.
            weights: of the responses.
        """
        beyond = int(np.searchsorted(-self.values, -bound, "left"))
        return float(weights[self.rows[:beyond]].sum())

    def interval(self, share: float, allowed: float, weights: Numbers) -> tuple[float, float]:
        """Return the lowest and the highest bound that give a share; (inf, -inf) for none."""
        shares = np.concatenate([[0.0], np.cumsum(weights[self.rows])])
        first = int(np.searchsorted(shares, share - allowed, "left"))
        last = int(np.searchsorted(shares, share + allowed, "right")) - 1
        if first > last:
            return math.inf, -math.inf
        low = self.values[last] if last < len(self.values) else 0.0
        high = np.nextafter(self.values[first - 1], -np.inf) if first else math.inf
        return float(low), float(high)


ByKind = dict[tuple[str, str], list[Distances]]
"""By kind of count (`clipped` or `outside`) and side: of each step."""


def distances_of(dump: Dump, options: LossOptions, data: Aggregated) -> ByKind:
    """Return the distances of the tokens that bounds may clip.

    Args:
        dump: the input.
        options: the loss.
        data: of the same input.
    """
    measured, steps = data.measured, data.labels
    rewarded = "reward" in dump.columns
    codes = torch.tensor([measured.steps.index(one) for one in steps])
    own = partial(_map, options=options, rewarded=rewarded, steps=codes)
    stage = Stage("clip bounds", map=own, gather=_gather, uses=STORED)
    _, responses = dump.run(stage, (*LOG_PROBS, "advantages", "is_weight"), [options])
    every: dict[str, Distances] = responses.notes["distances"]
    return {
        (name.split()[0], name.split()[1]): [of_input.of(measured.rows_of(one)) for one in steps]
        for name, of_input in every.items()
    }


def _map(batch: Batch, *, options: LossOptions, rewarded: bool, steps: Tensor) -> dict[str, Tensor]:
    """Return distances of tokens, and the responses that they are of, by kind and side."""
    tokens, loss = tokens_of(batch, rewarded=rewarded), LossConfig(options).loss
    of_tokens = owners(batch.offsets)
    inside = torch.isin(batch.table["step"], steps).to(of_tokens.device)[of_tokens]
    mapped = {"rows": torch.tensor([batch.offsets.numel() - 1])}
    for side in _sides(options):
        surrogate = loss(tokens, _with_bound(options, side))
        distances = (surrogate.ratio - 1) * (-1 if side == "low" else 1)
        kinds = {"clipped": surrogate.clip == _STATES[side]}
        if side != "dual":
            kinds["outside"] = tokens.mask & (distances > 0)
        for kind, counted in kinds.items():
            places = torch.nonzero(counted & inside).squeeze(1)
            mapped[f"{kind} {side}"] = distances[places].to(torch.float64)
            mapped[f"{kind} {side} rows"] = of_tokens[places]
    return mapped


def _gather(responses: Responses, parts: Iterable[dict[str, Tensor]]) -> Responses:
    """Add the distances of all responses as a note, in descending order."""
    first, found = 0, dict[str, list[tuple[Tensor, Tensor]]]()
    for part in parts:
        for name, values in part.items():
            if name != "rows" and not name.endswith(" rows"):
                found.setdefault(name, []).append((part[f"{name} rows"] + first, values))
        first += int(part["rows"])
    empty = Distances(np.zeros(0, np.int64), np.zeros(0))
    merged = {}
    for name, pairs in found.items():
        both = [torch.cat(one).numpy() for one in zip(*pairs, strict=True)]
        merged[name] = empty + Distances(*both)
    return responses.noting(distances=merged)


def _sides(options: LossOptions) -> list[str]:
    """Return the sides on which a loss has a bound."""
    reads = LossConfig(options).loss.defaults
    return [side for side, name in SIDES.items() if name in reads]


def _as_option(options: LossOptions, side: str, distance: float) -> float:
    """Return the value of an option for a bound at some distance from 1."""
    if side != "dual" and options.cispo_bounds != "ratio":
        return distance
    return max(0.0, 1 - distance) if side == "low" else 1 + distance


def _with_bound(options: LossOptions, side: str) -> LossOptions:
    """Return the loss whose bound of a side clips every token of that side, without others."""
    bounds: dict[str, Any] = dict.fromkeys(("pg_clip_low", "pg_clip_high"), math.inf)
    bounds |= {"dual_clip": None, SIDES[side]: _as_option(options, side, _TIGHT)}
    return options.model_copy(update=bounds)


def _current(options: LossOptions, side: str) -> float:
    """Return the distance from 1 of a bound; inf for none."""
    config = LossConfig(options)
    if side == "dual":
        own = config.resolved()["dual_clip"]
        return math.inf if own == "never" else float(own) - 1
    bound = config.ratio_bounds[side == "high"]
    return math.inf if bound is None else abs(bound - 1)


def solve_bounds(
    series: Sequence[MetricSeries],
    options: LossOptions,
    unstated: Sequence[str],
    distances: ByKind,
    data: Aggregated,
    means: Sequence[Means],
) -> list[tuple[ClipBound, ...]]:
    """Return the bounds that give logged shares of clipped tokens, each with fewest digits.

    Of a share of both sides, one bound is solved for and the other stays, or both are equal.

    Args:
        series: the shares that the loss does not give.
        options: the loss.
        unstated: the sides whose bound may have another value.
        distances: of the tokens.
        data: of the same steps.
        means: that a share may be of.
    """
    weights = [data.weights(one.units) for one in means]
    of_series: list[list[tuple[ClipBound, ...]]] = []
    for one in series:
        solvable = [side for side in one.definition.of if side in unstated]
        choices: list[tuple[str, ...]] = [(side,) for side in solvable]
        if len(solvable) > 1 and options.cispo_bounds != "ratio":
            choices.append((*solvable,))
        solved = (_solve(one, choice, options, distances, weights) for choice in choices)
        of_series.append([(), *(bounds for own in solved for bounds in own)])
    found: dict[tuple[ClipBound, ...], None] = {}
    for chosen in islice(product(*of_series), _MOST_CANDIDATES):
        by_side = {bound.side: bound for bounds in chosen for bound in bounds}
        found[tuple(by_side[side] for side in SIDES if side in by_side)] = None
    return [bounds for bounds in found if bounds]


def _solve(
    series: MetricSeries,
    solved: tuple[str, ...],
    options: LossOptions,
    distances: ByKind,
    weights: Sequence[Sequence[Numbers]],
) -> list[tuple[ClipBound, ...]]:
    """Return the bounds of some sides that give the most steps, those with few digits first."""
    names, steps = series.definition.of, [int(at) for at in np.flatnonzero(series.present)]
    allowed = series.allowed(np.abs(series.recorded))
    most, found = _MOST * len(steps), dict[tuple[ClipBound, ...], None]()
    for kind in ("clipped", "outside"):
        if any((kind, side) not in distances for side in names):
            continue
        own = {at: _joined([distances[kind, side][at] for side in solved]) for at in steps}
        others = [side for side in names if side not in solved]
        for of_steps, reduction in product(weights, np.flatnonzero(OF_COUNTS)):
            intervals = []
            for at in steps:
                of_responses = of_steps[at][reduction]
                known = sum(
                    distances[kind, side][at].share(_current(options, side), of_responses)
                    for side in others
                )
                rest = float(series.recorded[at]) - known
                intervals.append(own[at].interval(rest, float(allowed[at]), of_responses))
            low, high = np.array(intervals).T
            common = overlap(low, high)
            count = int(common.inside.sum())
            bounds = _bounds(options, solved, float(common.low), float(common.high))
            if bounds and count > most:
                most, found = count, {}
            if bounds and count == most:
                found |= dict.fromkeys(bounds)
    return sorted(found, key=lambda bounds: bounds[0].digits)[:_MOST_NUMBERS]


def _joined(distances: Sequence[Distances]) -> Distances:
    return distances[0] if len(distances) == 1 else distances[0] + distances[1]


def _bounds(
    options: LossOptions, sides: tuple[str, ...], low: float, high: float
) -> list[tuple[ClipBound, ...]]:
    """Return the bounds of some sides at distances from 1 in an interval."""
    ends = sorted(_as_option(options, sides[0], one) for one in (low, high))
    numbers = [math.inf] if math.isinf(ends[1]) else round_numbers(*ends)
    return [tuple(ClipBound(side, number, *ends) for side in sides) for number in numbers]
