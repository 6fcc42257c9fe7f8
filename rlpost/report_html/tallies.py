"""What `inspect` does not tell, streamed: advantages, and which tokens a loss clipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlpost.browse import lists
from rlpost.browse.index import stream
from rlpost.parquet.ragged import is_number
from rlpost.report_html.growing import GrowingHistogram
from rlpost.report_html.ppo import PpoClips, add_clips, ppo_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.browse.index import Index
    from rlpost.parquet.pieces import Piece
    from rlpost.progress import Reporter

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


def _kept(found: Tallies, piece: Piece, sampled: str | None) -> NDArray[np.bool_]:
    """Which responses the sample masks let stay, [n]."""
    count = piece.table.num_rows
    if sampled is None or not is_number(piece.table.column(sampled).type):
        return np.ones(count, np.bool_)
    kept: NDArray[np.bool_] = lists.numbers(piece.table.column(sampled)) != 0
    found.masked = (found.masked or 0) + count - int(kept.sum())
    return kept


def _advantages(
    found: Tallies, piece: Piece, column: str, mask: str | None, kept: NDArray[np.bool_]
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
    found: Tallies, piece: Piece, column: str, mask: str | None, kept: NDArray[np.bool_]
) -> None:
    if not lists.holds_numbers(piece.table.column(column).type):
        return
    states = _policy(piece, column, mask, kept)
    states = states[np.isin(states, range(len(CLIPS)))].astype(np.int64)
    before = np.zeros(len(CLIPS), np.int64) if found.clips is None else found.clips
    found.clips = before + np.bincount(states, minlength=len(CLIPS))


def _policy(
    piece: Piece, column: str, mask: str | None, kept: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The column's values on policy tokens of kept responses, row after row."""
    offsets, values = lists.flat(piece.table.column(column))
    beside = None
    if mask is not None and lists.holds_numbers(piece.table.column(mask).type):
        beside = lists.flat(piece.table.column(mask))
    return values[lists.mask_beside(beside, offsets) & np.repeat(kept, np.diff(offsets))]
