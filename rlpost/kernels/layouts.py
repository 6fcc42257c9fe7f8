"""Layouts of a step: ranks, updates and micro-batches, and the weight that they give a token.

A trainer divides the responses of a step, in their order, among data-parallel ranks, those of a
rank into optimiser updates (mini-batches), and each update into micro-batches. A metric, or a loss,
is the mean of *units*: of micro-batches, of the ranks' parts of an update, of updates, or of the
one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rlpost.kernels.aggregate import OF_UNITS, denominator
from rlpost.kernels.codes import joint_codes, ordinals_of

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
    micro_tokens: int | None = None
    """Tokens of a micro-batch, in place of responses; a longer response is one of its own."""
    accumulate: int | None = None
    """Micro-batches of a rank in each update, in place of a number of updates."""

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
        options = {
            "micro_batch": self.micro,
            "micro_batch_tokens": self.micro_tokens,
            "accumulate": self.accumulate,
            "ranks": self.ranks if self.ranks > 1 else None,
            "updates": self.updates if self.updates > 1 else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def __str__(self) -> str:
        """Return the split in words."""
        parts = [] if self.micro is None else [f"micro-batches of {self.micro}"]
        if self.micro_tokens is not None:
            parts.append(f"micro-batches of {self.micro_tokens:,} tokens")
        if self.accumulate is not None:
            parts.append(f"{self.accumulate} per update")
        if self.updates > 1:
            parts.append(f"{self.updates} updates per step")
        if self.ranks > 1:
            dealt = "every rank-th response" if self.strided else "consecutive responses"
            parts.append(f"{self.ranks} ranks ({dealt})")
        return ", ".join(parts) or "the whole step at once"

    def parts(self, lengths: Indices) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield each rank's part of each update: the update, its responses, their micro-batches.

        Args:
            lengths: tokens of each response of the step.
        """
        rows = np.arange(len(lengths))
        ranks = np.array_split(rows, self.ranks)
        if self.strided:
            ranks = [rows[rank :: self.ranks] for rank in range(self.ranks)]
        for own in ranks:
            if self.accumulate is not None:
                micro = self._micro_batches(lengths[own])
                update = micro // self.accumulate
                for number in range(int(update[-1]) + 1 if len(own) else 0):
                    inside = update == number
                    yield number, own[inside], micro[inside] - number * self.accumulate
                continue
            for number, part in enumerate(np.array_split(own, self.updates)):
                if len(part):
                    yield number, part, self._micro_batches(lengths[part])

    def _micro_batches(self, lengths: Indices) -> Indices:
        """Return the micro-batch of consecutive responses, ascending from 0."""
        if self.micro_tokens is None:
            return np.arange(len(lengths)) // (self.micro or max(len(lengths), 1))
        ends, micro, first = lengths.cumsum(), np.zeros(len(lengths), np.int64), 0
        while first < len(lengths):
            most = ends[first] - lengths[first] + self.micro_tokens
            first = max(int(np.searchsorted(ends, most, "right")), first + 1)
            micro[first:] += 1
        return micro


class Units(NamedTuple):
    """The units of a step whose mean is a metric."""

    of: Indices
    """[n] the unit of each response."""
    weights: Numbers
    """[u] weights of the mean, whose sum is 1."""

    @classmethod
    def by(cls, split: Split, level: Level, lengths: Indices) -> Units:
        """Return the units of a step whose responses have these numbers of tokens."""
        units, weights = np.zeros(len(lengths), np.int64), list[float]()
        if level == "step":
            return cls(units, np.ones(1))
        parts = [*split.parts(lengths)]
        of_update = np.bincount([update for update, *_ in parts])
        if level == "update":
            for update, part, _ in parts:
                units[part] = update
            return cls(units, np.full(len(of_update), 1 / len(of_update)))
        for update, part, micro in parts:
            own = micro if level == "micro" else np.zeros_like(micro)
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


class StepLayout(NamedTuple):
    """How a trainer deals a step, and over what the denominators of its loss count."""

    split: Split = Split()
    level: Level = "micro"


class Dealt(NamedTuple):
    """The responses of several steps as a trainer deals them, in the order of the rows."""

    update: Indices
    """[N] the update of each response, over all steps."""
    unit: Indices
    """[N] the unit over which a denominator counts, over all steps."""
    micro: Indices
    """[N] the micro-batch of each response, over all steps."""
    scale: Numbers
    """[N] weight of the response's unit in the mean that makes up its update's gradient."""

    @classmethod
    def of(cls, layout: StepLayout, step: Indices, lengths: Indices) -> Dealt:
        """Return the responses of steps, each dealt in the order of its rows.

        Args:
            layout: of each step.
            step: [N] codes from 0.
            lengths: [N] tokens of each response.
        """
        codes: list[Indices] = [np.zeros_like(step) for _ in range(3)]
        levels: tuple[Level, ...] = ("update", layout.level, "micro")
        scale, counts = np.zeros(len(step)), [0, 0, 0]
        order = np.argsort(step, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(step[order])) + 1):
            if not len(rows):
                break
            units = [Units.by(layout.split, level, lengths[rows]) for level in levels]
            for index, own in enumerate(units):
                codes[index][rows] = counts[index] + own.of
                counts[index] += len(own.weights)
            scale[rows] = units[1].weights[units[1].of] * len(units[0].weights)
        update, unit, micro = codes
        return cls(update, unit, micro, scale)


def weights_in(
    unit: Indices,
    tokens: Indices,
    *,
    how: str,
    responses: Indices,
    lengths: Indices,
    group: Indices | None = None,
    count_rows: str = "valid",
    norm: str = "length",
    length: int | None = None,
) -> Numbers:
    """Return the weight of a token of each response in the loss of its unit, [N] float64.

    The loss of a unit is Σ weight · loss over its tokens; see `aggregate.denominator`. A response
    without tokens has the weight 0.

    Args:
        unit: [N] codes from 0, such as those of micro-batches.
        tokens: [N] policy tokens; with token-mean-by-sign those of a sign.
        how: the aggregation.
        responses: [N] policy tokens of either sign.
        lengths: [N] tokens, observation tokens included.
        group: [N] the prompt or rollout of each response, for a mean over these.
        count_rows: as of `denominator`.
        norm: likewise.
        length: likewise.
    """
    if not len(unit):
        return np.zeros(0)
    counted, first = responses, np.ones(len(unit), np.bool_)
    if how in OF_UNITS and group is not None:
        of = joint_codes(unit, group)
        counted = np.bincount(of, responses)[of].astype(np.int64)
        first = ordinals_of(of) == 0
    longest = np.zeros(int(unit.max()) + 1, np.int64)
    np.maximum.at(longest, unit, lengths)
    totals = (np.bincount(unit, x).astype(np.int64) for x in (tokens, first & (counted > 0), first))
    sums = dict(zip(("tokens", "valid", "rows"), totals, strict=True))
    below = denominator(
        how=how, **sums, longest=longest, count_rows=count_rows, norm=norm, length=length
    )
    own = counted.clip(1) if how == "seq-mean-token-mean" or how in OF_UNITS else 1
    return np.where(tokens > 0, 1 / (own * below.clip(1)[unit]), 0.0)


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
        units = tuple(Units.by(split, level, np.ones(count, np.int64)) for count in counts)
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
