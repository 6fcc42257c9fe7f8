"""Order statistics of the tokens of each batch, exact: which tokens a rule keeps.

`MeanBelow` keeps the smallest values, as many as have a mean below a bound; `TopShare` keeps a
share of the largest. Values are compared as float32, whose bits order them. A first pass counts the
leading 16 bits of each value, and sums the others, which are whole numbers: so the mean of all
values up to any of these bins is exact. A second pass counts the trailing bits in the bin in which
the cut is. Counts add exactly, so that nothing depends on chunks or on order, and each batch needs
at most 2^16 of them. They are made on the host: a device computes the codes of a chunk's tokens,
which are copied to the host once, as any numbers that a stage maps, and gets one cut per batch.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, like, namespace, on_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rlpost.kernels.moments import Integers

LEADING = 16
"""Trailing bits, which the keys of the first pass lack."""
_PART = (1 << LEADING) - 1
_MANTISSA = 23  # of float32
_UNIT = 149  # float32 are whole numbers of 2^-149
_LARGEST = float(np.finfo(np.float32).max)
_WORDS = 10  # of 32 bits, for the sum of 2^40 float32
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


def kept_of(values: Array, competes: Array, rule: Rule) -> Array:
    """Return the tokens that a rule keeps if all are one batch, [T] bool; waits for a device."""
    xp = namespace(values)
    batch = xp.astype(xp.zeros_like(competes), xp.int64)
    codes = on_host(leading_codes(values, batch, competes))
    boundary = rule.boundary(Tally.empty().plus(codes, LEADING), 1)
    codes = on_host(trailing_codes(values, batch, competes, like(boundary.bins, values)))
    cuts = rule.cuts(Tally.empty().plus(codes, 0), boundary)
    return rule.keeps(values, batch, like(cuts, values))


def _bits(values: Array) -> Array:
    """Return the bits of float32 of each value, [T] int64, in the order of the values."""
    xp = namespace(values)
    single = xp.astype(values.clip(0.0, _LARGEST), xp.float32)
    return xp.astype(xp.reinterpreted(single, xp.int32), xp.int64)


class Tally(NamedTuple):
    """Counts of codes by their leading numbers, [K] int64 each, ascending by key."""

    key: Integers
    number: Integers
    rest: Integers
    """Sum of the trailing bits that the key lacks."""

    @classmethod
    def empty(cls) -> Tally:
        """Return the counts of no codes."""
        return cls(*(np.zeros(0, np.int64) for _ in cls._fields))

    def plus(self, codes: Integers, dropped: int) -> Tally:
        """Return the counts with more codes; the key lacks `dropped` bits."""
        present = codes[codes != NONE]
        key = np.concatenate([self.key, present >> dropped])
        count = np.concatenate([self.number, np.ones_like(present)])
        rest = np.concatenate([self.rest, present & ((1 << dropped) - 1)])
        keys, inverse = np.unique(key, return_inverse=True)
        counts, rests = np.zeros_like(keys), np.zeros_like(keys)
        np.add.at(counts, inverse, count)
        np.add.at(rests, inverse, rest)
        return Tally(keys, counts, rests)

    def batches(self, shift: int) -> Iterator[tuple[int, Iterable[tuple[int, int, int]]]]:
        """Yield each batch with its entries; a key without `shift` bits is the batch."""
        edges = np.flatnonzero(np.diff(self.key >> shift, prepend=-1, append=-1))
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            own = (column[start:end].tolist() for column in self)
            yield int(self.key[start]) >> shift, zip(*own, strict=True)


class Boundary(NamedTuple):
    """The bin of each batch in which the cut is."""

    bins: Integers
    """[batches] leading bits; NONE if all values of the batch are kept."""
    below: Integers
    """[batches, 11] of a MeanBelow: number of the values below the bin, and words of their sum in
    2^-149; of a TopShare: the rank of the cut among the values of the bin, then zeros."""

    @classmethod
    def empty(cls, batches: int) -> Boundary:
        """Return that of batches that keep all."""
        return cls(np.full(batches, NONE), np.zeros((batches, 1 + _WORDS), np.int64))


class MeanBelow(NamedTuple):
    """Keeps the smallest values of a batch, as many as have a mean below a bound.

    The smallest is kept in any case. Equal values are kept together, or not at all.
    """

    bound: float
    """Above 0."""

    def boundary(self, tally: Tally, batches: int) -> Boundary:
        """Return the bins from all `leading_codes` without LEADING bits; sums are exact."""
        bins, below = Boundary.empty(batches)
        for batch, entries in tally.batches(32 - LEADING):
            number = total = 0
            for key, count, rest in entries:
                own = _sum(key & _PART, count, rest)
                if not _is_below(total + own, number + count, self.bound):
                    words = [total >> 32 * word & 0xFFFFFFFF for word in range(_WORDS)]
                    bins[batch], below[batch] = key & _PART, [number, *words]
                    break
                number, total = number + count, total + own
        return Boundary(bins, below)

    def cuts(self, tally: Tally, boundary: Boundary) -> Integers:
        """Return the bits of the largest value of each batch that is kept, [batches] int64.

        Args:
            tally: of all `trailing_codes`, whole.
            boundary: from `boundary`.
        """
        cuts = np.full(len(boundary.bins), np.iinfo(np.int64).max)
        for batch, entries in tally.batches(32):
            number, *words = boundary.below[batch].tolist()
            total = sum(word << 32 * index for index, word in enumerate(words))
            cuts[batch] = (int(boundary.bins[batch]) << LEADING) - 1
            for key, count, _ in entries:
                bits = key & ((1 << 32) - 1)
                own = _sum(bits >> LEADING, count, count * (bits & _PART))
                if number and not _is_below(total + own, number + count, self.bound):
                    break
                number, total, cuts[batch] = number + count, total + own, bits
                if not _is_below(total, number, self.bound):
                    break
        return cuts

    def keeps(self, values: Array, batch: Array, cuts: Array) -> Array:
        """Return the tokens whose value is at most the cut of their batch, [T] bool."""
        return _bits(values) <= cuts[batch]


class TopShare(NamedTuple):
    """Keeps the values of a batch that are at or above its quantile 1 - share.

    The quantile is between two of n values if (1 - share)·(n - 1) is no whole number, so that the
    smallest value kept is the one of rank ⌈(1 - share)·(n - 1)⌉, from 0. Equal values are kept
    together. A share is the decimal number that it is written as: 0.2 is 1/5.
    """

    share: float
    """Above 0, at most 1."""

    def boundary(self, tally: Tally, batches: int) -> Boundary:
        """Return the bins from all `leading_codes` without LEADING bits."""
        bins, below = Boundary.empty(batches)
        for batch, entries in tally.batches(32 - LEADING):
            columns = [*entries]
            rank = ceil((1 - Fraction(str(self.share))) * (sum(x[1] for x in columns) - 1))
            for key, count, _ in columns:
                if rank < count:
                    bins[batch], below[batch, 0] = key & _PART, rank
                    break
                rank -= count
        return Boundary(bins, below)

    def cuts(self, tally: Tally, boundary: Boundary) -> Integers:
        """Return the bits of the smallest value of each batch that is kept, [batches] int64."""
        cuts = np.zeros(len(boundary.bins), np.int64)
        for batch, entries in tally.batches(32):
            rank = int(boundary.below[batch, 0])
            for key, count, _ in entries:
                if rank < count:
                    cuts[batch] = key & ((1 << 32) - 1)
                    break
                rank -= count
        return cuts

    def keeps(self, values: Array, batch: Array, cuts: Array) -> Array:
        """Return the tokens whose value is at least the cut of their batch, [T] bool."""
        return _bits(values) >= cuts[batch]


Rule = MeanBelow | TopShare


def _sum(leading: int, count: int, trailing: int) -> int:
    """Return the sum of values with the same leading bits, in units of 2^-149."""
    exponent, mantissa = (
        leading >> (_MANTISSA - LEADING),
        leading & ((1 << (_MANTISSA - LEADING)) - 1),
    )
    implicit = 1 << _MANTISSA if exponent else 0
    return (count * (implicit + (mantissa << LEADING)) + trailing) << max(exponent - 1, 0)


def _is_below(total: int, number: int, bound: float) -> bool:
    """Return whether a mean is below a bound; exact."""
    high = Fraction(bound)
    return total * high.denominator < (number * high.numerator) << _UNIT
