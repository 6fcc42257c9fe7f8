"""Clip bounds that give a logged share of clipped tokens, from the ratios of the tokens."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.replay.metrics.aggregates import OF_COUNTS
from rlpost.analysis.replay.metrics.configurations import SIDES
from rlpost.analysis.replay.metrics.formulas import MOST_DIGITS, overlap
from rlpost.analysis.replay.metrics.steps import MOST
from rlpost.analysis.replay.metrics.sums import STATES
from rlpost.kernels.arrays import Array, like
from rlpost.kernels.segments import spread
from rlpost.losses.config import LossConfig
from rlpost.pipeline.stages import Stage
from rlpost.pipeline.stages.loss import STORED, tokens_of
from rlpost.recipe.roles import LOG_PROBS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.aggregates import Aggregated
    from rlpost.analysis.replay.metrics.dump import DumpInput
    from rlpost.analysis.replay.metrics.steps import MetricSeries
    from rlpost.kernels.layouts import UnitMeans
    from rlpost.pipeline.data import Batch, Responses
    from rlpost.recipe.loss import LossOptions

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]

_TIGHT = 1e-12
"""The distance from 1 of a bound that clips every token of its side."""
_MOST_NUMBERS = 12
"""Values of a bound, in an interval that a small input leaves open."""
_MOST_CHANGES = 64


class Distances(NamedTuple):
    """How far the ratios of tokens that a bound may clip are from 1, [k]."""

    rows: Indices
    """The response of each token."""
    values: Numbers

    def of(self, rows: Indices) -> Distances:
        """Return those of some responses, by their place in `rows`; the highest first."""
        inside = np.flatnonzero(np.isin(self.rows, rows))
        order = inside[np.argsort(-self.values[inside], kind="stable")]
        return Distances(np.searchsorted(rows, self.rows[order]), self.values[order])

    def share(self, bound: float, weights: Numbers) -> float:
        """Return the aggregated count of the tokens beyond a bound, by weights of responses."""
        return float(weights[self.rows[self.values > bound]].sum())

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


def bound_changes(
    dump: DumpInput,
    options: LossOptions,
    unstated: Sequence[str],
    series: Sequence[MetricSeries],
    data: Aggregated,
    means: Sequence[UnitMeans],
) -> list[dict[str, float]]:
    """Return other bounds of a loss that give logged shares of clipped tokens, by field.

    Of a share of both sides, one bound is solved for and the other stays, or both are equal.

    Args:
        dump: the input.
        options: the loss.
        unstated: the sides whose bound may have another value.
        series: the shares that the loss does not give.
        data: of the same input.
        means: that a share may be of.
    """
    distances = _distances(dump, options, data)
    weights = [data.weights(one.units) for one in means]
    of_series: list[list[dict[str, float]]] = []
    for one in series:
        sides = [side for side in one.definition.of if side in unstated]
        choices: list[tuple[str, ...]] = [(side,) for side in sides]
        if len(sides) > 1 and options.cispo_bounds != "ratio":
            choices.append(tuple(sides))
        changes = [
            dict.fromkeys((SIDES[side] for side in choice), value)
            for choice in choices
            for value in _solve(one, choice, options, distances, weights)
        ]
        of_series.append([{}, *changes])
    merged = [
        {name: value for own in chosen for name, value in own.items()}
        for chosen in islice(product(*of_series), _MOST_CHANGES)
    ]
    return [one for one in merged if one]


def _solve(
    series: MetricSeries,
    unknown: tuple[str, ...],
    options: LossOptions,
    distances: dict[tuple[str, str], list[Distances]],
    weights: Sequence[Sequence[Numbers]],
) -> list[float]:
    """Return the bounds of some sides that give the most steps, those with few digits first."""
    most, found = 0.0, dict[float, None]()
    steps = [int(at) for at in np.flatnonzero(series.present)]
    allowed, sides = series.allowed(np.abs(series.recorded)), series.definition.of
    for kind in ("clipped", "outside"):
        if (kind, sides[0]) not in distances:
            continue
        own = [_joined([distances[kind, side][at] for side in unknown]) for at in steps]
        known = {side: _current(options, side) for side in sides if side not in unknown}
        for of_steps, reduction in product(weights, np.flatnonzero(OF_COUNTS)):
            intervals = []
            for at, tokens in zip(steps, own, strict=True):
                of_responses, rest = of_steps[at][reduction], series.recorded[at]
                for side, bound in known.items():
                    rest -= distances[kind, side][at].share(bound, of_responses)
                intervals.append(tokens.interval(rest, float(allowed[at]), of_responses))
            low, high, count = overlap(*np.array(intervals).T)
            share = float(count) / len(steps)
            if share <= MOST or share < most:
                continue
            found = found if share == most else {}
            numbers = _values(options, unknown[0], float(low), float(high))
            most, found = share, found | dict.fromkeys(numbers[:_MOST_NUMBERS])
    return [*found]


def _joined(distances: Sequence[Distances]) -> Distances:
    rows, values = (np.concatenate(own) for own in zip(*distances, strict=True))
    order = np.argsort(-values, kind="stable")
    return Distances(rows[order], values[order])


def _distances(
    dump: DumpInput, options: LossOptions, data: Aggregated
) -> dict[tuple[str, str], list[Distances]]:
    """Return the distances of tokens by kind of count (`clipped` or `outside`), side and step."""
    measured, rewarded = data.measured, "reward" in dump.columns
    steps = np.array([measured.steps.index(one) for one in data.labels])
    own = partial(_map, options=options, rewarded=rewarded, steps=steps)
    stage = Stage("clip bounds", map=own, gather=_gather, uses=STORED)
    _, responses = dump.run(stage, (*LOG_PROBS, "advantages", "is_weight"), [options])
    return {
        key: [of_input.of(measured.rows_of(step)) for step in data.labels]
        for key, of_input in responses.notes["distances"].items()
    }


def _map(
    batch: Batch, *, options: LossOptions, rewarded: bool, steps: NDArray[np.int64]
) -> dict[str, Array]:
    """Return distances of tokens, and the responses that they are of, by kind and side."""
    tokens, loss = tokens_of(batch, rewarded=rewarded), LossConfig(options).loss
    xp, count = batch.xp, len(batch.offsets) - 1
    of_tokens = spread(xp.arange(count, batch.offsets), batch.offsets)
    inside = like(np.isin(batch.table["step"], steps), batch.mask)[of_tokens]
    mapped = {"rows": np.array([count])}
    for side in (side for side, name in SIDES.items() if name in loss.defaults):
        surrogate = loss(tokens, _with_bound(options, side))
        distances = (surrogate.ratio - 1) * (-1 if side == "low" else 1)
        counted = {"clipped": surrogate.clip == STATES[side][0]}
        if side != "dual":
            counted["outside"] = tokens.mask & (distances > 0)
        for kind, own in counted.items():
            places = xp.flatnonzero(own & inside)
            mapped[f"{kind} {side} values"] = distances[places]
            mapped[f"{kind} {side} rows"] = of_tokens[places]
    return mapped


def _gather(responses: Responses, parts: Iterable[dict[str, Array]]) -> Responses:
    """Add the distances of all responses as a note."""
    first, found = 0, dict[tuple[str, str], list[Distances]]()
    for part in parts:
        for name in part:
            kind, side, what = (*name.split(), "", "")[:3]
            if what == "rows":
                own = part[name] + first, part[f"{kind} {side} values"]
                found.setdefault((kind, side), []).append(Distances(*own))
        first += int(part["rows"][0])
    return responses.noting(distances={key: _joined(own) for key, own in found.items()})


def _with_bound(options: LossOptions, side: str) -> LossOptions:
    """Return the loss whose bound of a side clips every token of that side, without others."""
    bounds: dict[str, Any] = dict.fromkeys(("pg_clip_low", "pg_clip_high"), math.inf)
    bounds |= {"dual_clip": None, SIDES[side]: _option(options, side, _TIGHT)}
    return options.model_copy(update=bounds)


def _current(options: LossOptions, side: str) -> float:
    """Return the distance from 1 of the lower or the upper bound; inf for none."""
    bound = LossConfig(options).ratio_bounds[side == "high"]
    return math.inf if bound is None else abs(bound - 1)


def _option(options: LossOptions, side: str, distance: float) -> float:
    """Return the value of an option for a bound at some distance from 1."""
    if side != "dual" and options.cispo_bounds != "ratio":
        return distance
    return max(0.0, 1 - distance) if side == "low" else 1 + distance


def _values(options: LossOptions, side: str, low: float, high: float) -> list[float]:
    """Return values of an option for an interval of distances; those with few digits first."""
    low, high = sorted(_option(options, side, one) for one in (low, high))
    return [math.inf] if math.isinf(high) else round_numbers(low, high)


def round_numbers(low: float, high: float) -> list[float]:
    """Return the numbers with the fewest digits in an interval, then those with one digit more.

    >>> round_numbers(0.2696, 0.2722)
    [0.27, 0.271, 0.272]
    """
    found: dict[float, None] = {}
    for digits in range(1, MOST_DIGITS + 1) if 0 < low <= high else ():
        unit, last = 10.0 ** (np.floor(np.log10(high)) + 1 - digits), len(found) > 0
        first, end = np.ceil(low / unit), np.floor(high / unit)
        numbers = np.arange(first, min(end, first + _MOST_NUMBERS) + 1) * unit
        rounded = (float(f"{one:.{digits}g}") for one in numbers)
        found |= dict.fromkeys(one for one in rounded if low <= one <= high)
        if last:
            break
    return [*found]
