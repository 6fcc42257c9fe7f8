"""What PPO would clip of a file that has new and old log-probs and advantages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlpost.browse import lists
from rlpost.parquet.ragged import is_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.browse.index import Index
    from rlpost.parquet.pieces import Piece

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
    piece: Piece,
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
