"""Masks, padding at the ends of lists, and columns that are offset by one token.

Offsets are also measured within single steps: a trainer may misalign lists from some step on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.inspect.model import MaskFacts, Shift
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS, LOG_PROBS
from rlpost.analysis.segments import segment_sums
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import Block
    from rlpost.analysis.inspect.model import Label
    from rlpost.kernels.moments import Floats, Integers

    Rows = dict[str, NDArray[Any]]


TOKENS_OF_STEP = 1 << 13  # that are compared in each step of a chunk, in whole responses
MOST_STEPS = 64  # in a chunk; with more steps, they are not compared one by one
LAGS = (-1, 0, 1)
MOST_NATS = 5.0  # that one token may differ
ENDS = ("padded", "left", "shifted")
_NONE: Any = 0.0


# For each chunk.


def mask_rows(block: Block) -> Rows:
    """Return policy tokens, and whether the ends are masked, [n] each."""
    lengths = np.diff(block.offsets)
    if block.mask is None:
        none = np.zeros(block.rows, np.bool_)
        return {"tokens": lengths.astype(np.int32), "leading": none, "trailing": none}
    filled = lengths > 0
    first = block.offsets[:-1][filled]
    leading, trailing = np.zeros(block.rows, np.bool_), np.zeros(block.rows, np.bool_)
    leading[filled] = ~block.mask[first]
    trailing[filled] = ~block.mask[block.offsets[1:][filled] - 1]
    return {
        "tokens": segment_sums(block.mask.astype(np.int64), block.offsets).astype(np.int32),
        "leading": leading,
        "trailing": trailing,
    }


def end_rows(block: Block) -> Rows:
    """Return the zeros at the ends of responses, [n] each: log-probs of exactly 0.

    - `padded`: how many zeros the response ends with; 0 for a single one at a policy token.
    - `left`: the same at its start.
    - `shifted`: the first or the last token is a policy token and 0, like a fill value. A token
      that is certain in other columns, too, is none.
    """
    rows: Rows = {}
    filled = np.diff(block.offsets) > 0
    first, last = block.offsets[:-1][filled], block.offsets[1:][filled] - 1
    masked = np.zeros((2, len(first)), np.bool_)
    if block.mask is not None:
        masked = ~block.mask[np.stack([first, last])]
    uncertain = ~_certain(block, np.stack([first, last]))
    for role in LOG_PROBS:
        if role not in block.values:
            continue
        values = block.values[role]
        zero = values[first] == 0, values[last] == 0
        left, padded = np.zeros((2, block.rows), np.int64)
        ends = filled.copy()
        ends[filled] = zero[0] | zero[1]
        if ends.any():
            left[ends], padded[ends] = _zeros_at_ends(values, block.offsets, ends)
        shifted = np.zeros(block.rows, np.bool_)
        shifted[filled] = (np.stack(zero) & ~masked & uncertain).any(0)
        for runs, hidden in ((left, masked[0]), (padded, masked[1])):
            runs[filled] *= (runs[filled] > 1) | hidden
        rows |= {f"padded:{role}": padded, f"left:{role}": left, f"shifted:{role}": shifted}
    return rows


def _certain(block: Block, tokens: Integers) -> NDArray[np.bool_]:
    """Return which tokens the policy is certain of: log-probs of 0, up to rounding.

    Rollout engine and trainer both have to be. If one of them has no column, all policies that have
    one do; a single column shows nothing.

    Args:
        block: tokens of n responses.
        tokens: indices, of any shape.
    """
    roles = [role for role in LOG_PROB_PAIRS[0] if role in block.values]
    roles = roles if len(roles) > 1 else [role for role in LOG_PROBS if role in block.values]
    if len(roles) < 2:  # noqa: PLR2004
        return np.zeros(tokens.shape, np.bool_)
    certain: NDArray[np.bool_] = np.ones(tokens.shape, np.bool_)
    for role in roles:
        certain &= block.values[role][tokens] >= -LOG_PROB_ROUNDING
    return certain


def _zeros_at_ends(
    values: NDArray[Any], offsets: Integers, rows: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """Return how many zeros each of some responses begins and ends with, [n]."""
    lengths = np.diff(offsets)
    inside, lengths = np.repeat(rows, lengths), lengths[rows]
    offsets = np.append(0, lengths.cumsum())
    others = np.append(np.flatnonzero(values[inside]), 0)
    after = np.searchsorted(others[:-1], offsets)
    some = after[1:] > after[:-1]
    starts = np.where(some, others[after[:-1]] - offsets[:-1], lengths)
    ends = np.where(some, offsets[1:] - 1 - others[after[1:] - 1], lengths)
    return starts, ends


class ShiftSums:
    """Sums that show offsets between two columns of log-probs, or between the mask and a column.

    Log-probs of two policies are close for the same token, so the mean |difference| is least at
    the lag at which two columns match. At an edge of the mask, log-probs jump: policy tokens are
    likelier than observations. At another lag there is no jump.
    """

    def __init__(self) -> None:
        self.lags: dict[tuple[str, str], dict[int, Floats]] = {}
        """By pair and code of the step: Σ |column[t] - other[t + lag]| by lag, and tokens."""
        self.jumps: dict[str, Floats] = {}
        """By role: tokens, and by lag the jumps and their squares."""

    def add(self, block: Block, steps: Integers) -> None:
        """Add a sample of a chunk.

        Args:
            block: of some rows.
            steps: [N] codes of the steps of all rows of the chunk.
        """
        if block.mask is not None:
            for role in LOG_PROBS[:2]:
                if role in block.values:
                    self._add_jumps(role, block)
        pairs = [pair for pair in LOG_PROB_PAIRS if {*pair} <= block.values.keys()]
        codes = steps[block.places]
        present = np.unique(codes)
        several = 1 < len(present) <= MOST_STEPS
        for step in present.tolist() if pairs else ():
            rows = np.flatnonzero(codes == step) if several else np.arange(len(codes))
            tokens, ends = _tokens_of(_first_rows(rows, block.offsets), block.offsets)
            if len(tokens) > 1:
                inner = np.ones(len(tokens) - 1)
                inner[ends[:-1]] = 0  # the last token of a response has no right neighbour
                for pair in pairs:
                    column, other = (block.values[x][tokens].astype(np.float64) for x in pair)
                    by_step = self.lags.setdefault(pair, {})
                    code = step if len(present) <= MOST_STEPS else -1
                    by_step[code] = by_step.get(code, _NONE) + _lag_sums(column, other, inner)
            if not several:
                return

    def _add_jumps(self, role: str, block: Block) -> None:
        """Add, by lag, the jumps of log-probs at edges of the mask, and their squares."""
        mask, values = block.mask, block.values[role]
        assert mask is not None
        edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
        row = np.searchsorted(block.offsets, edges, side="right") - 1
        inside = (edges - 2 >= block.offsets[row]) & (edges + 1 < block.offsets[row + 1])
        # Where both sides are 0, observations have no log-prob and the policy is certain: no jump.
        edges = edges[inside & (np.minimum(values[edges], values[edges - 1]) < -LOG_PROB_ROUNDING)]
        # The other column may lie on the mask; then the two are compared with each other, not here.
        observed, policy = edges - mask[edges].astype(bool), edges - ~mask[edges].astype(bool)
        for other in {*LOG_PROBS[:2]} & block.values.keys() - {role}:
            lies = (block.values[other][observed] == 0) & (block.values[other][policy] < 0)
            edges, observed, policy = edges[~lies], observed[~lies], policy[~lies]
        sign = np.where(mask[edges], -1.0, 1.0)
        near = [values[edges + step].astype(np.float64) for step in range(-2, 2)]
        jumps = np.stack([sign * (near[lag + 2] - near[lag + 1]) for lag in LAGS])
        jumps = jumps[:, np.isfinite(jumps).all(0)]
        sums = np.array([jumps.shape[1], *jumps.sum(1), *(jumps**2).sum(1)], np.float64)
        self.jumps[role] = self.jumps.get(role, _NONE) + sums

    def by_step(self, pair: tuple[str, str], steps: Mapping[Any, int]) -> dict[Label, Shift]:
        """Return the best lag of two columns in each step that has such tokens.

        Args:
            pair: their roles.
            steps: the code of each step.
        """
        sums = self.lags.get(pair, {})
        shifts = {x: _best_lag(pair, sums[code]) for x, code in steps.items() if code in sums}
        return {x: shift for x, shift in shifts.items() if x is not None and shift is not None}

    def shifts(self) -> list[Shift]:
        """Return the best lag of each pair of columns, and of the mask against log-probs.

        Jumps are in standard errors; the lag with the largest mean jump is the best one.
        """
        best = [_best_lag(pair, sum(sums.values())) for pair, sums in self.lags.items()]
        shifts = [shift for shift in best if shift is not None]
        for role, (count, *sums) in self.jumps.items():
            if not count:
                continue
            mean, square = np.array(sums).reshape(2, -1) / count
            sizes = np.abs(mean) / (np.maximum(square - mean * mean, 1e-12) / count) ** 0.5
            by_lag = dict(zip(LAGS, sizes.tolist(), strict=True))
            lag = max(LAGS, key=lambda lag: (by_lag[lag], -abs(lag)))
            shifts.append(Shift(("mask", role), lag, by_lag[0], by_lag[lag], int(count)))
        return shifts


def _best_lag(pair: tuple[str, str], sums: Any) -> Shift | None:
    """Return the lag with the least mean |difference|; of equal lags the one closest to 0."""
    *by_lag, tokens = sums.tolist()
    if not tokens:
        return None
    means = {lag: total / tokens for lag, total in zip(LAGS, by_lag, strict=True)}
    best = min(LAGS, key=lambda lag: (means[lag], abs(lag)))
    return Shift(pair, best, means[0], means[best], int(tokens))


def _lag_sums(column: Floats, other: Floats, inner: Floats) -> Floats:
    """Return Σ |column[t] - other[t + lag]| by lag, over the same pairs, and their number.

    Each difference counts at most MOST_NATS, so that a few outliers are no shift.

    Args:
        column: [T]
        other: [T]
        inner: [T - 1], 1 if the token and its right neighbour are of one response.
    """
    finite = np.isfinite(column) & np.isfinite(other)
    if not finite.all():
        inner = inner * (finite[1:] & finite[:-1])
        column, other = np.where(finite, column, 0.0), np.where(finite, other, 0.0)
    sides = (column[1:], other[:-1]), (column[:-1], other[:-1]), (column[:-1], other[1:])
    sums = [np.minimum(np.abs(left - right), MOST_NATS) @ inner for left, right in sides]
    return np.array([*sums, inner.sum()])


def _first_rows(rows: Integers, offsets: Integers) -> Integers:
    """Return the first rows that have TOKENS_OF_STEP tokens together; at least one row."""
    tokens = np.cumsum(offsets[rows + 1] - offsets[rows])
    return rows[: max(1, int(np.searchsorted(tokens, TOKENS_OF_STEP, side="right")))]


def _tokens_of(rows: Integers, offsets: Integers) -> tuple[Integers, Integers]:
    """Return the indices of these rows' tokens, [t], and among them those that end a row."""
    lengths = offsets[rows + 1] - offsets[rows]
    rows, lengths = rows[lengths > 0], lengths[lengths > 0]
    most = min(int(lengths.sum()), 2 * TOKENS_OF_STEP)  # a single long response is cut
    starts = np.repeat(offsets[rows] - np.cumsum(lengths) + lengths, lengths)
    ends = np.cumsum(lengths) - 1
    return (starts + np.arange(len(starts)))[:most], np.append(ends[ends < most - 1], most - 1)


# For the whole input.


def mask_facts(rows: pl.DataFrame, column: str, other: float | None) -> MaskFacts | None:
    """Return the statistics of the mask; None without rows.

    Args:
        rows: of a PassResult.
        column: the mask.
        other: a value that is neither 0 nor 1.
    """
    if not len(rows):
        return None
    length, tokens = rows["length"], rows["tokens"]
    count = int(length.sum())
    return MaskFacts(
        column=column,
        observation_share=1 - int(tokens.sum()) / count if count else 0.0,
        leading=int(rows["leading"].sum()),
        trailing=int(rows["trailing"].sum()),
        empty=int((tokens == 0).sum()),
        not_binary=int(rows["not_binary"].sum()),
        other_value=other,
        equal_lengths=length.min() == length.max(),
    )
