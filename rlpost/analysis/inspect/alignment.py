"""Masks, padding at the ends of lists, and columns that are offset by one token.

Offsets are also measured within single steps: a trainer may misalign lists from some step on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import MaskFacts, Shift
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS, LOG_PROBS
from rlpost.analysis.segments import segment_sums
from rlpost.io.keys import KeyColumn
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import Block
    from rlpost.analysis.inspect.model import Label
    from rlpost.analysis.inspect.selection import PassResult
    from rlpost.analysis.inspect.statistics import TokenTotals

    Rows = dict[str, NDArray[Any]]


SAMPLED = 32  # one of so many tokens of a chunk is compared with its neighbours,
LEAST_SAMPLED = 1 << 13  # but all tokens of a small chunk
TOKENS_OF_STEP = 1 << 13  # that are compared in each step of a chunk, in whole responses
MOST_STEPS = 64  # in a chunk; with more steps, they are not compared one by one
LAGS = (-1, 0, 1)
MOST_NATS = 5.0  # that one token may differ
ENDS = ("padded", "left", "shifted")


# For each chunk.


def mask_rows(block: Block) -> Rows:
    """Return policy tokens, runs of them, and whether the ends are masked, [n] each."""
    lengths = np.diff(block.offsets)
    if block.mask is None:
        none = np.zeros(block.rows, np.bool_)
        runs = (lengths > 0).astype(np.int32)
        return {"tokens": lengths, "runs": runs, "leading": none, "trailing": none}
    starts = block.mask.copy()
    starts[1:] &= ~block.mask[:-1]
    filled = lengths > 0
    first = block.offsets[:-1][filled]
    starts[first] = block.mask[first]
    leading, trailing = np.zeros(block.rows, np.bool_), np.zeros(block.rows, np.bool_)
    leading[filled] = ~block.mask[first]
    trailing[filled] = ~block.mask[block.offsets[1:][filled] - 1]
    return {
        "tokens": segment_sums(block.mask.astype(np.int64), block.offsets).astype(np.int64),
        "runs": segment_sums(starts.astype(np.int32), block.offsets).astype(np.int32),
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
        left, padded = _zeros_at_ends(values, block.offsets, any_zero=bool(np.any(zero)))
        shifted = np.zeros(block.rows, np.bool_)
        shifted[filled] = (np.stack(zero) & ~masked & uncertain).any(0)
        for runs, hidden in ((left, masked[0]), (padded, masked[1])):
            runs[filled] *= (runs[filled] > 1) | hidden
        rows |= {f"padded:{role}": padded, f"left:{role}": left, f"shifted:{role}": shifted}
    return rows


def _certain(block: Block, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
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
    values: NDArray[Any], offsets: NDArray[np.int64], *, any_zero: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many zeros each response begins and ends with, [n]; no search if none does."""
    lengths = np.diff(offsets)
    if not any_zero:
        return np.zeros_like(lengths), np.zeros_like(lengths)
    others = np.append(np.flatnonzero(values), 0)
    after = np.searchsorted(others[:-1], offsets)
    some = after[1:] > after[:-1]
    starts = np.where(some, others[after[:-1]] - offsets[:-1], lengths)
    ends = np.where(some, offsets[1:] - 1 - others[after[1:] - 1], lengths)
    return starts, ends


def add_shifts(block: Block, totals: TokenTotals) -> None:
    """Measure offsets between two columns of log-probs, and between the mask and a column.

    Log-probs of two policies are close for the same token, so the mean |difference| is least at
    the lag at which two columns match. At an edge of the mask, log-probs jump: policy tokens are
    likelier than observations. At another lag there is no jump.
    """
    if block.mask is not None:
        for role in LOG_PROBS[:2]:
            if role in block.values:
                _add_jumps(role, block, totals)
    tokens = int(block.offsets[-1])
    count = min(tokens, max(tokens // SAMPLED, LEAST_SAMPLED))
    if count > 1:
        inner = np.ones(count - 1)
        ends = block.offsets[1:] - 1  # the last token of a response has no right neighbour
        inner[ends[(ends >= 0) & (ends < count - 1)]] = 0
        for pair in LOG_PROB_PAIRS:
            if {*pair} <= block.values.keys():
                name = "/".join(pair)
                one, other = (block.values[role][:count].astype(np.float64) for role in pair)
                for key, value in _lag_sums(one, other, inner).items():
                    totals.add(f"lag.{name}.{key}", value)


def _lag_sums(
    one: NDArray[np.float64], other: NDArray[np.float64], inner: NDArray[np.float64]
) -> dict[int | str, float]:
    """Return Σ |one[t] - other[t + lag]| by lag, over the same pairs of neighbours, and `tokens`.

    Each difference counts at most MOST_NATS, so that a few outliers are no shift.

    Args:
        one: [T]
        other: [T]
        inner: [T - 1], 1 if the token and its right neighbour are of one response.
    """
    finite = np.isfinite(one) & np.isfinite(other)
    if not finite.all():
        inner = inner * (finite[1:] & finite[:-1])
        one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    sides = {-1: (one[1:], other[:-1]), 0: (one[:-1], other[:-1]), 1: (one[:-1], other[1:])}
    sums: dict[int | str, float] = {
        lag: float(np.einsum("i,i", np.minimum(np.abs(left - right), MOST_NATS), inner))
        for lag, (left, right) in sides.items()
    }
    return sums | {"tokens": float(inner.sum())}


def _add_jumps(role: str, block: Block, totals: TokenTotals) -> None:
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
    if not len(edges):
        return
    sign = np.where(mask[edges], -1.0, 1.0)
    near = [values[edges + step].astype(np.float64) for step in range(-2, 2)]
    jumps = np.stack([sign * (near[lag + 2] - near[lag + 1]) for lag in LAGS])
    jumps = jumps[:, np.isfinite(jumps).all(0)]
    totals.add(f"jump.{role}.tokens", jumps.shape[1])
    for lag, one in zip(LAGS, jumps, strict=True):
        totals.add(f"jump.{role}.{lag}", one.sum())
        totals.add(f"jump.{role}.{lag}.squares", np.einsum("i,i", one, one))


def add_step_shifts(block: Block, steps: pl.Series, totals: TokenTotals) -> None:
    """Measure offsets between columns of log-probs within each step.

    Args:
        block: tokens of n responses.
        steps: [n]; null for a response without a step.
        totals: gets, by step, the sums `PAIR.LAG` and the count `PAIR.tokens`.
    """
    pairs = [pair for pair in LOG_PROB_PAIRS if {*pair} <= block.values.keys()]
    keys = KeyColumn.of([steps.to_arrow(compat_level=pl.CompatLevel.oldest())])
    labels = keys.labels.drop_null().to_pylist()
    if not pairs or len(labels) > MOST_STEPS:
        return
    for code, step in enumerate(labels):
        rows = np.flatnonzero(keys.codes == code)
        tokens, ends = _tokens_of(_first_rows(rows, block.offsets), block.offsets)
        if len(tokens) < 2:  # noqa: PLR2004 - no neighbours
            continue
        inner = np.ones(len(tokens) - 1)
        inner[ends[:-1]] = 0  # the last token of a response has no right neighbour
        for pair in pairs:
            one, other = (block.values[role][tokens].astype(np.float64) for role in pair)
            for key, value in _lag_sums(one, other, inner).items():
                totals.add_of_step(step, f"{'/'.join(pair)}.{key}", value)


def _first_rows(rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first rows that have TOKENS_OF_STEP tokens together; at least one row."""
    tokens = np.cumsum(offsets[rows + 1] - offsets[rows])
    return rows[: max(1, int(np.searchsorted(tokens, TOKENS_OF_STEP, side="right")))]


def _tokens_of(
    rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of these rows' tokens, [t], and among them those that end a row."""
    lengths = offsets[rows + 1] - offsets[rows]
    rows, lengths = rows[lengths > 0], lengths[lengths > 0]
    most = min(int(lengths.sum()), 2 * TOKENS_OF_STEP)  # a single long response is cut
    starts = np.repeat(offsets[rows] - np.cumsum(lengths) + lengths, lengths)
    ends = np.cumsum(lengths) - 1
    return (starts + np.arange(len(starts)))[:most], np.append(ends[ends < most - 1], most - 1)


# For the whole input.


def mask_facts(reading: PassResult) -> MaskFacts | None:
    """Return the statistics of the mask; None without a mask."""
    rows = reading.rows
    if reading.selection.lists != "mask" or not len(rows):
        return None
    length, tokens = rows["length"], rows["tokens"]
    count = int(length.sum())
    return MaskFacts(
        column=reading.selection.columns.column("mask"),
        observation_share=1 - int(tokens.sum()) / count if count else 0.0,
        with_observations=int((tokens < length).sum()),
        gaps=int((rows["runs"] > 1).sum()),
        leading=int(rows["leading"].sum()),
        trailing=int(rows["trailing"].sum()),
        empty=int((tokens == 0).sum()),
        not_binary=int(rows["not_binary"].sum()),
        other_value=reading.totals.highs.get("mask.other"),
        equal_lengths=length.min() == length.max(),
    )


def shifts_of(reading: PassResult, pairs: Sequence[tuple[str, str]]) -> list[Shift]:
    """Return the best lag of each pair of columns, and of the mask against log-probs."""
    totals, shifts = reading.totals, []
    for pair in pairs:
        name = f"lag.{'/'.join(pair)}"
        sums = {lag: totals.total(f"{name}.{lag}") for lag in LAGS}
        shift = _best_lag(pair, sums, totals.count(f"{name}.tokens"))
        if shift is not None:
            shifts.append(shift)
    return [*shifts, *_mask_shifts(reading)]


def step_lags(totals: TokenTotals, pair: tuple[str, str]) -> dict[Label, Shift]:
    """Return the best lag of two columns of log-probs in each step with such tokens."""
    shifts, name = {}, "/".join(pair)
    for step, sums in totals.steps.items():
        by_lag = {lag: sums.get(f"{name}.{lag}", 0.0) for lag in LAGS}
        shift = _best_lag(pair, by_lag, int(sums.get(f"{name}.tokens", 0.0)))
        if shift is not None:
            shifts[step] = shift
    return shifts


def _best_lag(pair: tuple[str, str], sums: Mapping[int, float], tokens: int) -> Shift | None:
    """Return the lag with the least mean |difference|; of equal lags the one closest to 0."""
    if not tokens:
        return None
    means = {lag: sums[lag] / tokens for lag in LAGS}
    best = min(LAGS, key=lambda lag: (means[lag], abs(lag)))
    return Shift(pair, best, means[0], means[best], tokens)


def _mask_shifts(reading: PassResult) -> list[Shift]:
    """Return, for log-probs against the mask, the lag with the largest mean jump.

    Jumps are in standard errors.
    """
    totals, shifts = reading.totals, []
    for role in LOG_PROBS[:2]:
        count = totals.count(f"jump.{role}.tokens")
        if role not in reading.selection.tokens or not count:
            continue
        sizes = {}
        for lag in LAGS:
            mean = totals.total(f"jump.{role}.{lag}") / count
            square = totals.total(f"jump.{role}.{lag}.squares") / count
            error = (max(square - mean * mean, 1e-12) / count) ** 0.5
            sizes[lag] = abs(mean) / error
        best = max(LAGS, key=lambda lag: (sizes[lag], -abs(lag)))
        shifts.append(Shift(("mask", role), best, sizes[0], sizes[best], count))
    return shifts
