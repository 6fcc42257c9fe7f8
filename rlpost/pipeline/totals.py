"""Exact sums, minima and maxima of named numbers by key, in any order of addition.

In the summary a key is a cell: a pair of step and domain that occurs in a table of responses.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlpost.io.memory_limit import memory_limit
from rlpost.kernels.codes import dense_codes
from rlpost.kernels.moments import (
    carried,
    exact_digits,
    integers_of,
    scale_of,
    used_digits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.kernels.arrays import Array
    from rlpost.kernels.moments import Floats, Integers

Json = dict[str, Any]
Label = str | int

SPREADS = ("count", "total", "squares", "rest")
"""Sums of several numbers; `rest` is what rounding of each part of `squares` took from it."""
_NONE, _NO_TALLY = np.zeros(0, np.int64), np.zeros((), np.int64)
_SQUARED = 2.0**511  # numbers from here on have squares beyond float64


@dataclass(frozen=True)
class Totals:
    """Sums (exact), minima and maxima of a set of rows."""

    sums: dict[str, int] = field(default_factory=dict)
    """In units of 2^-`scale`: integers cost a fifth of fractions, and round to the same floats."""
    lows: dict[str, float] = field(default_factory=dict)
    highs: dict[str, float] = field(default_factory=dict)
    scale: int = 0
    counts: dict[str, Integers] = field(default_factory=dict)
    tallies: tuple[Integers, ...] | None = None
    """Of all keys together; None for a set of keys."""

    def count(self, name: str) -> int:
        """Return a sum of whole numbers."""
        return self.sums.get(name, 0) >> self.scale

    def total(self, name: str) -> Fraction:
        """Return a sum; 0 if nothing was added."""
        return Fraction(self.sums.get(name, 0), 1 << self.scale)

    def mean(self, name: str, count: int) -> float | None:
        """Return a sum / count, rounded once; None if the count is 0."""
        return self.sums.get(name, 0) / (count << self.scale) if count else None

    def numbers(self, name: str, count: int) -> Json:
        """Return count, mean, Bessel standard deviation, min and max; None without numbers.

        The standard deviation is None, too, where squares are beyond the range of float64.
        """
        if not count:
            return {"count": 0, **dict.fromkeys(("mean", "std", "min", "max"))}
        squared = 0.0
        if count > 1:
            below = count * (count - 1) << 2 * self.scale
            squared = max(self.deviations(name, count), 0) / below
        span = self.span(name, count)
        std = None if max(-span["min"], span["max"]) >= _SQUARED else squared**0.5
        return {"count": count, "mean": span["mean"], "std": std} | span

    def span(self, name: str, count: int) -> Json:
        """Return count, mean, min and max; None without numbers."""
        ends = [self.lows[name] + 0.0, self.highs[name] + 0.0]  # -0 becomes 0: order is chance
        low, high = ends if count else (None, None)
        return {**self.average(f"{name}.total", count), "min": low, "max": high}

    def average(self, name: str, count: int) -> Json:
        """Return count and mean."""
        return {"count": count, "mean": self.mean(name, count)}

    def yes(self, name: str, count: int) -> Json:
        """Return how many there are, for how many something is so, and their share."""
        return {"count": count, "total": self.count(name), "mean": self.mean(name, count)}

    def deviations(self, name: str, count: int) -> int:
        """Return n Σx² - (Σx)² of n numbers, in units of 4^-`scale`: nothing is lost in it."""
        total, *squares = (self.sums.get(f"{name}.{part}", 0) for part in SPREADS[1:])
        return (sum(squares) << self.scale) * count - total * total


def by_label(labels: Sequence[Any] | None, rows: Sequence[Json]) -> Json:
    """Return statistics of several sets as lists beside their labels; without labels, of one set.

    Args:
        labels: of the sets.
        rows: the statistics of each, with the same keys.
    """
    if labels is None:
        return rows[0]
    return {"label": [*labels], **{x: [row[x] for row in rows] for x in (rows[0] if rows else ())}}


class Sets(NamedTuple):
    """Sets of responses by a key."""

    labels: Sequence[Any] | None
    """None: the whole input."""
    totals: Sequence[Totals]
    """Of each set."""


def sliced(
    of: str, slices: Mapping[str, Sets], statistics: Callable[[Totals], Json | None]
) -> Json:
    """Return the entry of a measure: its population, and its statistics by each key.

    Args:
        of: the population in words.
        slices: by the name of the key; `all` is the whole input.
        statistics: of the measure in a set; None for a set that lacks it.
    """
    entry: Json = {"of": of}
    for by, (labels, totals) in slices.items():
        rows = [row for x in totals if (row := statistics(x)) is not None]
        entry |= {by: by_label(labels, rows)} if rows else {}
    return entry


class Counted(NamedTuple):
    """What a batch adds to totals: arrays, which may be on a device, and what is made of them."""

    numbers: dict[str, Array]
    totals: Callable[[Mapping[str, NDArray[Any]]], Any]
    """Returns the totals from the same numbers as arrays of numpy; totals add with `+`."""


_OF_SET = 300
"""Bytes of a sum in a set, with the statistics that follow from it, as measured."""


@dataclass(frozen=True)
class KeyBlock:
    """The totals of the keys that occur in some responses."""

    keys: Integers
    """[k] int64, ascending."""
    digits: Integers
    """[sums, k, digits], those of `exact_digits` from `first` on that any sum uses."""
    first: int
    lows: Floats
    """[spans, k] float64."""
    highs: Floats
    counts: tuple[Integers, ...] = ()
    """[k, ...] int64 each: other counts."""

    @classmethod
    def summed(cls, blocks: Sequence[KeyBlock]) -> KeyBlock:
        """Return the sums of blocks of the same names, at least one, in which keys may repeat."""
        keys = np.concatenate([block.keys for block in blocks])
        order = np.argsort(keys, kind="stable")
        present, begins = np.unique(keys[order], return_index=True)
        first, (model, *_) = min(block.first for block in blocks), blocks
        width = max(block.first - first + block.digits.shape[-1] for block in blocks)
        digits, end = np.zeros((len(model.digits), len(keys), width), np.int64), 0
        for block in blocks:
            begin, start, end = block.first - first, end, end + len(block.keys)
            digits[:, start:end, begin : begin + block.digits.shape[-1]] = block.digits

        def joined(add: np.ufunc, parts: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
            rows = np.concatenate(parts, axis).take(order, axis)
            return np.asarray(add.reduceat(rows, begins, axis))

        return cls(
            present,
            carried(joined(np.add, [digits], 1)),
            first,
            joined(np.minimum, [block.lows for block in blocks], 1),
            joined(np.maximum, [block.highs for block in blocks], 1),
            tuple(joined(np.add, x, 0) for x in zip(*(b.counts for b in blocks), strict=True)),
        )


@dataclass(frozen=True)
class ExactTotals:
    """Exact sums, minima and maxima of named numbers, by key.

    Totals of the same names add with `+`, in any order, to the same bits. Only keys that occur use
    memory and time: a chunk of a file has responses of few of its steps.
    """

    sums: tuple[str, ...] = ()
    """Names of the sums."""
    spans: tuple[str, ...] = ()
    """Names of the minima and maxima."""
    counts: tuple[str, ...] = ()
    """Names of other counts."""
    blocks: tuple[KeyBlock, ...] = ()
    """Not summed yet, each of more than twice as many keys as the next: so each is in few sums."""
    tallies: tuple[Integers, ...] = ()
    """Counts of all keys together, from `kernels.histogram.tally`."""

    @classmethod
    def of(
        cls,
        keys: Integers,
        sums: Mapping[str, NDArray[Any]],
        spans: Mapping[str, Sequence[NDArray[Any]]],
        counts: Mapping[str, Integers] | None = None,
    ) -> ExactTotals:
        """Return the totals of some responses.

        Args:
            keys: [n] the key of each response, from 0.
            sums: numbers to add up, [n] each; whole ones, and flags, take less memory.
            spans: the lowest and the highest value of each response, [n] each.
            counts: whole numbers of any shape by key, [k, ...] each, for the k keys that occur, in
                their order; what follows is left out.
        """
        distinct, index = dense_codes(keys, int(keys.max(initial=-1)) + 1)
        count = len(distinct)
        whole = {name: sums[name] for name in sums if sums[name].dtype.kind in "biu"}
        sums = {name: sums[name] for name in sums if name not in whole}
        counted = {name: np.bincount(index, x, count).astype(np.int64) for name, x in whole.items()}
        floats = [value.astype(np.float64, copy=False) for value in sums.values()]
        stacked = np.stack(floats) if floats else np.zeros((0, len(index)))
        indices = np.arange(len(sums))[:, None] * count + index
        digits = exact_digits(stacked.reshape(-1), indices.reshape(-1), len(sums) * count)
        lows, highs = (
            _by_key([pair[end] for pair in spans.values()], index, count, least=end == 0)
            for end in (0, 1)
        )
        by_key = counted | {name: numbers[:count] for name, numbers in (counts or {}).items()}
        used = used_digits(digits)
        digits = digits[:, used].reshape(len(sums), count, used.stop - used.start)
        block = KeyBlock(distinct, digits, used.start, lows, highs, tuple(by_key.values()))
        return cls(tuple(sums), tuple(spans), tuple(by_key), (block,))

    def __add__(self, other: ExactTotals) -> ExactTotals:
        assert not (self and other) or self.names == other.names, "totals of other names"
        blocks = [*self.blocks, *other.blocks]
        while len(blocks) > 1 and len(blocks[-2].keys) <= 2 * len(blocks[-1].keys):
            blocks[-2:] = [KeyBlock.summed(blocks[-2:])]
        first = self if self.blocks else other
        added = tuple(
            a + b for a, b in zip_longest(self.tallies, other.tallies, fillvalue=_NO_TALLY)
        )
        return ExactTotals(first.sums, first.spans, first.counts, tuple(blocks), added)

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def rekeyed(self, keys: Integers) -> ExactTotals:
        """Return the totals by other keys, one for each of `self.keys`; they need not differ."""
        if not self or np.array_equal(keys, self.joined.keys):
            return self
        block = replace(self.joined, keys=keys)
        distinct = bool((keys[1:] > keys[:-1]).all())
        return replace(self, blocks=(block if distinct else KeyBlock.summed([block]),))

    def beside(
        self, counts: Mapping[str, Integers], spans: Mapping[str, tuple[Floats, Floats]]
    ) -> ExactTotals:
        """Return the totals with whole numbers and extremes by key that are no sums over rows.

        Args:
            counts: [k] each, of all keys from 0 on.
            spans: the lowest and the highest of each, likewise.
        """
        if not self:
            return self
        block = self.joined
        lows, highs = ([pair[end][block.keys] for pair in spans.values()] for end in (0, 1))
        block = replace(
            block,
            lows=np.stack([*block.lows, *lows]),
            highs=np.stack([*block.highs, *highs]),
            counts=(*block.counts, *(x[block.keys] for x in counts.values())),
        )
        names = (*self.spans, *spans), (*self.counts, *counts)
        return replace(self, spans=names[0], counts=names[1], blocks=(block,))

    @cached_property
    def joined(self) -> KeyBlock:
        """All blocks as one; only if there are responses."""
        return self.blocks[0] if len(self.blocks) == 1 else KeyBlock.summed(self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all sums, those of whole numbers last."""
        return (*self.sums, *self.counts)

    @property
    def codes(self) -> Integers:
        """The keys that occur, ascending."""
        return self.joined.keys if self else _NONE

    @property
    def keys(self) -> list[int]:
        """The keys that occur, ascending, as a list."""
        keys: list[int] = self.codes.tolist()
        return keys

    def total(self) -> Totals:
        """Return the totals over all keys."""
        return replace(self.over_each([self.keys])[0], tallies=self.tallies)

    def over_each(self, sets: Sequence[Sequence[int] | Integers]) -> list[Totals]:
        """Return the totals over each of some sets of keys, which need not occur."""
        if not self or not len(self.joined.keys):
            return [Totals() for _ in sets]
        block, count = self.joined, len(sets)
        memory_limit().check(_OF_SET * count * len(self.names), f"the numbers of {count:,} sets")
        owner = np.arange(count).repeat([*map(len, sets)])
        keys = np.concatenate([_NONE, *sets]).astype(np.int64)
        places = np.searchsorted(block.keys, keys).clip(max=len(block.keys) - 1)
        there = block.keys[places] == keys
        owner, places = owner[there], places[there]
        digits = block.digits.swapaxes(0, 1)[places]
        sums = np.zeros((count, *digits.shape[1:]), np.int64)
        np.add.at(sums, owner, digits)
        low = np.full((count, len(self.spans)), np.inf)
        high = -low
        np.minimum.at(low, owner, block.lows.T[places])
        np.maximum.at(high, owner, block.highs.T[places])
        numbers = integers_of(sums.reshape(-1, sums.shape[-1]))
        counts = [np.zeros((count, *x.shape[1:]), np.int64) for x in block.counts]
        for total, part in zip(counts, block.counts, strict=True):
            np.add.at(total, owner, part[places])
        scale, each = scale_of(block.first), []
        for at, (lows, highs) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            begin = at * len(self.sums)
            parts = dict(zip(self.sums, numbers[begin : begin + len(self.sums)], strict=True))
            counted = dict(zip(self.counts, (total[at] for total in counts), strict=True))
            parts |= {name: int(x) << scale for name, x in counted.items() if not x.ndim}
            low_of, high_of = (dict(zip(self.spans, x, strict=True)) for x in (lows, highs))
            each.append(Totals(parts, low_of, high_of, scale, counted))
        return each


@dataclass(frozen=True)
class TotalsBy:
    """Totals by several keys, by the name of the key; they add with `+`."""

    parts: Mapping[str, ExactTotals] = field(default_factory=dict)

    def __add__(self, other: TotalsBy) -> TotalsBy:
        names = dict.fromkeys([*self.parts, *other.parts])
        return TotalsBy({name: self[name] + other[name] for name in names})

    def __getitem__(self, name: str) -> ExactTotals:
        return self.parts.get(name, ExactTotals())


def _by_key(columns: list[NDArray[Any]], keys: Integers, count: int, *, least: bool) -> Floats:
    """Return the minima or maxima by key of columns [n], [columns, count]."""
    out = np.full((len(columns), count), np.inf if least else -np.inf)
    for row, column in zip(out, columns, strict=True):
        (np.minimum if least else np.maximum).at(row, keys, column)
    return out


@dataclass(frozen=True)
class SummaryCells:
    """The cells of a summary: the pairs of a step and a domain that occur, by number."""

    steps: list[Label] = field(default_factory=list)
    """In step order."""
    domains: list[Label] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """The place of the step, and that of the domain, of each cell; ascending."""

    @cached_property
    def in_order(self) -> tuple[Integers, Integers]:
        """The cells in step order, by the name of the domain; and the place of each, [cells]."""
        places = [(step, str(self.domains[domain])) for step, domain in self.pairs]
        order = np.array(sorted(range(len(places)), key=places.__getitem__), np.int64)
        return order, np.argsort(order)

    @classmethod
    def of(
        cls, step: Integers, steps: list[Label], domain: Integers, domains: list[Label]
    ) -> tuple[SummaryCells, Integers]:
        """Return the cells of some responses, and the number of each one's cell, [N].

        Args:
            step: [N] places in `steps`.
            steps: labels.
            domain: [N] places in `domains`.
            domains: labels.
        """
        both = step if len(domains) == 1 else step * len(domains) + domain
        present, cell = dense_codes(both, len(steps) * len(domains))
        return cls(steps, domains, [divmod(code, len(domains)) for code in present.tolist()]), cell

    @classmethod
    def joined(
        cls,
        steps: list[Label],
        domains: list[Label],
        parts: Iterable[tuple[Sequence[Sequence[str]], ExactTotals]],
    ) -> tuple[SummaryCells, ExactTotals]:
        """Return the cells of several parts of an input, and their totals by these cells.

        Args:
            steps: of all parts, in order.
            domains: likewise.
            parts: the `names` of the cells that the totals of each have, and the totals.
        """
        step_of, domain_of = ({str(x): n for n, x in enumerate(y)} for y in (steps, domains))
        keyed = [([(step_of[s], domain_of[d]) for s, d in names], x) for names, x in parts]
        cells = cls(steps, domains, sorted({pair for pairs, _ in keyed for pair in pairs}))
        number, total = {pair: n for n, pair in enumerate(cells.pairs)}, ExactTotals()
        for pairs, totals in keyed:
            total += totals.rekeyed(np.array([number[pair] for pair in pairs], np.int64))
        return cells, total

    def names(self, cells: Iterable[int]) -> list[list[str]]:
        """Return the step and the domain of each of some cells."""
        pairs = (self.pairs[cell] for cell in cells)
        return [[str(self.steps[step]), str(self.domains[domain])] for step, domain in pairs]

    def by_label(
        self, column: Literal["step", "domain"], cells: Iterable[int]
    ) -> list[tuple[Label, list[int]]]:
        """Return the cells of each step, in step order, or of each domain, by name.

        Args:
            column: none has cells if the input lacks it.
            cells: those that occur.
        """
        labels, part = (self.steps, 0) if column == "step" else (self.domains, 1)
        if labels == ["all"]:
            return []
        own: dict[int, list[int]] = defaultdict(list)
        for cell in cells:
            own[self.pairs[cell][part]].append(cell)
        order = sorted(own, key=None if column == "step" else lambda place: str(labels[place]))
        return [(labels[place], own[place]) for place in order]
