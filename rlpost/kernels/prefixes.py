"""Policy segments by the token ids that lead to them, and which of them several rows train.

A segment is known by its prefix: all token ids from the start of the prompt to its last token. The
prefix is a hash of 128 bits, a sum over its tokens modulo 2^64, twice. So two segments that differ
count as one with a probability of about n²/2^129 for n segments: never in practice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, like, namespace, on_host
from rlpost.kernels.segments import (
    lengths,
    policy_segments,
    segments_of_responses,
    spread,
)

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
SEEDS = (0x2545F4914F6CDD1D, 0x1B873593CC9E2D51)
"""One for each half of a hash."""
_FACTORS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Of splitmix64, 0xBF58476D1CE4E5B9 and 0x94D049BB133111EB, as int64."""
_ID_BITS = 32


class Prefixes(NamedTuple):
    """The number of tokens of some prefixes, [n], and the halves of their hashes."""

    tokens: Array
    first: Array
    second: Array


class PolicySegments(NamedTuple):
    """The policy segments of some rows, in order: arrays [K] int64."""

    row: Array
    """Of the input."""
    size: Array
    """Tokens."""
    first: Array
    second: Array
    """The halves of the hash of the prefix that ends with the segment."""


def prefix_ends(ids: Array, offsets: Array, before: Prefixes | None = None) -> tuple[Array, Array]:
    """Return the halves of the hash of the prefix that ends with each token, [T] int64 each.

    Args:
        ids: [T] token ids, whole numbers of any type.
        offsets: [n+1] of the rows.
        before: [n] what comes before the first token of each row; None: nothing.
    """
    xp = namespace(ids)
    place = xp.arange(len(ids), offsets) - spread(offsets[:-1], offsets)
    if before is not None:
        place = place + spread(before.tokens, offsets)
    tokens = (place << _ID_BITS) | (xp.astype(ids, xp.int64) & ((1 << _ID_BITS) - 1))
    starts, ends = offsets[:-1], []
    for number, seed in enumerate(SEEDS):
        sums = _mixed(tokens, seed).cumsum(0)
        total = xp.concat([xp.zeros(1, sums), sums])
        own = total[starts] if before is None else total[starts] - before[number + 1]
        ends.append(sums - spread(own, offsets))
    return ends[0], ends[1]


def prefixes_of(ids: Array, offsets: Array) -> Prefixes:
    """Return the prefixes that are whole rows, such as prompts."""
    xp, size = namespace(ids), lengths(offsets)
    halves = []
    for end in prefix_ends(ids, offsets):
        padded = xp.concat([xp.zeros(1, end), end])
        halves.append(xp.where(size > 0, padded[offsets[1:]], 0))
    return Prefixes(size, *halves)


def _mixed(values: Array, seed: int) -> Array:
    """Return splitmix64 of int64 numbers."""
    mixed = values ^ seed
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return mixed ^ _shifted(mixed, 31)


def _shifted(values: Array, bits: int) -> Array:
    """Return int64 numbers shifted right by some bits, with zeros from the left."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def segments_with_prefixes(
    ids: Array, mask: Array, offsets: Array, before: Prefixes, first_row: int
) -> PolicySegments:
    """Return the policy segments of consecutive rows.

    Args:
        ids: [T] token ids of the responses.
        mask: [T] bool: true for policy tokens.
        offsets: [n+1].
        before: [n] the prompts.
        first_row: the number of the first row in the input.
    """
    bounds, rows = policy_segments(mask, offsets), segments_of_responses(mask, offsets)
    true = np.flatnonzero(on_host(mask))
    last = like(true[on_host(bounds)[1:] - 1], offsets)
    first, second = (end[last] for end in prefix_ends(ids, offsets, before))
    own = np.repeat(np.arange(len(offsets) - 1), np.diff(on_host(rows))) + first_row
    return PolicySegments(own, np.diff(on_host(bounds)), first, second)


def repeated_tokens(
    segments: PolicySegments, rollout: Integers, order: Integers, trains: np.ndarray
) -> Integers:
    """Return how many last tokens of each segment another row trains before it, [K] int64.

    A row comes before another one of its rollout if its place in `order` is lower. Two segments
    with one prefix may begin at different tokens: the shorter one is then common.

    Args:
        segments: of the input.
        rollout: [N] codes.
        order: [N] numbers that all differ.
        trains: [N] bool: false for rows that train nothing.
    """
    rows, repeated = segments.row, np.zeros(len(segments.row), np.int64)
    chosen = np.flatnonzero(trains[rows])
    keys = (order[rows], segments.second, segments.first, rollout[rows])
    chosen = chosen[np.lexsort([key[chosen] for key in keys])]
    if not len(chosen):
        return repeated
    same = np.ones(len(chosen) - 1, np.bool_)
    for key in keys[1:]:
        same &= key[chosen][1:] == key[chosen][:-1]
    number = np.concatenate([[0], np.cumsum(~same)])
    size = segments.size[chosen]
    step = int(size.max()) + 1
    highest = np.maximum.accumulate(size + number * step) - number * step
    before = np.concatenate([[0], np.where(same, highest[:-1], 0)])
    repeated[chosen] = np.minimum(size, before)
    return repeated
