"""Exact selection of the highest tokens of each batch, independent of order and chunks.

A token is ordered by its rank, and tokens of equal rank by a hash of the seed, of their response
and of their position. The hash replaces a random generator, whose numbers would depend on the order
of the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, is_tensor, like, namespace, on_host
from rlpost.kernels.arrays.numpy_arrays import canonical_order
from rlpost.kernels.segments import offsets_of, segment_sum, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.kernels.moments import Floats, Integers


# Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as signed numbers of 64 bits.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
_LAST_SHIFT = 31
_PENDING = 1 << 16


def mixed(numbers: Array) -> Array:
    """Return a hash of each number, int64: the finaliser of SplitMix64. Products wrap around."""
    out = numbers + _STEP
    for shift, factor in _ROUNDS:
        out = (out ^ _shifted(out, shift)) * factor
    return out ^ _shifted(out, _LAST_SHIFT)


def _shifted(numbers: Array, bits: int) -> Array:
    """Return int64 numbers shifted to the right, with zeros at the left."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def response_hashes(columns: Sequence[Array], mask: Array, offsets: Array) -> Array:
    """Return a hash of the numbers of each response at its policy tokens, [n] int64.

    Args:
        columns: [T] float each; float32 and float64 of the same value have the same hash.
        mask: [T] bool.
        offsets: [n+1].
    """
    xp, hashes = namespace(mask), _positions(offsets)
    for column in columns:
        values = xp.astype(xp.constant(column), xp.float64) + 0.0  # -0.0 becomes 0.0
        hashes = mixed(hashes + mixed(xp.reinterpreted(values, xp.int64)))
    return mixed(segment_sum(xp.where(mask, hashes, 0), offsets))


def distinct_keys(hashes: Integers, batch: Integers, *columns: Floats) -> Integers:
    """Return a key of each response, [N] int64, which differs between equal responses of a batch.

    Args:
        hashes: [N] from `response_hashes`.
        batch: [N] int64.
        columns: [N] each, which order responses of equal hash. Responses that are equal in all of
            it are numbered in the order of the input, which no sum depends on.
    """
    order = canonical_order(batch, hashes, *columns)
    same = np.zeros(len(hashes), np.bool_)
    ordered = hashes[order]
    same[1:] = (ordered[1:] == ordered[:-1]) & (batch[order][1:] == batch[order][:-1])
    index = np.arange(len(hashes))
    number = np.empty_like(index)
    number[order] = index - np.maximum.accumulate(np.where(same, 0, index))
    keys: Integers = mixed(hashes + number)
    return keys


def token_keys(responses: Array, offsets: Array, seed: int) -> Array:
    """Return what orders tokens of equal rank, [T] int64.

    Args:
        responses: [n] keys from `distinct_keys`.
        offsets: [n+1].
        seed: of the choice.
    """
    own = mixed(responses ^ int(mixed(np.array([seed]))[0]))
    return mixed(spread(own, offsets) + _positions(offsets))


def _positions(offsets: Array) -> Array:
    """Return the position of each token in its response, [T] int64."""
    token = namespace(offsets).arange(int(on_host(offsets)[-1]), offsets)
    return token - spread(offsets[:-1], offsets)


class Ranked(NamedTuple):
    """Tokens that compete in their batches, [K] each."""

    batch: Array
    rank: Array
    """-inf for a token that does not compete."""
    key: Array

    def highest(self, counts: Integers, sizes: Integers | None = None) -> Ranked:
        """Return the highest tokens of each batch, ordered by batch and from the highest.

        On a device, tokens that do not compete are among them if a batch has too few others: their
        number is then computed from the arguments alone, without a wait.

        Args:
            counts: [batches] the most tokens of each batch.
            sizes: [batches] the number of these tokens in each batch; None to count them.
        """
        own = self
        if not is_tensor(self.rank):
            own, sizes = self._near(counts), None
        if sizes is None:
            sizes = np.bincount(on_host(own.batch), minlength=len(counts))
        most = offsets_of(np.minimum(counts, sizes))
        first = spread(offsets_of(sizes)[:-1] - most[:-1], most)
        places = like(first + np.arange(int(most[-1])), own.rank)
        sort = namespace(own.rank).canonical_order
        order = sort(own.batch, -own.rank, ~own.key)[places]
        return Ranked(*(column[order] for column in own))

    def competing(self) -> Ranked:
        """Return the tokens that compete; waits for a device."""
        inside = self.rank > -np.inf
        return self if bool(inside.all()) else Ranked(*(column[inside] for column in self))

    def _near(self, counts: Integers) -> Ranked:
        """Return the competing tokens at or above the last rank of their batch: few to sort."""
        own, parts = self.competing(), []
        for code in np.flatnonzero(np.bincount(own.batch)).tolist():
            inside, count = own.batch == code, int(counts[code])
            part = own if bool(inside.all()) else Ranked(*(column[inside] for column in own))
            if len(part.rank) > count:
                near = part.rank >= np.partition(part.rank, -count)[-count]
                part = Ranked(*(column[near] for column in part))
            parts.append(part)
        return Ranked(*map(np.concatenate, zip(*parts, strict=True))) if parts else own


class HighestOf:
    """Collects the highest tokens of each batch from parts of the input, in any order.

    At most twice as many tokens as the result has are kept, and those of one part.
    """

    def __init__(self, counts: Integers) -> None:
        self._counts, self._most = counts, 2 * int(counts.sum()) + _PENDING
        self._parts: list[Ranked] = []
        self._size = 0

    def add(self, part: Ranked) -> None:
        """Add the highest tokens of a part."""
        part = part.competing()
        self._parts.append(part)
        self._size += len(part.rank)
        if self._size > self._most:
            self._parts = [self.result()]
            self._size = len(self._parts[0].rank)

    def result(self) -> Ranked:
        """Return the highest tokens of all parts."""
        columns = zip(*self._parts, strict=True)
        return Ranked(*map(np.concatenate, columns)).highest(self._counts)


class Floors(NamedTuple):
    """The lowest token of each batch that is selected, [batches] each."""

    rank: Array
    """Inf if the batch has no such token."""
    key: Array

    @classmethod
    def of(cls, selected: Ranked, batches: int) -> Floors:
        """Return the floors of tokens from `Ranked.highest`."""
        rank, key = np.full(batches, np.inf), np.zeros(batches, np.int64)
        last = np.bincount(selected.batch, minlength=batches).cumsum() - 1
        present = np.unique(selected.batch)
        rank[present] = selected.rank[last[present]]
        key[present] = selected.key[last[present]]
        return cls(rank, key)


def selected_counts(tokens: Integers, share: float) -> Integers:
    """Return how many tokens of each batch are selected, int64: ⌊share · tokens⌋, at least 1.

    Args:
        tokens: [batches] policy tokens; without any, none is selected.
        share: in (0, 1].
    """
    counts = [max(int(share * n), 1) if n else 0 for n in tokens.tolist()]
    return np.array(counts, np.int64)
