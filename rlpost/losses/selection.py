"""The selection of tokens by their rank in the whole batch, for clip_cov and kl_cov."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, like, on_host
from rlpost.kernels.moments import exact_means
from rlpost.kernels.segments import count_true, segment_sum, spread
from rlpost.kernels.selection import (
    Floors,
    Ranked,
    distinct_keys,
    response_hashes,
    selected_counts,
    token_keys,
)
from rlpost.losses.tokens import InBatch, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.kernels.moments import Floats, Integers


class ResponseSums(NamedTuple):
    """What the statistics of a batch are computed from, [n] each."""

    tokens: Array
    """Policy tokens."""
    advantage: Array
    """Sum of their advantages, float64."""
    log_prob: Array
    """Sum of their current log-probs, float64."""
    old: Array
    """Sum of their log-probs before the update, float64."""
    hashes: Array
    """Int64 hash of their advantages and current log-probs."""

    @classmethod
    def of(cls, tokens: Tokens) -> ResponseSums:
        """Return the sums of each response."""
        mask, offsets, xp = tokens.mask, tokens.offsets, tokens.xp
        columns = (tokens.advantages, tokens.constant(tokens.new), tokens.old)
        advantage, log_prob, old = (
            segment_sum(xp.where(mask, xp.astype(column, xp.float64), 0.0), offsets)
            for column in columns
        )
        hashes = response_hashes(columns[:2], mask, offsets)
        return cls(count_true(mask, offsets), advantage, log_prob, old, hashes)


class BatchMeans(NamedTuple):
    """Statistics of the policy tokens of each batch, [batches] each."""

    tokens: Integers
    advantage: Floats
    log_prob: Floats

    @classmethod
    def of(cls, sums: ResponseSums, batch: Integers, batches: int) -> BatchMeans:
        """Return the exact means of each batch; 0 without policy tokens.

        Args:
            sums: of all responses, arrays of numpy.
            batch: [n] int64, the batch of each response.
            batches: the number of batches.
        """
        counts = np.zeros(batches, np.int64)
        np.add.at(counts, batch, sums.tokens)
        means = (exact_means(column, batch, counts) for column in (sums.advantage, sums.log_prob))
        return cls(counts, *means)


@dataclass(frozen=True)
class Selection:
    """The tokens of highest rank in their batch, a share of its policy tokens."""

    name: str
    """Selections with the same name select the same tokens."""
    rank: Callable[[Tokens], Array]
    """Returns [T] float64 of tokens with `in_batch`; -inf for a token that cannot be selected."""
    share: float
    """In (0, 1]."""
    seed: int
    """Of the choice among tokens of equal rank."""
    behaviour: str
    """The policy that the ratio divides by: `old` or `infer`."""

    def counts(self, tokens: Integers) -> Integers:
        """Return how many tokens are selected of batches with so many policy tokens, [batches]."""
        return selected_counts(tokens, self.share)

    def candidates(self, tokens: Tokens, batch: Array) -> Ranked:
        """Return all tokens, ranked -inf if they cannot be selected.

        Args:
            tokens: with `in_batch`.
            batch: [n] int64, the batch of each response.
        """
        rank, keys = self._order(tokens.divided_by(self.behaviour))
        rank = rank if tokens.all_policy else tokens.xp.where(tokens.mask, rank, -np.inf)
        return Ranked(spread(batch, tokens.offsets), rank, keys)

    def of(self, tokens: Tokens) -> Array:
        """Return which tokens are selected, [T] bool.

        Args:
            tokens: with `in_batch` they are a part of their batches; otherwise they are one batch.
        """
        if tokens.in_batch is None or self.name not in tokens.in_batch.floors:
            tokens = self.as_one_batch(tokens)
        assert tokens.in_batch is not None
        rank, keys = self._order(tokens.divided_by(self.behaviour))
        least, key = (spread(x, tokens.offsets) for x in tokens.in_batch.floors[self.name])
        return tokens.mask & ((rank > least) | ((rank == least) & (keys >= key)))

    def as_one_batch(self, tokens: Tokens) -> Tokens:
        """Return the same tokens, with what selects among them as one whole batch."""
        mask, rows = tokens.mask, len(tokens.offsets) - 1
        batch = np.zeros(rows, np.int64)
        sums = ResponseSums(*map(on_host, ResponseSums.of(tokens)))
        means = BatchMeans.of(sums, batch, 1)
        key = like(distinct_keys(sums.hashes, batch, sums.old), mask)
        advantage, log_prob = (like(x.repeat(rows), mask) for x in means[1:])
        tokens = replace(tokens, in_batch=InBatch(key, advantage, log_prob))
        competing = Ranked(*map(on_host, self.candidates(tokens, like(batch, mask))))
        lowest = Floors.of(competing.highest(self.counts(means.tokens)), 1)
        floors = Floors(*(like(x.repeat(rows), mask) for x in lowest))
        return replace(tokens, in_batch=InBatch(key, advantage, log_prob, {self.name: floors}))

    def _order(self, tokens: Tokens) -> tuple[Array, Array]:
        """Return rank and key of each token, [T] each."""
        assert tokens.in_batch is not None, "tokens without the statistics of their batches"
        return self.rank(tokens), token_keys(tokens.in_batch.key, tokens.offsets, self.seed)
