"""The selection of tokens by their rank in the whole batch, for clip_cov and kl_cov."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

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
    from collections.abc import Mapping

    from torch import Tensor

    from rlpost.losses.base import Loss, Tokens
    from rlpost.recipe.loss import LossOptions


class ResponseSums(NamedTuple):
    """What the statistics of a batch are computed from, [n] each, on the CPU."""

    tokens: Tensor
    """Policy tokens."""
    advantage: Tensor
    """Sum of their advantages, float64."""
    log_prob: Tensor
    """Sum of their current log-probs, float64."""
    old: Tensor
    """Sum of their log-probs before the update, float64."""
    hashes: Tensor
    """Int64 hash of their advantages and current log-probs."""

    @classmethod
    def of(cls, tokens: Tokens) -> ResponseSums:
        """Return the sums of each response."""
        mask, offsets = tokens.mask, tokens.offsets
        columns = (tokens.advantages, tokens.new.detach(), tokens.old)
        advantage, log_prob, old = (
            segment_sum(torch.where(mask, column.to(torch.float64), 0.0), offsets).cpu()
            for column in columns
        )
        counts = count_true(mask, offsets).cpu()
        return cls(counts, advantage, log_prob, old, response_hashes(columns[:2], mask, offsets))


class BatchMeans(NamedTuple):
    """Statistics of the policy tokens of each batch, [batches] each."""

    tokens: Tensor
    advantage: Tensor
    log_prob: Tensor

    @classmethod
    def of(cls, sums: ResponseSums, batch: Tensor, batches: int) -> BatchMeans:
        """Return the exact means of each batch; 0 without policy tokens."""
        counts = torch.zeros(batches, dtype=torch.int64).index_add(0, batch, sums.tokens)
        means = (exact_means(column, batch, counts) for column in (sums.advantage, sums.log_prob))
        return cls(counts, *means)


@dataclass(frozen=True)
class InBatch:
    """What connects responses with their whole batches, [n] each."""

    key: Tensor
    """Int64 keys of responses, from `distinct_keys`."""
    advantage: Tensor
    """Mean advantage of the policy tokens of the response's batch."""
    log_prob: Tensor
    """Mean current log-prob of these tokens."""
    floors: Mapping[str, Floors] = field(default_factory=dict)
    """By `name_of`: the lowest token that is selected of the response's batch."""

    def rows(self, start: int, stop: int) -> InBatch:
        """Return the part for consecutive responses."""
        return InBatch(
            self.key[start:stop],
            self.advantage[start:stop],
            self.log_prob[start:stop],
            {name: Floors(*(x[start:stop] for x in one)) for name, one in self.floors.items()},
        )


def name_of(loss: Loss, options: LossOptions) -> str:
    """Return the name of a selection: losses with the same name select the same tokens."""
    assert loss.rank is not None, "a loss without a rank"
    names = [name for name in loss.defaults if name not in loss.after_rank]
    own = [f"{name}={loss.value(name, options)}" for name in names]
    return " ".join([loss.name, options.behaviour, *own])


def candidates(tokens: Tokens, loss: Loss, options: LossOptions, batch: Tensor) -> Ranked:
    """Return the tokens that compete for the selection of a loss.

    Args:
        tokens: with `in_batch`, divided by the options' behaviour policy.
        loss: has a rank.
        options: its options.
        batch: [n] int64, the batch of each response.
    """
    rank = loss.ranks(tokens, options)
    inside = tokens.mask & (rank > -torch.inf)
    keys = _keys(tokens, loss, options)
    return Ranked(spread(batch, tokens.offsets)[inside], rank[inside], keys[inside])


def selected(tokens: Tokens, loss: Loss, options: LossOptions) -> Tensor:
    """Return which tokens a loss selects, [T] bool.

    Args:
        tokens: divided by the options' behaviour policy. With `in_batch` they are a part of their
            batches; otherwise they are one batch.
        loss: has a rank.
        options: its options.
    """
    name = name_of(loss, options)
    if tokens.in_batch is None or name not in tokens.in_batch.floors:
        tokens = as_one_batch(tokens, loss, options)
    assert tokens.in_batch is not None
    floor_rank, floor_key = (spread(x, tokens.offsets) for x in tokens.in_batch.floors[name])
    rank = loss.ranks(tokens, options)
    level = (rank == floor_rank) & (_keys(tokens, loss, options) >= floor_key)
    return tokens.mask & ((rank > floor_rank) | level)


def as_one_batch(tokens: Tokens, loss: Loss, options: LossOptions) -> Tokens:
    """Return the same tokens, with what selects among them as one whole batch."""
    device, rows = tokens.offsets.device, tokens.offsets.numel() - 1
    batch = torch.zeros(rows, dtype=torch.int64)
    sums = ResponseSums.of(tokens)
    means = BatchMeans.of(sums, batch, 1)
    key = distinct_keys(sums.hashes, batch, sums.old).to(device)
    advantage, log_prob = (x.expand(rows).to(device) for x in (means.advantage, means.log_prob))
    tokens = replace(tokens, in_batch=InBatch(key, advantage, log_prob))
    counts = selected_counts(means.tokens, loss.value("cov_share", options))
    competing = candidates(tokens, loss, options, batch.to(device))
    found = Ranked(*(x.cpu() for x in competing)).highest(counts)
    floors = Floors(*(x.expand(rows).to(device) for x in Floors.of(found, 1)))
    own = InBatch(key, advantage, log_prob, {name_of(loss, options): floors})
    return replace(tokens, in_batch=own)


def _keys(tokens: Tokens, loss: Loss, options: LossOptions) -> Tensor:
    assert tokens.in_batch is not None
    seed = int(loss.value("cov_seed", options))
    return token_keys(tokens.in_batch.key, tokens.offsets, seed)
