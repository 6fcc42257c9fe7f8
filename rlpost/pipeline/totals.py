"""Exact sums, minima and maxima of named numbers, by key, which add up in any order.

Totals by step and domain, by name: what tallies of different inputs have in common.

`ExactTotals` counts by code: codes are those of one table of responses. `TotalsByStep` counts by
the names of step and domain, so that totals of several tables add up, still exactly. It has only
the steps and domains that occur, and can be written as JSON.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor

from rlpost.kernels.moments import (
    DIGITS,
    add_digits,
    exact_digits,
    fractions_of,
    keyed_extremes,
    zero_digits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


SPREADS = ("count", "total", "squares")


@dataclass(frozen=True)
class Totals:
    """Sums (exact), minima and maxima of a set of rows."""

    sums: dict[str, Fraction]
    lows: dict[str, float]
    highs: dict[str, float]

    def __contains__(self, name: object) -> bool:
        return name in self.sums or f"{name}.count" in self.sums

    def count(self, name: str) -> int:
        """A sum of whole numbers."""
        return int(self.sums.get(name, 0))

    def total(self, name: str) -> Fraction:
        """Return a sum; 0 if nothing was added."""
        return self.sums.get(name, Fraction(0))

    def share(self, part: str, whole: str) -> float:
        """One sum over another, 0 where the latter is 0."""
        base = self.sums.get(whole, Fraction(0))
        return float(self.sums.get(part, Fraction(0)) / base) if base else 0.0

    def statistic(self, name: str) -> dict[str, float | None]:
        """Mean, Bessel standard deviation, min and max; all None where there is no number."""
        count, total, squares = (self.sums.get(f"{name}.{part}", Fraction(0)) for part in SPREADS)
        if not count:
            return {"mean": None, "std": None, "min": None, "max": None}
        mean = total / count
        # `squares` is the sum of x², kept exactly, so nothing cancels before it is rounded
        variance = max((squares - total * mean) / (count - 1), Fraction(0)) if count > 1 else 0
        return {
            "mean": float(mean),
            "std": float(variance) ** 0.5,
            "min": self.lows[name] + 0.0,  # -0 and 0 are equal, and which came first is chance
            "max": self.highs[name] + 0.0,
        }


@dataclass(frozen=True)
class Block:
    """The numbers of the keys that occur in some rows."""

    keys: Tensor
    """[k] int64, ascending."""
    digits: Tensor
    """[sums, k, digits], from `exact_digits`."""
    lows: Tensor
    """[spans, k] float64."""
    highs: Tensor
    counts: tuple[Tensor, ...] = ()
    """[k, ...] int64 each: what else is counted."""

    def __add__(self, other: Block) -> Block:
        keys = _distinct(torch.cat([self.keys, other.keys]))[0]
        mine, its = torch.searchsorted(keys, self.keys), torch.searchsorted(keys, other.keys)
        sums, spans = len(self.digits), len(self.lows)
        joined = Block(
            keys,
            zero_digits(sums * len(keys)).view(sums, len(keys), DIGITS),
            torch.full((spans, len(keys)), torch.inf, dtype=torch.float64),
            torch.full((spans, len(keys)), -torch.inf, dtype=torch.float64),
            tuple(one.new_zeros(len(keys), *one.shape[1:]) for one in self.counts),
        )
        joined.digits[:, mine], joined.lows[:, mine] = self.digits, self.lows
        joined.highs[:, mine] = self.highs
        joined.digits[:, its] = add_digits(joined.digits[:, its], other.digits)
        joined.lows[:, its] = joined.lows[:, its].minimum(other.lows)
        joined.highs[:, its] = joined.highs[:, its].maximum(other.highs)
        for all_of, own, more in zip(joined.counts, self.counts, other.counts, strict=True):
            all_of[mine] = own
            all_of[its] += more
        return joined


@dataclass(frozen=True)
class ExactTotals:
    """Exact sums, minima and maxima of named numbers, by key.

    Tallies of the same names add with `+`, in any order, to the same bits. Only keys that occur
    take room, and time to add: a piece of a file has rows of few of its steps.
    """

    sums: tuple[str, ...] = ()
    """Names of what is added up."""
    spans: tuple[str, ...] = ()
    """Names of what has a lowest and a highest value."""
    blocks: tuple[Block, ...] = ()
    """What `+` has not joined yet: each has more than twice as many keys as the next."""

    @classmethod
    def of(
        cls,
        keys: Tensor,
        sums: Mapping[str, Tensor],
        spans: Mapping[str, tuple[Tensor, Tensor]],
        counts: tuple[Tensor, ...] = (),
    ) -> ExactTotals:
        """The tally of some rows.

        Args:
            keys: [n] the key of each row.
            sums: numbers to add up, [n] each.
            spans: lowest and highest, [n] each, of what makes up a row.
            counts: whole numbers of any shape by key, [k, ...] each, for the k keys that occur.
        """
        found, place = _distinct(keys.cpu())
        count = len(found)
        stacked = torch.stack([value.to("cpu", torch.float64) for value in sums.values()])
        places = torch.arange(len(sums))[:, None] * count + place
        digits = exact_digits(stacked.view(-1), places.view(-1), len(sums) * count)
        extremes = torch.empty(2, len(spans), count, dtype=torch.float64)
        for row, (low, high) in enumerate(spans.values()):
            extremes[0, row] = keyed_extremes(low.to("cpu", torch.float64), place, count)[0]
            extremes[1, row] = keyed_extremes(high.to("cpu", torch.float64), place, count)[1]
        block = Block(
            found, digits.view(len(sums), count, DIGITS), extremes[0], extremes[1], counts
        )
        return cls(tuple(sums), tuple(spans), (block,))

    def __add__(self, other: ExactTotals) -> ExactTotals:
        blocks = [*self.blocks]
        for block in other.blocks:
            blocks.append(block)
            while len(blocks) > 1 and len(blocks[-2].keys) <= 2 * len(blocks[-1].keys):
                blocks[-2:] = [blocks[-2] + blocks[-1]]
        first = self if self.blocks else other
        return ExactTotals(first.sums, first.spans, tuple(blocks))

    def __bool__(self) -> bool:
        return bool(self.blocks)

    @cached_property
    def joined(self) -> Block:
        """All there is, in one; only of a tally of some rows."""
        return reduce(Block.__add__, reversed(self.blocks))

    def compact(self) -> ExactTotals:
        """The same in one block, to ask for many totals."""
        return ExactTotals(self.sums, self.spans, (self.joined,)) if self else self

    @property
    def keys(self) -> list[int]:
        """The keys that occur, ascending."""
        return self.joined.keys.tolist() if self else []

    def total(self) -> Totals:
        """The totals over all keys."""
        return self.over(self.keys)

    def over(self, chosen: Sequence[int]) -> Totals:
        """The totals over some keys; those that do not occur add nothing."""
        if not self:
            return Totals({}, {}, {})
        block, own = self.joined, self._places(chosen)
        none = torch.full((len(self.spans), 1), torch.inf, dtype=torch.float64)
        lows = torch.cat([none, block.lows[:, own]], 1).amin(1)
        highs = torch.cat([-none, block.highs[:, own]], 1).amax(1)
        return Totals(
            dict(zip(self.sums, fractions_of(block.digits[:, own].sum(1)), strict=True)),
            dict(zip(self.spans, lows.tolist(), strict=True)),
            dict(zip(self.spans, highs.tolist(), strict=True)),
        )

    def counted(self, chosen: Sequence[int]) -> list[Tensor]:
        """What else was counted, over some keys; only of a tally of some rows."""
        own = self._places(chosen)
        return [one[own].sum(0) for one in self.joined.counts]

    def digits(self, name: str, count: int) -> Tensor:
        """A sum of each key in [0, count), [count, digits]: 0 for those that do not occur."""
        found = zero_digits(count)
        found[self.joined.keys] = self.joined.digits[self.sums.index(name)]
        return found

    def highest(self, name: str, count: int) -> Tensor:
        """A maximum of each key in [0, count), [count]: -inf for those that do not occur."""
        found = torch.full((count,), -torch.inf, dtype=torch.float64)
        found[self.joined.keys] = self.joined.highs[self.spans.index(name)]
        return found

    def _places(self, chosen: Sequence[int]) -> Tensor:
        """Where those of some keys that occur are."""
        wanted = torch.tensor(chosen, dtype=torch.int64)
        return torch.isin(self.joined.keys, wanted).nonzero().squeeze(1)


def _distinct(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The keys that occur, ascending, and the place of each among them."""
    found: tuple[Tensor, Tensor] = torch.unique(keys, return_inverse=True)
    return found


Json = dict[str, Any]
Label = str | int


class Tallied(Protocol):
    """What was counted, by cell: a pair of step and domain that occurs."""

    @property
    def keys(self) -> list[int]:
        """The cells that were counted, ascending."""

    def total(self) -> Totals:
        """The totals over all cells."""

    def over(self, chosen: Sequence[int]) -> Totals:
        """The totals over some cells."""


@dataclass
class TotalsByStep:
    """Totals of each step and domain that occurs; ledgers add with `+=`."""

    cells: dict[tuple[str, str], Totals] = field(default_factory=dict)

    @classmethod
    def of(cls, tally: ExactTotals, labels: Mapping[str, list[Label]]) -> TotalsByStep:
        """The same totals under the names of steps and domains.

        Args:
            tally: by cell.
            labels: what the codes of `step`, `domain` and `cell` stand for.
        """
        steps, domains = labels["step"], labels["domain"]
        found = {}
        for place in tally.keys:
            step, domain = divmod(int(labels["cell"][place]), len(domains))
            found[str(steps[step]), str(domains[domain])] = tally.over([place])
        return cls(found)

    def __iadd__(self, other: TotalsByStep) -> Self:
        for name, totals in other.cells.items():
            self.cells[name] = joined([self.cells[name], totals]) if name in self.cells else totals
        return self

    def arranged(self, steps: Sequence[Label], domains: Sequence[Label]) -> Arranged:
        """The ledger with codes for cells: those of these steps and domains, in this order."""
        at_step = {str(label): code for code, label in enumerate(steps)}
        at_domain = {str(label): code for code, label in enumerate(domains)}
        codes = {
            at_step[step] * len(domains) + at_domain[domain]: totals
            for (step, domain), totals in self.cells.items()
        }
        return Arranged(dict(sorted(codes.items())))

    def to_json(self) -> list[Json]:
        """The same as plain data."""
        return [
            {
                "cell": list(name),
                "sums": {key: str(value) for key, value in totals.sums.items()},
                "lows": totals.lows,
                "highs": totals.highs,
            }
            for name, totals in self.cells.items()
        ]

    @classmethod
    def from_json(cls, cells: Sequence[Json]) -> TotalsByStep:
        """A ledger from what `to_json` made of it."""
        return cls(
            {
                (cell["cell"][0], cell["cell"][1]): Totals(
                    {key: Fraction(value) for key, value in cell["sums"].items()},
                    cell["lows"],
                    cell["highs"],
                )
                for cell in cells
            }
        )


@dataclass(frozen=True)
class Arranged:
    """Totals by code of the cell, ascending."""

    cells: dict[int, Totals]

    @property
    def keys(self) -> list[int]:
        """The cells, by their place."""
        return [*range(len(self.cells))]

    def total(self) -> Totals:
        """The totals over all cells."""
        return joined([*self.cells.values()])

    def over(self, chosen: Sequence[int]) -> Totals:
        """The totals over some cells, by their place."""
        every = list(self.cells.values())
        return joined([every[place] for place in chosen])


def cells_of(
    labels: Mapping[str, list[Label]], cells: Sequence[int], column: str
) -> list[tuple[Label, list[int]]]:
    """The cells of each step, in order, or of each domain, by name.

    Args:
        labels: what the codes of `step`, `domain` and `cell` stand for.
        cells: those that were counted; of many steps a file has few.
        column: `step` or `domain`.
    """
    names, domains = labels[column], len(labels["domain"])
    found: dict[int, list[int]] = defaultdict(list)
    for cell in cells:
        step, domain = divmod(int(labels["cell"][cell]), domains)
        found[step if column == "step" else domain].append(cell)
    order = sorted(found, key=None if column == "step" else lambda code: str(names[code]))
    return [(names[code], found[code]) for code in order]


def joined(parts: Sequence[Totals]) -> Totals:
    """The totals over several sets of rows."""
    if not parts:
        return Totals({}, {}, {})
    return reduce(_joined, parts)


def _joined(left: Totals, right: Totals) -> Totals:
    return Totals(
        {name: value + right.sums[name] for name, value in left.sums.items()},
        {name: min(value, right.lows[name]) for name, value in left.lows.items()},
        {name: max(value, right.highs[name]) for name, value in left.highs.items()},
    )
