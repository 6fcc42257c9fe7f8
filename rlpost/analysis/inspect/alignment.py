"""Masks, padding at the ends of lists, and columns that are offset by one token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.inspect.model import Shift
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS, LOG_PROBS
from rlpost.kernels.mismatch import LAGS, codes_of, differences_by_shift
from rlpost.kernels.segments import count_true
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.tokens import Block
    from rlpost.kernels.moments import Floats, Integers

    Rows = dict[str, NDArray[Any]]


_NONE: Any = 0.0


def mask_rows(block: Block) -> Rows:
    """Return policy tokens, and whether the ends are masked, [n] each."""
    lengths = np.diff(block.offsets)
    if block.mask is None:
        none = np.zeros(len(block), np.bool_)
        return {"tokens": lengths.astype(np.int32), "leading": none, "trailing": none}
    filled = lengths > 0
    first = block.offsets[:-1][filled]
    leading, trailing = np.zeros(len(block), np.bool_), np.zeros(len(block), np.bool_)
    leading[filled] = ~block.mask[first]
    trailing[filled] = ~block.mask[block.offsets[1:][filled] - 1]
    return {
        "tokens": count_true(block.mask, block.offsets).astype(np.int32),
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
        left, padded = np.zeros((2, len(block)), np.int64)
        ends = filled.copy()
        ends[filled] = zero[0] | zero[1]
        if ends.any():
            left[ends], padded[ends] = _zeros_at_ends(values, block.offsets, ends)
        shifted = np.zeros(len(block), np.bool_)
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


class MaskJumps:
    """Jumps of log-probs at the edges of the mask, which show an offset between the two.

    Policy tokens are likelier than observations, so log-probs jump at an edge; at another lag there
    is no jump.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Floats] = {}
        """By role: tokens, and by lag the jumps and their squares."""

    def add(self, block: Block) -> None:
        """Add the tokens of a chunk."""
        for role in LOG_PROBS[:2] if block.mask is not None else ():
            if role in block.values:
                self._add_jumps(role, block)

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
        self.sums[role] = self.sums.get(role, _NONE) + sums

    def shifts(self) -> list[Shift]:
        """Return the lag with the largest mean jump of each column, in standard errors."""
        shifts = []
        for role, (count, *sums) in self.sums.items():
            if not count:
                continue
            mean, square = np.array(sums).reshape(2, -1) / count
            sizes = np.abs(mean) / (np.maximum(square - mean * mean, 1e-12) / count) ** 0.5
            by_lag = dict(zip(LAGS, sizes.tolist(), strict=True))
            lag = max(LAGS, key=lambda lag: (by_lag[lag], -abs(lag)))
            shifts.append(Shift(("mask", role), lag, by_lag[0], by_lag[lag], int(count)))
        return shifts


def best_lag(pair: tuple[str, str], left: Floats, right: Floats, window: Integers) -> Shift | None:
    """Return the lag with the least mean |difference|, of equal ones the one closest to 0.

    Log-probs of two policies are close for the same token. None of too few tokens.

    Args:
        pair: the roles of the columns.
        left: [t] in order within windows of neighbours.
        right: [t].
        window: [t] codes of the windows.
    """
    finite = np.isfinite(left) & np.isfinite(right)
    codes = codes_of(window[finite])
    tokens = int((np.bincount(codes) - 2).clip(0).sum())  # with a neighbour on each side
    if not tokens:
        return None
    estimates = differences_by_shift(left[finite], right[finite], codes)
    means = {lag: estimate.value for lag, estimate in estimates.items()}
    best = min(LAGS, key=lambda lag: (means[lag], abs(lag)))
    return Shift(pair, best, means[0], means[best], tokens)
