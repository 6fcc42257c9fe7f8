"""The comparison itself: two passes at most over each input, memory of a few numbers per row."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.compare import matching, streams
from rlpost.analysis.compare.agreement import Agreement, Signs, Spread, spearman
from rlpost.analysis.responses import columns as lists
from rlpost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.compare.matching import Match, Rows
    from rlpost.analysis.compare.sides import Side
    from rlpost.analysis.compare.streams import Chunk
    from rlpost.io.parquet.source import Source

    Numbers = NDArray[np.float64]


SCHEMA_VERSION = 1
_ROUNDING = 1e-6  # advantages are float32
Json = dict[str, Any]


class _Totals:
    """What the rows of all sides come to, piece by piece."""

    def __init__(self, sides: int) -> None:
        self.pairs = {pair: Agreement(Signs()) for pair in combinations(range(sides), 2)}
        self.spreads = [Spread() for _ in range(sides)]
        self.means: list[list[Numbers]] = [[] for _ in range(sides)]
        self.unequal = 0
        """Rows whose lists differ in length; they count at the level of responses alone."""

    def add(self, columns: Sequence[Chunk], mask: Chunk | None) -> None:
        """Take the same rows of every side, and their mask."""
        beside = None if mask is None else (mask.offsets, mask.values)
        masks = [lists.mask_beside(beside, column.offsets) for column in columns]
        for place, (column, own) in enumerate(zip(columns, masks, strict=True)):
            self.means[place].append(lists.row_means(column.values, column.offsets, own))
            self.spreads[place].add(column.values[own])
        first = columns[0].lengths
        same = np.logical_and.reduce([column.lengths == first for column in columns])
        self.unequal += int((~same).sum())
        tokens = [
            column.values[own & np.repeat(same, column.lengths)]
            for column, own in zip(columns, masks, strict=True)
        ]
        for (left, right), agreement in self.pairs.items():
            agreement.add(tokens[left], tokens[right])


def compare(
    sides: Sequence[Side], inputs: Sequence[Rows], mask: tuple[Source, str] | None, count: int
) -> Json:
    """Compare the advantages of two or more sides.

    Args:
        sides: at least two.
        inputs: the rows of each side's input; one alone where all share it.
        mask: where the mask of the first side's rows is; None: every token counts.
        count: how many of the rows that differ most are listed for each pair.

    Returns:
        `rows` (how they were matched), `sides` (spread of the advantages over policy tokens, clip
        and mask rates) and `pairs`: at the level of responses, whose number is the mean of the
        advantages over policy tokens, Pearson's and Spearman's correlation; over tokens
        Pearson's; at both, signs and differences; and where the two differ most, each side
        divided by its root mean square, so that a different scale alone is no difference.

    Raises:
        DataError: the rows do not match; or as the sides' inputs.
    """
    matched = matching.match(inputs) if len(inputs) > 1 else None
    tally = _Totals(len(sides))
    _run(tally, _columns(sides, inputs, matched, mask), masked=mask is not None)
    means = [np.concatenate(parts) if parts else np.zeros(0) for parts in tally.means]
    rows = matched.rows[0] if matched else np.arange(inputs[0].count)
    if len(means[0]) != len(rows):
        raise DataError(f"{inputs[0].name}: gave {len(means[0])} rows where {len(rows)} were there")
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": _rows_facts(matched, inputs, len(rows), tally),
        "sides": [
            {"name": side.name, "advantage": spread.facts(), "rates": side.rates()}
            for side, spread in zip(sides, tally.spreads, strict=True)
        ],
        "pairs": [
            {
                "left": sides[left].name,
                "right": sides[right].name,
                "responses": {
                    **Agreement.of(means[left], means[right]).facts(),
                    "spearman": spearman(means[left], means[right]),
                },
                "tokens": agreement.facts(),
                "most_different": _most_different(
                    means[left], means[right], rows, inputs[0], count
                ),
            }
            for (left, right), agreement in tally.pairs.items()
        ],
    }


def _columns(
    sides: Sequence[Side],
    inputs: Sequence[Rows],
    matched: Match | None,
    mask: tuple[Source, str] | None,
) -> list[Generator[Chunk]]:
    """The advantages of every side, and last the mask, with the matched rows alone."""
    columns = [side.chunks() for side in sides]
    counts, rows = [one.count for one in inputs], matched.rows if matched else []
    if mask is not None:
        columns.append(streams.read(*mask))
        counts, rows = [*counts, counts[0]], [*rows, *rows[:1]]
    if matched is None:
        return columns
    return [
        streams.chosen(column, own, count)
        for column, own, count in zip(columns, rows, counts, strict=True)
    ]


def _run(tally: _Totals, columns: list[Generator[Chunk]], *, masked: bool) -> None:
    for chunks in streams.aligned(columns):
        tally.add(chunks[:-1] if masked else chunks, chunks[-1] if masked else None)


def _rows_facts(matched: Match | None, inputs: Sequence[Rows], count: int, tally: _Totals) -> Json:
    return {
        "count": count,
        "matched_by": ["position"] if not matched or not matched.by else list(matched.by),
        "by_order_within": bool(matched and matched.ordinal),
        "left_out": {one.name: one.count - count for one in inputs},
        "unequal_lengths": tally.unequal,
    }


def _most_different(
    left: Numbers, right: Numbers, rows: NDArray[np.int64], keys: Rows, count: int
) -> list[Json]:
    """The rows whose scaled advantages are farthest apart; the first of equals first."""
    apart = np.abs(_scaled(left) - _scaled(right))
    known = np.flatnonzero(apart > _ROUNDING)
    order = known[np.argsort(-apart[known], kind="stable")][:count]
    return [
        {
            "row": int(rows[place]),
            "step": keys.label("batch", int(rows[place])),
            "prompt_id": keys.label("group", int(rows[place])),
            "reward": _finite(keys.reward[rows[place]]),
            "left": float(left[place]),
            "right": float(right[place]),
            "scaled_difference": float(apart[place]),
        }
        for place in order.tolist()
    ]


def _scaled(values: Numbers) -> Numbers:
    known = values[np.isfinite(values)]
    size = float(np.sqrt(np.square(known).mean())) if len(known) else 0.0
    return values / size if size else values


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
