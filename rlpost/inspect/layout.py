"""How lists are laid out: masks, padding at the ends, columns that stand one token apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.inspect.columns import segment_sums
from rlpost.inspect.tokens import LOG_PROBS, TWINS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.inspect.tally import Tally
    from rlpost.inspect.tokens import Block

    Rows = dict[str, NDArray[Any]]

PROBED = 32  # of so many tokens of a piece, shifts are looked for in one,
LEAST_PROBED = 1 << 13  # but in all of a small one
LAGS = (-1, 0, 1)
ENDS = ("padded", "left", "shifted")


def mask_rows(block: Block) -> Rows:
    """Policy tokens of each response, runs of them, and what its ends are, [n] each."""
    lengths = np.diff(block.offsets)
    if block.mask is None:
        none = np.zeros(block.rows, np.bool_)
        runs = (lengths > 0).astype(np.int32)
        return {"tokens": lengths, "runs": runs, "leading": none, "trailing": none}
    starts = block.mask.copy()
    starts[1:] &= ~block.mask[:-1]
    first = block.offsets[:-1][lengths > 0]
    starts[first] = block.mask[first]
    some = lengths > 0
    leading, trailing = np.zeros(block.rows, np.bool_), np.zeros(block.rows, np.bool_)
    leading[some] = ~block.mask[first]
    trailing[some] = ~block.mask[block.offsets[1:][some] - 1]
    return {
        "tokens": segment_sums(block.mask.astype(np.int64), block.offsets).astype(np.int64),
        "runs": segment_sums(starts.astype(np.int32), block.offsets).astype(np.int32),
        "leading": leading,
        "trailing": trailing,
    }


def end_rows(block: Block) -> Rows:
    """By role, responses whose ends look padded or shifted: log-probs that are exactly 0 there.

    Padded: the last token is masked out and 0, or the last two are 0 where nothing is masked out.
    Left: the same of the first tokens. Shifted: the first or the last token is the policy's and
    0, as a filler is.
    """
    rows: Rows = {}
    some = np.diff(block.offsets) > 0
    first, last = block.offsets[:-1][some], block.offsets[1:][some] - 1
    before, after = np.maximum(last - 1, first), np.minimum(first + 1, last)
    for role in LOG_PROBS:
        if role not in block.values:
            continue
        zero = block.values[role] == 0
        if block.mask is None:
            padded = zero[last] & zero[before] & (before < last)
            left = zero[first] & zero[after] & (before < last)
            shifted = (zero[last] & ~padded) | (zero[first] & ~left)
        else:
            padded = zero[last] & ~block.mask[last]
            left = zero[first] & ~block.mask[first]
            shifted = (zero[last] & block.mask[last]) | (zero[first] & block.mask[first])
        for name, found in zip(ENDS, (padded, left, shifted), strict=True):
            rows[f"{name}:{role}"] = np.zeros(block.rows, np.bool_)
            rows[f"{name}:{role}"][some] = found
    return rows


def probe(block: Block, tally: Tally) -> None:
    """Look for shifts: between two columns of log-probs, and between the mask and one.

    Two policies' log-probs of one token are near each other, so at the lag at which columns fit
    the mean |difference| is least. Where a mask changes, log-probs jump: between what the policy
    chose and what it only read (or a filler); at another lag they do not.
    """
    if block.mask is not None:
        for role in LOG_PROBS[:2]:
            if role in block.values:
                _jumps(role, block, tally)
    tokens = int(block.offsets[-1])
    taken = min(tokens, max(tokens // PROBED, LEAST_PROBED))
    if taken > 1:
        inner = np.ones(taken - 1)
        ends = block.offsets[1:] - 1  # the last token of a row has no right neighbour
        inner[ends[(ends >= 0) & (ends < taken - 1)]] = 0
        for pair in TWINS:
            if {*pair} <= block.values.keys():
                _differences(pair, block, inner, tally)


def _differences(
    pair: tuple[str, str], block: Block, inner: NDArray[np.float64], tally: Tally
) -> None:
    """Mean |one[t] - other[t + lag]|, over the same pairs of neighbours for each lag."""
    one, other = (block.values[role][: len(inner) + 1].astype(np.float64) for role in pair)
    finite = np.isfinite(one) & np.isfinite(other)
    if not finite.all():
        inner = inner * (finite[1:] & finite[:-1])
        one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    name = "/".join(pair)
    sides = {-1: (one[1:], other[:-1]), 0: (one[:-1], other[:-1]), 1: (one[:-1], other[1:])}
    for lag, (left, right) in sides.items():
        tally.add(f"lag.{name}.{lag}", np.einsum("i,i", np.abs(left - right), inner))
    tally.add(f"lag.{name}.tokens", inner.sum())


def _jumps(role: str, block: Block, tally: Tally) -> None:
    """By lag, how the log-probs jump where the mask changes: sums of jumps and of their squares."""
    mask, values = block.mask, block.values[role]
    assert mask is not None
    change = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    row = np.searchsorted(block.offsets, change, side="right") - 1
    inside = (change - 2 >= block.offsets[row]) & (change + 1 < block.offsets[row + 1])
    change = change[inside]
    if not len(change):
        return
    sign = np.where(mask[change], -1.0, 1.0)
    near = [values[change + place].astype(np.float64) for place in range(-2, 2)]
    jumps = np.stack([sign * (near[lag + 2] - near[lag + 1]) for lag in LAGS])
    jumps = jumps[:, np.isfinite(jumps).all(0)]
    tally.add(f"jump.{role}.tokens", jumps.shape[1])
    for lag, one in zip(LAGS, jumps, strict=True):
        tally.add(f"jump.{role}.{lag}", one.sum())
        tally.add(f"jump.{role}.{lag}.squares", np.einsum("i,i", one, one))
