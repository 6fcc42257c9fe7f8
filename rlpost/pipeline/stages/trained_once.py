"""Stages of --trained-once: each policy token of a rollout is trained by one of its rows.

A policy segment is what the policy sampled at once. Rows of a rollout (forks, turns with their
history) have one in common if their token ids are equal from the start of the prompt to its end.
The first of these rows in the order of the rollout trains it, then the one with fewer policy
tokens, then by the tokens themselves, and by the reward; rows that are equal in all of these are
copies. Rows that are left out or dropped train nothing, so they are never the first.

The other rows keep the tokens in the statistics of their response, and mask them like tokens that a
filter rejects: they are not `accepted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.prefixes import (
    SEEDS,
    PolicySegments,
    Prefixes,
    repeated_tokens,
    segments_with_prefixes,
    trained_tokens,
)
from rlpost.kernels.rollouts import RolloutOrder
from rlpost.kernels.segments import count_true, offsets_of
from rlpost.pipeline.reading import PROMPT
from rlpost.pipeline.rollout_order import ROLLOUT_ORDER, rollout_codes
from rlpost.pipeline.stages.responses import TRAINED
from rlpost.pipeline.stages.tokens import kept_mask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch, Column, Responses

IDS = "response_token_ids"
ONCE = "once"
"""The column of tokens that is false for policy tokens which another row trains."""
REPEATED = "repeated"
"""The column of responses with the number of policy tokens that another row trains."""
_ROW, _FIRST = "once:row", "once:first"


def number_rows(responses: Responses) -> Responses:
    """Add the number of each row."""
    return responses.with_(**{_ROW: np.arange(len(responses))})


def map_segments(batch: Batch) -> dict[str, Array]:
    """Return the policy segments of a batch, with the hashes of their prefixes, [K] each."""
    first_row = int(batch.table[_ROW][0]) if len(batch.table[_ROW]) else 0
    rows = batch.responses
    if PROMPT[0] in batch.table:
        before = Prefixes(*(rows[name] for name in PROMPT))
    else:
        nothing = batch.xp.zeros_like(batch.lengths)
        before = Prefixes(nothing, nothing, nothing)
    segments = segments_with_prefixes(batch[IDS], batch.mask, batch.offsets, before, first_row)
    return segments._asdict()


def gather_segments(
    responses: Responses, parts: Iterable[dict[str, Column]], *, grouped: bool
) -> Responses:
    """Add how many policy tokens of each row another one trains; share it by segment.

    Args:
        responses: of the whole input.
        parts: from `map_segments`, of all batches.
        grouped: rollout ids are of a prompt group; else of a batch.
    """
    pieces = [PolicySegments(**part) for part in parts]
    segments = PolicySegments(*map(np.concatenate, zip(*pieces, strict=True)))
    count = len(responses)
    rollout = rollout_codes(responses, grouped=grouped)
    ties = (responses["tokens"], *_hashes(segments, count), responses["reward"])
    order = RolloutOrder.of(rollout, responses[ROLLOUT_ORDER], *ties)
    repeated = repeated_tokens(segments, rollout, order.places(), responses["kept"])
    total = np.zeros(count, np.int64)
    np.add.at(total, segments.row, repeated)
    first = offsets_of(np.bincount(segments.row, minlength=count))[:-1]
    responses = responses.with_(**{_FIRST: first, REPEATED: total})
    return responses.sharing(**{IDS: segments.size - repeated})


def _hashes(segments: PolicySegments, count: int) -> list[Column]:
    """Return what orders rows of one rank by their tokens, [N] each."""
    hashes = []
    for halves, seed in zip((segments.first, segments.second), SEEDS, strict=True):
        sums = np.zeros(count, np.int64)
        np.add.at(sums, segments.row, halves + segments.size * seed)
        hashes.append(sums)
    return hashes


def mask_repeated(batch: Batch) -> Batch:
    """Add `accepted` and `once`: false for policy tokens that another row of the rollout trains."""
    trained = batch.mask
    if len(batch.mask):
        first = int(batch.table[_FIRST][0])
        trained = trained_tokens(batch.mask, batch.offsets, batch.shared[IDS][first:])
    return batch.with_(**{"accepted": trained, ONCE: trained})


def map_trained(batch: Batch) -> dict[str, Array]:
    """Return the number of policy tokens of each response that are trained, [n]."""
    return {TRAINED: count_true(kept_mask(batch), batch.offsets)}
