"""What `inspect` does not tell, streamed: advantages, and which tokens a loss clipped.

What PPO would clip of a file that has new and old log-probs and advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.report.charts import GrowingHistogram
from rlpost.analysis.responses import columns as lists
from rlpost.analysis.responses.index import stream
from rlpost.io.arrow import is_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.io.parquet.source import RowChunk
    from rlpost.io.progress import Reporter


CLIP = 0.2  # arXiv 1707.06347, and what `rlpost loss` takes where nothing is said
NEW, OLD = "log_probs", "old_log_probs"


@dataclass
class PpoClips:
    """Policy tokens whose gradient PPO's clip takes away: r = exp(new - old) is the ratio."""

    tokens: int = 0
    """Those with finite numbers, of responses whose lists are of one length."""
    low: int = 0
    """r < 1 - 0.2 where the advantage is negative."""
    high: int = 0
    """r > 1 + 0.2 where it is positive."""

    def add(self, ratio: NDArray[np.float64], advantage: NDArray[np.float64]) -> None:
        """Count more tokens, [t] each."""
        self.tokens += len(ratio)
        self.low += int(np.count_nonzero((ratio < 1 - CLIP) & (advantage < 0)))
        self.high += int(np.count_nonzero((ratio > 1 + CLIP) & (advantage > 0)))


def ppo_columns(index: Index) -> tuple[str, str, str] | None:
    """New and old log-probs and advantages; None where one is missing, or two are one column."""
    new, old = (index.columns.columns.get(role) for role in (NEW, OLD))
    advantage = index.names.get("advantage")
    if new is None or old is None or advantage is None or new == old:
        return None
    return new, old, advantage


def add_clips(
    found: PpoClips,
    piece: RowChunk,
    columns: tuple[str, str, str],
    mask: str | None,
    kept: NDArray[np.bool_],
) -> None:
    """Count the tokens of a piece.

    Args:
        found: gets the counts.
        piece: some rows, [n].
        columns: as `ppo_columns` says.
        mask: the column of the policy's tokens; None: all are.
        kept: [n] rows that count.
    """
    new, old, advantage = (piece.table.column(name) for name in columns)
    if not (lists.holds_numbers(new.type) and lists.holds_numbers(old.type)):
        return
    offsets, after = lists.flat(new)
    before_offsets, before = lists.flat(old)
    lengths = np.diff(offsets)
    fits = kept & (lengths == np.diff(before_offsets))
    if lists.holds_numbers(advantage.type):
        own, weight = lists.flat(advantage)
        fits &= lengths == np.diff(own)
        weight = weight[np.repeat(fits, np.diff(own))]
    elif is_number(advantage.type):
        weight = np.repeat(lists.numbers(advantage), np.where(fits, lengths, 0))
    else:
        return
    beside = None
    if mask is not None and lists.holds_numbers(piece.table.column(mask).type):
        beside = lists.flat(piece.table.column(mask))
    policy = lists.mask_beside(beside, offsets)[np.repeat(fits, lengths)]
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is left out
        nats = after[np.repeat(fits, lengths)] - before[np.repeat(fits, np.diff(before_offsets))]
        ratio = np.exp(nats)
    chosen = policy & np.isfinite(nats) & np.isfinite(weight)
    found.add(ratio[chosen], weight[chosen])


CLIP_STATE, SAMPLE_MASK = "clip_state", "sample_mask"
CLIPS = ("not clipped", "low", "high", "dual")
"""What the values 0 to 3 of `clip_state` say, as `rlpost loss` writes them."""


@dataclass
class Tallies:
    """Over policy tokens; an advantage that is one number per response counts once.

    Responses whose `sample_mask` is 0 are left out, as in the summary of `rlpost advantages`.
    """

    advantage: GrowingHistogram | None = None
    of_tokens: bool = True
    """The column has an advantage per token."""
    masked: int | None = None
    """Responses that were left out; None where the input has no sample mask."""
    clips: NDArray[np.int64] | None = None
    """[4] tokens by clip state; other values are left out."""
    ppo: PpoClips | None = None
    """What PPO would clip, where the input has no clip states and what it takes to tell."""


def tallied(index: Index, reporter: Reporter) -> Tallies:
    """Stream the columns of advantages and clip states, where the input has them.

    Raises:
        ReadWriteError: the input can no longer be read.
    """
    found = Tallies()
    column = index.names.get("advantage")
    clips = CLIP_STATE if CLIP_STATE in index.source.columns else None
    ppo = ppo_columns(index) if clips is None else None
    names = list(dict.fromkeys(name for name in (column, clips, *(ppo or ())) if name is not None))
    if not names:
        return found
    mask = index.columns.columns.get("mask")
    sampled = SAMPLE_MASK if SAMPLE_MASK in index.source.columns else None
    wanted = [*names, *(name for name in (mask, sampled) if name is not None)]
    for piece in stream(index.source, wanted, index.sized_by, reporter, "advantages"):
        kept = _kept(found, piece, sampled)
        if column is not None:
            _advantages(found, piece, column, mask, kept)
        if clips is not None:
            _clips(found, piece, clips, mask, kept)
        if ppo is not None:
            found.ppo = found.ppo or PpoClips()
            add_clips(found.ppo, piece, ppo, mask, kept)
    return found


def _kept(found: Tallies, piece: RowChunk, sampled: str | None) -> NDArray[np.bool_]:
    """Which responses the sample masks let stay, [n]."""
    count = piece.table.num_rows
    if sampled is None or not is_number(piece.table.column(sampled).type):
        return np.ones(count, np.bool_)
    kept: NDArray[np.bool_] = lists.numbers(piece.table.column(sampled)) != 0
    found.masked = (found.masked or 0) + count - int(kept.sum())
    return kept


def _advantages(
    found: Tallies, piece: RowChunk, column: str, mask: str | None, kept: NDArray[np.bool_]
) -> None:
    array = piece.table.column(column)
    if lists.holds_numbers(array.type):
        values = _policy(piece, column, mask, kept)
    elif is_number(array.type):
        values, found.of_tokens = lists.numbers(array)[kept], False
    else:
        return
    found.advantage = found.advantage or GrowingHistogram()
    found.advantage.add(values)


def _clips(
    found: Tallies, piece: RowChunk, column: str, mask: str | None, kept: NDArray[np.bool_]
) -> None:
    if not lists.holds_numbers(piece.table.column(column).type):
        return
    states = _policy(piece, column, mask, kept)
    states = states[np.isin(states, range(len(CLIPS)))].astype(np.int64)
    before = np.zeros(len(CLIPS), np.int64) if found.clips is None else found.clips
    found.clips = before + np.bincount(states, minlength=len(CLIPS))


def _policy(
    piece: RowChunk, column: str, mask: str | None, kept: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The column's values on policy tokens of kept responses, row after row."""
    offsets, values = lists.flat(piece.table.column(column))
    beside = None
    if mask is not None and lists.holds_numbers(piece.table.column(mask).type):
        beside = lists.flat(piece.table.column(mask))
    return values[lists.mask_beside(beside, offsets) & np.repeat(kept, np.diff(offsets))]
