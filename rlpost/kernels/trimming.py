"""The values of each batch at or above a quantile, exact.

The quantile 1 - share of n values is between two of them if (1 - share)·(n - 1) is no whole number,
so that the smallest value kept is the one of rank ⌈(1 - share)·(n - 1)⌉, from 0. Equal values are
kept together. A share is the decimal number that it is written as: 0.2 is 1/5.

Values are compared as float32, whose bits order them. A first pass counts the leading 16 bits of
each value, and a second one the trailing bits in the bin in which the cut is. Counts add exactly,
so that nothing depends on chunks or on order, and each batch needs at most 2^16 of them. They are
made on the host: a device computes the codes of a chunk's tokens, which are copied to the host
once, as any numbers that a stage maps, and gets one cut per batch.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, like, namespace, on_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.kernels.moments import Integers

LEADING = 16
"""Trailing bits, which the keys of the first pass lack."""
_PART = (1 << LEADING) - 1
_LARGEST = float(np.finfo(np.float32).max)
NONE = -1
"""The code of a token that does not compete."""


def leading_codes(values: Array, batch: Array, competes: Array) -> Array:
    """Return batch, leading and trailing bits of each value in one number, [T] int64.

    Args:
        values: [T], 0 or above; infinite ones count as the largest float32.
        batch: [T] codes.
        competes: [T] bool; the others have the code NONE.
    """
    xp = namespace(values)
    return xp.where(competes, (batch << 32) | _bits(values), NONE)


def trailing_codes(values: Array, batch: Array, competes: Array, bins: Array) -> Array:
    """Return the same codes of the values whose leading bits are the bin of their batch, [batches].

    The other tokens have the code NONE.
    """
    inside = competes & ((_bits(values) >> LEADING) == bins[batch])
    return leading_codes(values, batch, inside)


def _bits(values: Array) -> Array:
    """Return the bits of float32 of each value, [T] int64, in the order of the values."""
    xp = namespace(values)
    single = xp.astype(values.clip(0.0, _LARGEST), xp.float32)
    return xp.astype(xp.reinterpreted(single, xp.int32), xp.int64)


class Tally(NamedTuple):
    """Counts of codes by their leading numbers, [K] int64 each, ascending by key."""

    key: Integers
    number: Integers

    @classmethod
    def empty(cls) -> Tally:
        """Return the counts of no codes."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def plus(self, codes: Integers, dropped: int) -> Tally:
        """Return the counts with more codes; the key lacks `dropped` bits."""
        present = codes[codes != NONE]
        key = np.concatenate([self.key, present >> dropped])
        count = np.concatenate([self.number, np.ones_like(present)])
        keys, inverse = np.unique(key, return_inverse=True)
        counts = np.zeros_like(keys)
        np.add.at(counts, inverse, count)
        return Tally(keys, counts)

    def batches(self, shift: int) -> Iterator[tuple[int, Integers, Integers]]:
        """Yield each batch with its keys and counts; a key without `shift` bits is the batch."""
        edges = np.flatnonzero(np.diff(self.key >> shift, prepend=-1, append=-1))
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            yield int(self.key[start]) >> shift, self.key[start:end], self.number[start:end]


class Boundary(NamedTuple):
    """The bin of each batch in which the cut is, [batches] each."""

    bins: Integers
    """Leading bits; NONE for a batch without values."""
    rank: Integers
    """That of the cut among the values of the bin."""


def boundary(tally: Tally, batches: int, share: float) -> Boundary:
    """Return the bins from all `leading_codes` without LEADING bits.

    Args:
        tally: of these codes.
        batches: their number.
        share: of the values, above 0, at most 1.
    """
    bins, ranks = np.full(batches, NONE), np.zeros(batches, np.int64)
    for batch, keys, numbers in tally.batches(32 - LEADING):
        rank = ceil((1 - Fraction(str(share))) * (int(numbers.sum()) - 1))
        ends = np.cumsum(numbers)
        place = int(np.searchsorted(ends, rank, side="right"))
        bins[batch], ranks[batch] = keys[place] & _PART, rank - (ends[place] - numbers[place])
    return Boundary(bins, ranks)


def cuts(tally: Tally, boundary: Boundary) -> Integers:
    """Return the bits of the smallest value of each batch that is kept, [batches] int64.

    Args:
        tally: of all `trailing_codes`, whole.
        boundary: from `boundary`.
    """
    bits = np.zeros(len(boundary.bins), np.int64)
    for batch, keys, numbers in tally.batches(32):
        place = np.searchsorted(np.cumsum(numbers), boundary.rank[batch], side="right")
        bits[batch] = keys[place] & ((1 << 32) - 1)
    return bits


def at_least(values: Array, batch: Array, cuts: Array) -> Array:
    """Return the tokens whose value is at least the cut of their batch, [T] bool."""
    return _bits(values) >= cuts[batch]


def top_share(values: Array, competes: Array, share: float) -> Array:
    """Return the tokens that are kept if all are one batch, [T] bool; waits for a device."""
    xp = namespace(values)
    batch = xp.astype(xp.zeros_like(competes), xp.int64)
    codes = on_host(leading_codes(values, batch, competes))
    edge = boundary(Tally.empty().plus(codes, LEADING), 1, share)
    codes = on_host(trailing_codes(values, batch, competes, like(edge.bins, values)))
    return at_least(values, batch, like(cuts(Tally.empty().plus(codes, 0), edge), values))
