"""How lists are laid out: masks, padding at the ends, columns that stand one token apart.

Shifts within single steps: a trainer that misaligns lists may do so from some step on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.inspect.columns import segment_sums
from rlpost.analysis.inspect.tokens import LOG_PROBS, TWINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Label
    from rlpost.analysis.inspect.statistics import TokenTotals
    from rlpost.analysis.inspect.tokens import Block

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


def probe(block: Block, tally: TokenTotals) -> None:
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
    pair: tuple[str, str], block: Block, inner: NDArray[np.float64], tally: TokenTotals
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


def _jumps(role: str, block: Block, tally: TokenTotals) -> None:
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


PROBED_LAGS = 1 << 13  # tokens of each step of a piece that are looked at, whole responses of them
MOST_STEPS = 64  # in a piece; a file of more tiny steps is not told apart


def probe_steps(block: Block, steps: Sequence[Label | None], tally: TokenTotals) -> None:
    """By step, Σ |one[t] - other[t + lag]| over pairs of neighbours, for each lag.

    Args:
        block: tokens of n responses.
        steps: [n]; None belongs to no step.
        tally: gets, by step, the sums `PAIR.LAG` and the count `PAIR.tokens`.
    """
    pairs = [pair for pair in TWINS if {*pair} <= block.values.keys()]
    rows = _rows_by_step(steps)
    if not pairs or len(rows) > MOST_STEPS:
        return
    for step, own in rows.items():
        chosen = _few(own, block.offsets)
        places, ends = _places(chosen, block.offsets)
        if len(places) < 2:  # noqa: PLR2004 - no neighbours
            continue
        inner = np.ones(len(places) - 1)
        inner[ends[:-1]] = 0  # the last token of a row has no right neighbour
        for pair in pairs:
            one, other = (block.values[role][places].astype(np.float64) for role in pair)
            _add("/".join(pair), step, one, other, inner, tally)


def _rows_by_step(steps: Sequence[Label | None]) -> dict[Label, list[int]]:
    found: dict[Label, list[int]] = {}
    for row, step in enumerate(steps):
        if step is not None:
            found.setdefault(step, []).append(row)
    return found


def _few(rows: list[int], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first rows, as many as hold the tokens that are looked at; at least one."""
    chosen = np.array(rows, np.int64)
    before = np.cumsum(offsets[chosen + 1] - offsets[chosen])
    return chosen[: max(1, int(np.searchsorted(before, PROBED_LAGS, side="right")))]


def _places(
    rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of these rows' tokens, [t], and where among them each row's last one is."""
    lengths = offsets[rows + 1] - offsets[rows]
    rows, lengths = rows[lengths > 0], lengths[lengths > 0]
    most = min(int(lengths.sum()), 2 * PROBED_LAGS)  # a single long response is cut
    starts = np.repeat(offsets[rows] - np.cumsum(lengths) + lengths, lengths)
    return (starts + np.arange(len(starts)))[:most], _within(np.cumsum(lengths) - 1, most)


def _within(ends: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return np.append(ends[ends < most - 1], most - 1)


def _add(
    name: str,
    step: Label,
    one: NDArray[np.float64],
    other: NDArray[np.float64],
    inner: NDArray[np.float64],
    tally: TokenTotals,
) -> None:
    finite = np.isfinite(one) & np.isfinite(other)
    inner = inner * (finite[1:] & finite[:-1])
    one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    sides = {-1: (one[1:], other[:-1]), 0: (one[:-1], other[:-1]), 1: (one[:-1], other[1:])}
    for lag in LAGS:
        left, right = sides[lag]
        tally.add_of_step(step, f"{name}.{lag}", float(np.abs(left - right) @ inner))
    tally.add_of_step(step, f"{name}.tokens", float(inner.sum()))
