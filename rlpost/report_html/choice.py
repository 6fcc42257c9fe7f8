"""Which responses the page shows: the best, the worst, the most different, some at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.browse.index import Index
    from rlpost.inspect.model import Facts

BEST, WORST, DIFFERENT, RANDOM, FOUND = (
    "highest reward", "lowest reward", "most different group", "random", "of a finding",
)  # fmt: skip
"""Highest and lowest are of the whole input, not of a response's group."""
WHYS = (BEST, WORST, DIFFERENT, RANDOM, FOUND)
_OF_DIFFERENT = 4  # shown responses of a group whose rewards differ most
_EVIDENCE = 2  # shown rows of each finding
_MOST_FOUND = 12


@dataclass
class Choice:
    """Rows that are shown and why, and the groups that they are of."""

    whys: dict[int, list[str]] = field(default_factory=dict)
    """By row, in the order of choosing."""
    different: list[int] = field(default_factory=list)
    """Codes of the groups whose rewards differ most."""

    def add(self, rows: NDArray[np.int64] | list[int], why: str) -> None:
        """Show these rows."""
        for row in rows:
            reasons = self.whys.setdefault(int(row), [])
            if why not in reasons:
                reasons.append(why)


class Groups:
    """The rows of each group, in the input's order; groups by code, as in the index."""

    def __init__(self, index: Index) -> None:
        self._order = np.argsort(index.group, kind="stable")
        self.count = int(index.group.max(initial=-1)) + 1
        sizes = np.bincount(index.group, minlength=self.count)
        self._starts = np.concatenate([[0], sizes.cumsum()])

    def rows(self, code: int) -> NDArray[np.int64]:
        """The rows of a group."""
        return self._order[self._starts[code] : self._starts[code + 1]]


def chosen(index: Index, groups: Groups, facts: Facts, count: int, seed: int) -> Choice:
    """The rows to show.

    Among responses of one reward, chance decides; it is the same for the same seed and input.

    Args:
        index: of the input.
        groups: its groups.
        facts: whose findings' evidence is shown too.
        count: responses each of the best, worst and random ones; half as many groups.
        seed: of the chance.
    """
    choice = Choice()
    chance = np.random.default_rng(seed).permutation(len(index))
    known = chance[np.isfinite(index.reward[chance])]
    ranked = known[np.argsort(index.reward[known], kind="stable")]
    if len(ranked) and index.reward[ranked[0]] < index.reward[ranked[-1]]:
        choice.add(ranked[::-1][:count], BEST)
        choice.add(ranked[:count], WORST)
    choice.different = _most_different(index, groups, max(1, count // 2))
    for code in choice.different:
        rows = groups.rows(code)
        rows = rows[np.isfinite(index.reward[rows])]
        rows = rows[np.argsort(-index.reward[rows], kind="stable")]
        half = _OF_DIFFERENT // 2
        choice.add(rows if len(rows) <= _OF_DIFFERENT else [*rows[:half], *rows[-half:]], DIFFERENT)
    choice.add(chance[:count], RANDOM)
    choice.add(_evidence(index, facts), FOUND)
    return choice


def _most_different(index: Index, groups: Groups, count: int) -> list[int]:
    """The groups whose rewards deviate most from their mean, the most first."""
    valid = np.isfinite(index.reward)
    codes, rewards = index.group[valid], index.reward[valid]
    sizes = np.bincount(codes, minlength=groups.count)
    several = np.maximum(sizes, 1)
    means = np.bincount(codes, rewards, groups.count) / several
    squares = np.bincount(codes, (rewards - means[codes]) ** 2, groups.count) / several
    order = np.lexsort((np.arange(groups.count), -sizes, -squares))[:count]
    return [int(code) for code in order if squares[code] > 0]


def evidence_rows(index: Index, facts: Facts) -> list[list[int | None]]:
    """The row of each evidence of each finding, counted over all files; None where it has none."""
    firsts = {
        str(file.path): first
        for file, first in zip(index.source.files, index.source.first_rows, strict=False)
    }
    return [
        [
            None if one.row is None or one.file not in firsts else firsts[one.file] + one.row
            for one in finding.evidence
        ]
        for finding in facts.findings
    ]


def _evidence(index: Index, facts: Facts) -> list[int]:
    shown = [
        row for rows in evidence_rows(index, facts) for row in rows[:_EVIDENCE] if row is not None
    ]
    return shown[:_MOST_FOUND]
