"""The tokens that policy losses are computed of, and the selection of tokens of whole batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, is_all_true, like, namespace, on_host
from rlpost.kernels.corrections import proximal_log_probs, reduce_responses
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from rlpost.kernels.moments import Floats, Integers


_TOKEN_FIELDS = ("new", "old", "advantages", "mask", "infer", "ref", "weights", "age")


@dataclass(frozen=True)
class InBatch:
    """What connects responses with their whole batches, [n] each."""

    key: Array
    """Int64 keys of responses, from `distinct_keys`."""
    advantage: Array
    """Mean advantage of the policy tokens of the response's batch."""
    log_prob: Array
    """Mean current log-prob of these tokens."""
    floors: Mapping[str, Floors] = field(default_factory=dict)
    """By name of a selection: the lowest token that is selected of the response's batch."""

    def rows(self, start: int, stop: int) -> InBatch:
        """Return the part for consecutive responses."""
        return InBatch(
            self.key[start:stop],
            self.advantage[start:stop],
            self.log_prob[start:stop],
            {name: Floors(*(x[start:stop] for x in y)) for name, y in self.floors.items()},
        )


@dataclass(frozen=True)
class Tokens:
    """The tokens that a loss is computed of, ragged by response.

    What several losses have in common is computed once, at its first use. Values of masked-out
    tokens are never read.
    """

    new: Array
    """[T] float, log-probs of the policy being trained; losses are differentiable in them."""
    old: Array
    """[T] float, log-probs of the policy before its update, which sampled the tokens."""
    advantages: Array
    """[T] float."""
    mask: Array
    """[T] bool: policy tokens."""
    offsets: Array
    """[n+1] of the responses."""
    infer: Array | None = None
    """[T] float, log-probs of the rollout engine."""
    ref: Array | None = None
    """[T] float, log-probs of the reference policy, for a KL loss."""
    rewards: Array | None = None
    """[n] rewards of the responses; without them, losses use the sign of the advantage."""
    weights: Array | None = None
    """[T] importance weights between rollout engine and trainer, which multiply the loss."""
    age: Array | None = None
    """[T] versions from the policy that sampled a token to the current one."""
    group: Array | None = None
    """[n] codes of the prompt groups of the responses."""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """[T] columns that a user's loss reads by name."""
    of_rows: Mapping[str, Array] = field(default_factory=dict)
    """[n] columns that a user's loss reads by name."""
    in_batch: InBatch | None = None
    """What connects the responses with their batches; None if the tokens are one whole batch."""
    chosen: Array = field(default_factory=lambda: np.zeros(0, np.bool_))
    """[T] bool: tokens that a loss with a rank selects of their batches; else it is not read."""

    @cached_property
    def xp(self) -> ModuleType:
        """The functions for its arrays."""
        return namespace(self.mask)

    def constant(self, values: Array) -> Array:
        """Return values as a constant for gradients."""
        return self.xp.constant(values)

    def rows(self, start: int, stop: int) -> Tokens:
        """Return the tokens of the responses from `start` to `stop`."""
        bounds = on_host(self.offsets)
        first, last = int(bounds[start]), int(bounds[stop])
        columns = {name: getattr(self, name) for name in _TOKEN_FIELDS}
        return Tokens(
            **{name: x[first:last] for name, x in columns.items() if x is not None},
            offsets=self.offsets[start : stop + 1] - first,
            rewards=None if self.rewards is None else self.rewards[start:stop],
            group=None if self.group is None else self.group[start:stop],
            columns={name: x[first:last] for name, x in self.columns.items()},
            of_rows={name: x[start:stop] for name, x in self.of_rows.items()},
            in_batch=None if self.in_batch is None else self.in_batch.rows(start, stop),
        )

    @cached_property
    def covariance(self) -> Array:
        """[T] float64 (A - mean A)·(new - mean new), means of the batch; not of masked-out tokens.

        A constant for gradients. It needs `in_batch`.
        """
        assert self.in_batch is not None, "tokens without the statistics of their batches"
        advantages, log_probs = self.masked_advantages, self.constant(self.masked_log_probs)
        means = (self.in_batch.advantage, self.in_batch.log_prob)
        over, above = (
            self.xp.astype(values, self.xp.float64) - spread(mean, self.offsets)
            for values, mean in zip((advantages, log_probs), means, strict=True)
        )
        return over * above

    def inside(self, values: Array, outside: float = 0.0) -> Array:
        """Return values [T] with another one for masked-out tokens."""
        return values if self.all_policy else self.xp.where(self.mask, values, outside)

    @cached_property
    def masked_advantages(self) -> Array:
        """[T] advantages, 0 if masked out."""
        return self.inside(self.advantages)

    @cached_property
    def all_policy(self) -> bool:
        """Whether all tokens are policy tokens; false if only a device has the mask."""
        return is_all_true(self.mask)

    @cached_property
    def advantage_positive(self) -> Array:
        """[T] bool: the advantage of a policy token is above 0."""
        return self.masked_advantages > 0

    @cached_property
    def advantage_negative(self) -> Array:
        """[T] bool: the advantage of a policy token is below 0."""
        return self.masked_advantages < 0

    @cached_property
    def negated_advantages(self) -> Array:
        """[T] -A, which a loss multiplies by ratios."""
        return -self.masked_advantages

    @cached_property
    def masked_log_probs(self) -> Array:
        """[T] `new`, 0 if masked out."""
        return self.inside(self.new)

    @cached_property
    def old_log_probs(self) -> Array:
        """[T] `old`, 0 if masked out."""
        return self.inside(self.old)

    @cached_property
    def infer_log_probs(self) -> Array:
        """[T] `infer`, which there must be, 0 if masked out."""
        return self.inside(self.infer)

    @cached_property
    def ref_log_probs(self) -> Array:
        """[T] `ref`, which there must be, 0 if masked out."""
        assert self.ref is not None, "tokens without log-probs of the reference policy"
        return self.inside(self.ref)

    @cached_property
    def log_ratio(self) -> Array:
        """[T] new - old, 0 if masked out."""
        return self.inside(self.new - self.old)

    @cached_property
    def mean_log_ratio(self) -> Array:
        """[T] mean log ratio of the token's response; a constant for gradients."""
        return self.response_mean(self.log_ratio)

    @cached_property
    def probability_change(self) -> Array:
        """[T] exp(new) - exp(old), 0 if masked out; a constant for gradients."""
        return self.xp.where(
            self.mask, self.xp.exp(self.constant(self.new)) - self.xp.exp(self.old), 0.0
        )

    @cached_property
    def _divided(self) -> dict[str, Tokens]:
        return {}

    def divided_by(self, behaviour: str) -> Tokens:
        """Return the tokens with the policy as `old` that ratios divide by.

        Args:
            behaviour: old; infer, the rollout engine; or loglinear or linear: the policy before the
                current one, interpolated by `proximal_log_probs`, a constant for gradients.
        """
        if behaviour == "old":
            return self
        if behaviour not in self._divided:
            assert self.infer is not None, "tokens without log-probs of the rollout engine"
            old = self.infer
            if behaviour != "infer":
                assert self.age is not None, "tokens without their ages"
                old = proximal_log_probs(self.constant(self.new), old, self.age, how=behaviour)
            self._divided[behaviour] = replace(self, old=old)
        return self._divided[behaviour]

    @cached_property
    def _ratios(self) -> dict[float, Array]:
        return {}

    def ratio(self, clamp: float = math.inf) -> Array:
        """Return exp(new - old), [T], the log ratio clamped to ±clamp nats; 1 if masked out."""
        if clamp not in self._ratios:
            bounded = self.log_ratio if math.isinf(clamp) else self.log_ratio.clip(-clamp, clamp)
            self._ratios[clamp] = self.xp.exp(bounded)
        return self._ratios[clamp]

    def beyond(self, clamp: float) -> Array | bool:
        """Return whether the log ratio is clamped, [T] bool; its gradient is 0 then.

        False if the clamp is inf.
        """
        return False if math.isinf(clamp) else abs(self.log_ratio) > clamp

    def response_mean(self, values: Array) -> Array:
        """Return the mean over the policy tokens of each token's response, [T], detached."""
        means = reduce_responses(self.constant(values), self.mask, self.offsets, level="geometric")
        return spread(means, self.offsets)


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
