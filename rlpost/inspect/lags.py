"""Shifts within single steps: a trainer that misaligns lists may do so from some step on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.inspect.layout import LAGS
from rlpost.inspect.tokens import TWINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.inspect.model import Label
    from rlpost.inspect.tally import Tally
    from rlpost.inspect.tokens import Block

PROBED = 1 << 13  # tokens of each step of a piece that are looked at, whole responses of them
MOST_STEPS = 64  # in a piece; a file of more tiny steps is not told apart


def probe_steps(block: Block, steps: Sequence[Label | None], tally: Tally) -> None:
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
    return chosen[: max(1, int(np.searchsorted(before, PROBED, side="right")))]


def _places(
    rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of these rows' tokens, [t], and where among them each row's last one is."""
    lengths = offsets[rows + 1] - offsets[rows]
    rows, lengths = rows[lengths > 0], lengths[lengths > 0]
    most = min(int(lengths.sum()), 2 * PROBED)  # a single long response is cut
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
    tally: Tally,
) -> None:
    finite = np.isfinite(one) & np.isfinite(other)
    inner = inner * (finite[1:] & finite[:-1])
    one, other = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    sides = {-1: (one[1:], other[:-1]), 0: (one[:-1], other[:-1]), 1: (one[:-1], other[1:])}
    for lag in LAGS:
        left, right = sides[lag]
        tally.add_of_step(step, f"{name}.{lag}", float(np.abs(left - right) @ inner))
    tally.add_of_step(step, f"{name}.tokens", float(inner.sum()))
