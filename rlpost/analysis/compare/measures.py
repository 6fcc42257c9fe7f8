"""Measures of two columns of the same responses, and their statistics by step and domain."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.difference import ColumnChunk, finite
from rlpost.analysis.segments import kept_offsets
from rlpost.io.keys import KeyColumn, step_order
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.moments import token_moments
from rlpost.kernels.segments import count_true, segment_max, segment_min

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    Numbers = NDArray[Any]

Json = dict[str, Any]


class SetSums(NamedTuple):
    """Sums of sets of numbers, [k] each."""

    number: Numbers
    total: Numbers
    squares: Numbers | None = None
    """Of the deviations from the mean of each set; None for a measure of yes or no."""
    low: Numbers | None = None
    high: Numbers | None = None

    @classmethod
    def of(cls, values: Numbers, offsets: Codes) -> SetSums:
        """Return the sums of values[offsets[i]:offsets[i + 1]]."""
        low, high = segment_min(values, offsets), segment_max(values, offsets)
        return cls(*token_moments(values, None, offsets), low, high)

    @classmethod
    def joined(cls, parts: Sequence[SetSums]) -> SetSums:
        """Return the sums of all sets of some parts."""
        columns = zip(*parts, strict=True)
        return cls(*(np.concatenate(column) for column in columns if column[0] is not None))

    def pooled(self, codes: Codes, count: int) -> SetSums:
        """Return the sums of the sets of each code, [count]; squares by Chan, Golub, LeVeque."""
        number, total = (np.bincount(codes, sums, count) for sums in self[:2])
        if self.squares is None or self.low is None or self.high is None:
            return SetSums(number, total)
        apart = self.total / self.number.clip(1) - (total / number.clip(1))[codes]
        squares = np.bincount(codes, self.squares + self.number * apart**2, count)
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, codes, self.low)
        np.maximum.at(high, codes, self.high)
        return SetSums(number, total, squares, low, high)

    def facts(self) -> dict[str, list[Any]]:
        """Return count, mean, standard deviation (Bessel), min and max; of yes or no the total."""
        some, number = self.number > 0, self.number.clip(1)
        mean = [*map(finite, np.where(some, self.total / number, np.nan))]
        facts: dict[str, list[Any]] = {"count": self.number.astype(np.int64).tolist()}
        if self.squares is None or self.low is None or self.high is None:
            return facts | {"total": self.total.astype(np.int64).tolist(), "mean": mean}
        std = np.where(some, np.sqrt(self.squares / (self.number - 1).clip(1)), np.nan)
        parts = {"std": std, "min": self.low, "max": self.high}
        return facts | {"mean": mean, **{name: [*map(finite, x)] for name, x in parts.items()}}


def side_measures(values: Numbers, offsets: Codes) -> dict[str, SetSums]:
    """Return measures of the numbers of each response, [n] each."""
    count = np.diff(offsets)
    return {
        "advantage": SetSums.of(values, offsets),
        "advantage_zero": SetSums(count, count_true(values == 0, offsets)),
    }


def pair_measures(left: Numbers, right: Numbers, offsets: Codes) -> dict[str, SetSums]:
    """Return measures of the differences of each response, [n] each.

    Numbers that are 0 on both sides count in no measure of signs.

    Args:
        left: [T] finite numbers.
        right: [T] those beside them.
        offsets: [n+1] of the responses.
    """
    distance, products = np.abs(left - right), left * right
    signed = count_true((left != 0) | (right != 0), offsets)
    return {
        "difference": SetSums.of(distance, offsets),
        "equal": SetSums(np.diff(offsets), count_true(distance == 0, offsets)),
        "same_sign": SetSums(signed, count_true(products > 0, offsets)),
        "opposite_sign": SetSums(signed, count_true(products < 0, offsets)),
    }


class Products(NamedTuple):
    """Sums of pairs of numbers; squares and products are of deviations from their means."""

    number: int
    left: float
    right: float
    left_squares: float
    right_squares: float
    products: float

    @classmethod
    def of(cls, left: Numbers, right: Numbers) -> Products:
        """Return the sums of [n] finite numbers each."""
        count, sums = len(left), (float(left.sum()), float(right.sum()))
        x, y = (
            side - total / max(count, 1) for side, total in zip((left, right), sums, strict=True)
        )
        pairs = ((x, x), (y, y), (x, y))
        return cls(count, *sums, *(float(np.einsum("i,i", *pair)) for pair in pairs))


def pearson(parts: Sequence[Products]) -> float | None:
    """Return Pearson's correlation of all pairs; None if there is none, or a side is constant."""
    if not parts:
        return None
    count, left, right, left_squares, right_squares, products = np.array(parts).T
    x, y = (total / count.clip(1) - total.sum() / max(count.sum(), 1) for total in (left, right))
    squares = (left_squares + count * x**2).sum() * (right_squares + count * y**2).sum()
    if not squares > 0:
        return None
    return max(-1.0, min(1.0, float((products + count * x * y).sum() / np.sqrt(squares))))


def spearman(left: Numbers, right: Numbers) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for ties; None as for Pearson's."""
    both = np.isfinite(left) & np.isfinite(right)
    return pearson([Products.of(ranks(left[both]), ranks(right[both]))])


def ranks(values: Numbers) -> Numbers:
    """Return ranks from 1, [n]; equal numbers get the mean of their ranks."""
    _, positions, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[positions], dtype=np.float64)


@dataclass(frozen=True)
class Cells:
    """The pairs of step and domain of responses."""

    codes: Codes
    """[n] the pair of each response."""
    slices: dict[str, tuple[list[Any], Codes]]
    """By `step` and `domain`, as far as there are such keys: labels, and the label of each pair."""

    @classmethod
    def of(cls, keys: dict[str, pa.ChunkedArray], rows: Codes) -> Cells:
        """Return the pairs of some rows of columns of keys, by role."""
        labels, codes = {}, [np.zeros(len(rows), np.int64)]
        for name, role in (("step", "batch"), ("domain", "domain")):
            if role in keys:
                column = KeyColumn.of(keys[role].take(rows).chunks)
                texts = column.labels.to_pylist()
                order = step_order(texts) if name == "step" else [*range(len(texts))]
                labels[name] = [texts[code] for code in order]
                codes.append(np.argsort(order)[column.codes])
        joint = joint_codes(*codes)
        _, first = np.unique(joint, return_index=True)
        pairs = zip(labels.items(), codes[1:], strict=True)
        return cls(joint, {name: (texts, own[first]) for (name, texts), own in pairs})

    def facts(self, population: str, cells: Codes, moments: SetSums) -> Json:
        """Return the statistics of a measure, of all and by step and domain.

        Args:
            population: what it counts.
            cells: [k] the pair of each set of numbers.
            moments: [k].
        """
        whole = moments.pooled(np.zeros_like(cells), 1).facts()
        facts = {"of": population, "all": {name: values[0] for name, values in whole.items()}}
        for name, (labels, codes) in self.slices.items():
            by = moments.pooled(codes[cells], len(labels)).facts()
            facts[name] = {"label": labels, **by}
        return facts


@dataclass
class RowMeasures:
    """Measures of some rows of all sides."""

    measures: dict[str, tuple[Codes, SetSums]] = field(default_factory=dict)
    """The cells that occur, and the sums of each."""
    products: dict[tuple[int, int], Products] = field(default_factory=dict)
    means: list[Numbers] = field(default_factory=list)
    """Of each side, those of responses."""
    unequal: int = 0
    """Rows whose lists differ in length, which count for responses and not for tokens."""


def measured(
    columns: Sequence[ColumnChunk],
    kept: Sequence[Mask],
    cells: Codes,
    names: Sequence[str],
    prefix: str = "",
    *,
    of_sides: bool = True,
) -> RowMeasures:
    """Return measures of the columns of sides and of each pair.

    Args:
        columns: of each side.
        kept: the numbers of each that count.
        cells: [n] of the rows.
        names: of the sides.
        prefix: of the names of measures of pairs.
        of_sides: whether there are measures of each side.
    """
    part, (occurring, codes) = RowMeasures(), np.unique(cells, return_inverse=True)

    def add(measures: dict[str, SetSums], of: str) -> None:
        for name, moments in measures.items():
            part.measures[f"{name}:{of}"] = occurring, moments.pooled(codes, len(occurring))

    if of_sides:
        for name, keep, column in zip(names, kept, columns, strict=True):
            (values,), offsets = _where(keep, column.offsets, column.values)
            add(side_measures(values, offsets), name)
    same = np.logical_and.reduce([column.lengths == columns[0].lengths for column in columns])
    if not same.all():
        part.unequal = int((~same).sum())
        inside = [np.repeat(same, column.lengths) for column in columns]
        columns = [
            ColumnChunk(column.lengths * same, column.values[rows])
            for column, rows in zip(columns, inside, strict=True)
        ]
        kept = [keep[rows] for keep, rows in zip(kept, inside, strict=True)]
    for i, j in combinations(range(len(columns)), 2):
        left, right = columns[i], columns[j]
        (x, y), offsets = _where(kept[i] & kept[j], left.offsets, left.values, right.values)
        measures = pair_measures(x, y, offsets)
        add(
            {f"{prefix}{name}": moments for name, moments in measures.items()},
            f"{names[i]}:{names[j]}",
        )
        part.products[i, j] = Products.of(x, y)
    return part


def _where(keep: Mask, offsets: Codes, *columns: Numbers) -> tuple[Sequence[Numbers], Codes]:
    """Return columns and offsets of some numbers alone; all of them are not copied."""
    if keep.all():
        return columns, offsets
    return [column[keep] for column in columns], kept_offsets(keep, offsets)


def facts_of(parts: Sequence[RowMeasures], cells: Cells, population: Callable[[str], str]) -> Json:
    """Return the statistics of all measures of some parts, by name.

    Args:
        parts: of all rows.
        cells: of the same rows.
        population: returns what a measure counts.
    """
    tables: dict[str, list[tuple[Codes, SetSums]]] = defaultdict(list)
    for part in parts:
        for name, table in part.measures.items():
            tables[name].append(table)
    return {
        name: cells.facts(
            population(name),
            np.concatenate([codes for codes, _ in tables[name]]),
            SetSums.joined([moments for _, moments in tables[name]]),
        )
        for name in tables
    }
