"""Splits of a step: ranks, updates and micro-batches, and the means that a trainer takes of them.

A trainer divides the responses of a step, in their order, among data-parallel ranks, divides those
of a rank into optimiser updates (mini-batches), and each update into micro-batches. A metric is the
mean of *units*: of micro-batches, of the ranks' parts of an update, of updates, or of the one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Indices = NDArray[np.int64]

Level = Literal["step", "update", "rank", "micro"]
LEVELS: tuple[Level, ...] = ("step", "update", "rank", "micro")
MOST_RANKS = 64
MOST_UPDATES = 16
ABOUT_LEVELS = {
    "step": "over the whole step",
    "update": "mean of the updates",
    "rank": "mean of the ranks",
    "micro": "mean of the micro-batches",
}


@dataclass(frozen=True)
class Split:
    """How the responses of a step are divided."""

    ranks: int = 1
    updates: int = 1
    """Optimiser updates, each with as many responses of each rank."""
    micro: int | None = None
    """Responses of a micro-batch; None: a rank's part of an update is one."""
    strided: bool = False
    """Rank r has the responses r, r + ranks, ...; otherwise consecutive ones."""

    @property
    def cost(self) -> int:
        """How much there is to describe."""
        return (
            2 * (self.ranks > 1) + 2 * (self.updates > 1) + 2 * (self.micro is not None)
            + self.strided
        )  # fmt: skip

    @property
    def fields(self) -> dict[str, int]:
        """The options that are not the default."""
        fields = {} if self.micro is None else {"micro_batch": self.micro}
        fields |= {} if self.ranks == 1 else {"ranks": self.ranks}
        return fields | ({} if self.updates == 1 else {"updates": self.updates})

    def __str__(self) -> str:
        """Return the split in words."""
        parts = [] if self.micro is None else [f"micro-batches of {self.micro}"]
        if self.updates > 1:
            parts.append(f"{self.updates} updates per step")
        if self.ranks > 1:
            dealt = "every rank-th response" if self.strided else "consecutive responses"
            parts.append(f"{self.ranks} ranks ({dealt})")
        return ", ".join(parts) or "the whole step at once"

    def parts(self, count: int) -> Iterator[tuple[int, Indices]]:
        """Yield the update and the responses of each rank's part of each update."""
        rows = np.arange(count)
        ranks = np.array_split(rows, self.ranks)
        if self.strided:
            ranks = [rows[rank :: self.ranks] for rank in range(self.ranks)]
        for own in ranks:
            for update, part in enumerate(np.array_split(own, self.updates)):
                if len(part):
                    yield update, part


class Units(NamedTuple):
    """The units of a step whose mean is a metric."""

    of: Indices
    """[n] the unit of each response."""
    weights: Numbers
    """[u] weights of the mean, whose sum is 1."""

    @classmethod
    def by(cls, split: Split, level: Level, count: int) -> Units:
        """Return the units of a step of `count` responses."""
        units, weights = np.zeros(count, np.int64), list[float]()
        if level == "step":
            return cls(units, np.ones(1))
        parts = [*split.parts(count)]
        of_update = np.bincount([update for update, _ in parts])
        if level == "update":
            for update, part in parts:
                units[part] = update
            return cls(units, np.full(len(of_update), 1 / len(of_update)))
        for update, part in parts:
            size = len(part) if level == "rank" or split.micro is None else split.micro
            own = np.arange(len(part)) // size
            units[part] = len(weights) + own
            share = 1 / (len(of_update) * of_update[update] * (own[-1] + 1))
            weights += [share] * int(own[-1] + 1)
        return cls(units, np.array(weights))

    def signature(self) -> bytes:
        """Return what two splits have in common if they have the same units."""
        first = np.full(len(self.weights), len(self.of))
        np.minimum.at(first, self.of, np.arange(len(self.of)))
        weights = np.round(self.weights, 12)[self.of]
        return blake2b(first[self.of].tobytes() + weights.tobytes(), digest_size=16).digest()


class UnitMeans(NamedTuple):
    """Units of all steps, and the splits that have them."""

    units: tuple[Units, ...]
    """One for each step."""
    splits: tuple[tuple[Split, Level], ...]
    """The simplest first; there are several if the data cannot separate them."""


def all_splits(
    counts: Sequence[int],
    *,
    micro_batch: int | None = None,
    ranks: int | None = None,
    updates: int | None = None,
) -> list[Split]:
    """Return the splits of steps with these numbers of responses, the simplest first.

    Args:
        counts: responses of each step.
        micro_batch: the responses of a micro-batch; None: searched for.
        ranks: the data-parallel ranks; None: searched for.
        updates: the updates of a step; None: searched for.
    """
    least = min(counts)
    of_ranks = [ranks] if ranks else _sizes(min(least, MOST_RANKS), least)
    of_updates = [updates] if updates else _sizes(min(least, MOST_UPDATES), least)
    splits = []
    for one, many in product(of_ranks, of_updates):
        most = -(-max(counts) // (one * many))
        if one * many > least:
            continue
        sizes: list[int | None] = [micro_batch] if micro_batch else [None, *_sizes(most - 1, most)]
        for size, strided in product(sizes, (False, True) if one > 1 else (False,)):
            splits.append(Split(one, many, size, strided))
    return sorted(splits, key=lambda one: (one.cost, one.ranks, one.updates, one.micro or 0))


def _sizes(most: int, whole: int) -> list[int]:
    """Return powers of two and divisors of a number up to a bound, ascending."""
    powers = {1 << power for power in range(max(most, 1).bit_length()) if 1 << power <= most}
    divisors = {one for one in range(1, min(most, MOST_RANKS) + 1) if whole % one == 0}
    return sorted(powers | divisors | ({1} if most >= 1 else set()))


def all_means(splits: Sequence[Split], counts: Sequence[int]) -> list[UnitMeans]:
    """Return the different units of some splits, the simplest first."""
    found: dict[tuple[bytes, ...], tuple[tuple[Units, ...], list[tuple[Split, Level]]]] = {}
    for split, level in _levels(splits):
        units = tuple(Units.by(split, level, count) for count in counts)
        key = tuple(one.signature() for one in units)
        found.setdefault(key, (units, []))[1].append((split, level))
    return [UnitMeans(units, tuple(names)) for units, names in found.values()]


def _levels(splits: Sequence[Split]) -> Iterator[tuple[Split, Level]]:
    """Yield splits with the levels that differ from simpler ones."""
    for split in splits:
        yield split, "step"
        if split.updates > 1:
            yield split, "update"
        if split.ranks > 1:
            yield split, "rank"
        if split.micro is not None:
            yield split, "micro"
