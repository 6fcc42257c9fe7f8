"""The order of responses in an epoch: windows, ranks, batches and optimiser steps.

Everything here follows from the facts about rows, the options and the seed, so that all ranks and
worker processes compute the same order without communication.

A file is read in *slices*: consecutive rows of a row group. Shuffling permutes the row groups; the
slices of one are read in their order, because Parquet decodes a row group from its start. A
*window* is some consecutive slices of this order. A *unit* is a response, or a rollout or prompt
group whose rows are kept together; it belongs to the window that has the last of its rows. Each
window's units are divided among the ranks, as many for each, and each rank shuffles its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rlpost.errors import DataError, UsageError
from rlpost.kernels.codes import joint_codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


Last = Literal["even", "keep", "drop"]
Together = Literal["response", "rollout", "group"]
UNITS: dict[Together, str] = {
    "response": "responses", "rollout": "rollouts", "group": "prompt groups"
}  # fmt: skip


@dataclass(frozen=True)
class RowFacts:
    """Facts about the rows of an input, [N] each."""

    tokens: Ints
    """Tokens that are trained on: policy tokens of responses that masks keep."""
    length: Ints
    """Tokens of the response, with observation tokens."""
    size: Ints
    """Tokens that a batch has of the row: with observation tokens, and with the prompt if it is
    read."""
    included: NDArray[np.bool_]
    """Whether the row is in any batch."""
    group: Ints
    """Codes of prompt groups."""
    unit: Ints
    """Codes of what is kept together."""
    row_groups: Ints
    """[R+1] the first row of each row group of all files; the last element is N."""


@dataclass(frozen=True)
class BatchOptions:
    """How responses become batches, and batches steps."""

    size: int | None
    """Responses of a batch at most."""
    tokens: int | None
    """Tokens of a batch at most, with padding in the padded layout."""
    padded: bool
    together: Together
    """Whose rows are in one batch."""
    seed: int | None
    """None: the order of the input."""
    world_size: int
    accumulate: int
    """Batches of each rank in an optimiser step."""
    last: Last
    window: int
    """Tokens of a window, about."""


class StepTotals(NamedTuple):
    """What a whole optimiser step has, over all ranks and batches."""

    tokens: int
    """Tokens that are trained on."""
    responses: int
    """Responses with such a token."""
    rows: int
    """Responses, also those without such a token."""
    groups: int
    """Prompt groups of the responses with such a token."""
    longest: int
    """Tokens of the longest response, also without such a token; observation tokens included."""


@dataclass(frozen=True)
class Slices:
    """The slices of an epoch in reading order, [S] each."""

    start: Ints
    stop: Ints
    row_group: Ints
    window: Ints
    """The window of each, not decreasing."""


@dataclass(frozen=True)
class RankOrder:
    """The responses of one rank in an epoch."""

    rows: Ints
    """Row numbers in the order of training."""
    window: Ints
    """The window after which each row is in memory, not decreasing."""
    bounds: Ints
    """[M+1] the first row of each batch, as an index of `rows`."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def batch(self, number: int) -> Ints:
        """Return the rows of a batch."""
        return self.rows[self.bounds[number] : self.bounds[number + 1]]


@dataclass(frozen=True)
class Epoch:
    """The batches of all ranks in an epoch."""

    facts: RowFacts
    options: BatchOptions
    slices: Slices
    ranks: tuple[RankOrder, ...]

    @cached_property
    def steps(self) -> int:
        """The number of optimiser steps."""
        return max(-(-len(rank) // self.options.accumulate) for rank in self.ranks)

    def totals(self, step: int) -> StepTotals:
        """Return what all batches of a step have together."""
        first, last = (k * self.options.accumulate for k in (step, step + 1))
        parts = [
            rank.rows[rank.bounds[min(first, len(rank))] : rank.bounds[min(last, len(rank))]]
            for rank in self.ranks
        ]
        rows = np.concatenate(parts)
        tokens = self.facts.tokens[rows]
        return StepTotals(
            tokens=int(tokens.sum()),
            responses=int((tokens > 0).sum()),
            rows=len(rows),
            groups=len(np.unique(self.facts.group[rows[tokens > 0]])),
            longest=int(self.facts.length[rows].max(initial=0)),
        )


def epoch_of(facts: RowFacts, options: BatchOptions, epoch: int) -> Epoch:
    """Return the batches of all ranks in an epoch.

    Raises:
        DataError: rows to keep together are so scattered that it needs more memory than a window.
        UsageError: the last step has fewer units than ranks, and `last` is "even".
    """
    random = np.random.default_rng([options.seed, epoch]) if options.seed is not None else None
    slices, position = _slices(facts, options, random)
    units = _units(facts, options, slices, position)
    ranks = [_batched(facts, options, *one) for one in _dealt(options, units, random)]
    return Epoch(facts, options, slices, _aligned(options, ranks))


def _slices(
    facts: RowFacts, options: BatchOptions, random: np.random.Generator | None
) -> tuple[Slices, Ints]:
    """Return the slices in reading order, and the position of each row's slice in it, [N]."""
    count = len(facts.row_groups) - 1
    order = np.arange(count) if random is None else random.permutation(count)
    total = np.concatenate([[0], facts.size.cumsum()])
    starts, stops, groups, sizes = [], [], [], []
    for group in order.tolist():
        first, stop = facts.row_groups[group : group + 2].tolist()
        mean = max(1.0, (total[stop] - total[first]) / max(stop - first, 1))
        rows = max(1, int(options.window / 4 / mean))
        for start in range(first, stop, rows):
            starts.append(start)
            stops.append(min(start + rows, stop))
            groups.append(group)
            sizes.append(total[stops[-1]] - total[start])
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if sizes else np.zeros(0)
    window = (before // max(options.window, 1)).astype(np.int64)
    begin, end, own = (np.array(x, np.int64) for x in (starts, stops, groups))
    slices = Slices(begin, end, own, window)
    position = np.empty(len(facts.tokens), np.int64)
    for number, rows_of in enumerate(map(slice, starts, stops)):
        position[rows_of] = number
    return slices, position


@dataclass(frozen=True)
class _WindowUnits:
    """Units in the order of the windows: rows [K], and [U+1] the first row of each unit."""

    rows: Ints
    bounds: Ints
    window: Ints
    """[U] the window of each unit, not decreasing."""


def _units(facts: RowFacts, options: BatchOptions, slices: Slices, position: Ints) -> _WindowUnits:
    rows = np.flatnonzero(facts.included)
    if options.together == "response":
        rows = rows[np.argsort(position[rows], kind="stable")]
        return _WindowUnits(rows, np.arange(len(rows) + 1), slices.window[position[rows]])
    codes = joint_codes(facts.unit[rows])
    latest = np.zeros(codes.max() + 1, np.int64)
    np.maximum.at(latest, codes, position[rows])
    ends = latest[codes]
    order = np.lexsort((position[rows], codes, ends))
    _check_scattered(facts, options, rows, slices.window[position[rows]], slices.window[ends])
    rows, codes = rows[order], codes[order]
    bounds = np.concatenate([np.flatnonzero(np.diff(codes, prepend=-1)), [len(rows)]])
    return _WindowUnits(rows, bounds, slices.window[latest[codes[bounds[:-1]]]])


def _check_scattered(
    facts: RowFacts, options: BatchOptions, rows: Ints, begins: Ints, ends: Ints
) -> None:
    """Raise DataError if the rows that wait for the rest of their unit exceed a window."""
    waits = ends > begins
    held = np.zeros(int(ends.max()) + 2, np.int64)
    np.add.at(held, begins[waits], facts.size[rows[waits]])
    np.subtract.at(held, ends[waits], facts.size[rows[waits]])
    if held.cumsum().max() > max(options.window, 1):
        units = UNITS[options.together]
        raise DataError(
            f"load: the rows of {units} are so far apart that those to keep together do not fit "
            f"into a window of {options.window:,} tokens",
            tip=f"sort the file by {units}, choose a larger window=, or set together='response'",
        )


@dataclass(frozen=True)
class _Cut:
    """The order of a rank, whose batches begin at the units `cuts`, [M+1]."""

    rows: Ints
    window: Ints
    bounds: Ints
    """[U+1] the first row of each unit."""
    cuts: Ints


def _dealt(
    options: BatchOptions, units: _WindowUnits, random: np.random.Generator | None
) -> list[tuple[Ints, Ints, Ints]]:
    """Divide each window's units among the ranks, and shuffle those of each.

    Returns:
        For each rank rows, their windows, and the first row of each unit.
    """
    world, sizes = options.world_size, np.diff(units.bounds)
    edges = np.flatnonzero(np.diff(units.window, prepend=-1, append=-1))
    own: list[list[Ints]] = [[] for _ in range(world)]
    for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        at = first
        for rank in range(world):
            share = _quota(stop, rank, world) - _quota(first, rank, world)
            part = np.arange(at, at + share)
            own[rank].append(part if random is None else random.permutation(part))
            at += share
    dealt = []
    for parts in own:
        chosen = np.concatenate([np.zeros(0, np.int64), *parts])
        count = sizes[chosen]
        bounds = np.concatenate([[0], count.cumsum()])
        inside = np.arange(bounds[-1]) - np.repeat(bounds[:-1], count)
        rows = units.rows[np.repeat(units.bounds[chosen], count) + inside]
        dealt.append((rows, np.repeat(units.window[chosen], count), bounds))
    return dealt


def _quota(count: int, rank: int, world: int) -> int:
    """Return how many of a number of units a rank has if they are dealt in turn."""
    return (count + world - 1 - rank) // world


def _batched(
    facts: RowFacts, options: BatchOptions, rows: Ints, window: Ints, bounds: Ints
) -> _Cut:
    """Cut the units of a rank into batches: as many for each as fit, and at least one."""
    if options.size is not None:
        cuts = _greedy(bounds, options.size)
    elif not options.padded:
        assert options.tokens is not None
        cuts = _greedy(np.concatenate([[0], facts.size[rows].cumsum()])[bounds], options.tokens)
    else:
        assert options.tokens is not None
        cuts = _greedy_padded(facts.size[rows], bounds, options.tokens)
    return _Cut(rows, window, bounds, cuts)


def _greedy(before: Ints, most: int) -> Ints:
    """Return the units at which batches begin, from 0 to U, if none has more than `most`.

    Args:
        before: [U+1] rows or tokens of all units before each.
        most: of a batch.
    """
    last = len(before) - 1
    if np.array_equal(before, np.arange(last + 1)):
        return np.append(np.arange(0, last, most), last)
    cuts = [0]
    while cuts[-1] < last:
        stop = int(np.searchsorted(before, before[cuts[-1]] + most, side="right")) - 1
        cuts.append(max(stop, cuts[-1] + 1))
    return np.array(cuts)


def _greedy_padded(sizes: Ints, bounds: Ints, most: int) -> Ints:
    """Return the units at which batches begin if rows times the longest is at most `most`."""
    cuts, longest, first = [0], 0, 0
    of_unit = np.maximum.reduceat(sizes, bounds[:-1]) if len(bounds) > 1 else sizes
    for unit, (own, stop) in enumerate(zip(of_unit.tolist(), bounds[1:].tolist(), strict=True)):
        longest = max(longest, own)
        if unit > cuts[-1] and (stop - first) * longest > most:
            cuts.append(unit)
            longest, first = own, int(bounds[unit])
    return np.array([*cuts, len(bounds) - 1] if len(bounds) > 1 else [0])


def _aligned(options: BatchOptions, ranks: list[_Cut]) -> tuple[RankOrder, ...]:
    """Return the orders of all ranks; the last step as the options have it."""
    cuts = [rank.cuts for rank in ranks]
    if options.last == "even":
        most = max(map(len, cuts))
        fewest = min(len(rank.bounds) - 1 for rank in ranks)
        if most - 1 > fewest:
            kind = UNITS[options.together]
            count = sum(len(rank.bounds) - 1 for rank in ranks)
            raise UsageError(
                f"last='even': of {count:,} {kind} for {options.world_size:,} ranks, one has "
                f"{fewest:,} for {most - 1:,} batches; use fewer ranks, smaller batches, or "
                "last='drop'"
            )
        cuts = [_divided(rank, most) for rank in ranks]
    elif options.last == "drop":
        full = [_full(options, rank) for rank in ranks]
        steps = min(full) // options.accumulate
        if not steps:
            count = sum(len(rank.rows) for rank in ranks)
            size = f"{options.size or options.tokens:,} "
            size += "responses" if options.tokens is None else "tokens"
            raise UsageError(
                f"last='drop': {count:,} responses are no full step of {options.accumulate} "
                f"batches of {size} for each of {options.world_size:,} ranks; use smaller batches, "
                "fewer ranks, or last='keep'"
            )
        cuts = [own[: steps * options.accumulate + 1] for own in cuts]
    return tuple(
        RankOrder(rank.rows[:count], rank.window[:count], rank.bounds[own])
        for rank, own in zip(ranks, cuts, strict=True)
        for count in [rank.bounds[own[-1]]]
    )


def _full(options: BatchOptions, rank: _Cut) -> int:
    """Return the number of batches of a rank, without a last one of fewer responses."""
    count = len(rank.cuts) - 1
    short = options.size is not None and options.together == "response"
    return len(rank.rows) // options.size if short and options.size else count


def _divided(rank: _Cut, most: int) -> Ints:
    """Divide batches in two, the largest first, until there are `most` - 1."""
    cuts = rank.cuts
    while len(cuts) < most:
        sizes = np.diff(cuts)
        largest = len(sizes) - 1 - int(np.argmax(sizes[::-1]))
        cuts = np.insert(cuts, largest + 1, cuts[largest] + sizes[largest] // 2)
    return cuts
