"""Totals by step and domain, by name: what tallies of different inputs have in common.

A `Tally` counts by code, and codes are those of one table of responses. A `Ledger` counts by the
names of step and domain, so ledgers of parts that never saw each other add up, still exactly. It
holds what occurs and nothing else, and can be written as JSON.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol, Self

from rlpost.tally import Totals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.tally import Tally

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
class Ledger:
    """Totals of each step and domain that occurs; ledgers add with `+=`."""

    cells: dict[tuple[str, str], Totals] = field(default_factory=dict)

    @classmethod
    def of(cls, tally: Tally, labels: Mapping[str, list[Label]]) -> Ledger:
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

    def __iadd__(self, other: Ledger) -> Self:
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
    def from_json(cls, cells: Sequence[Json]) -> Ledger:
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
