"""Measures of two columns of the same responses, and their statistics by step and domain."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlpost.analysis.difference import ColumnChunk, finite
from rlpost.analysis.segments import kept_offsets
from rlpost.io.keys import KeyColumn, step_order
from rlpost.kernels.moments import token_moments
from rlpost.kernels.segments import count_true, segment_max, segment_min

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def co_moments(left: Numbers, right: Numbers) -> Numbers:
    """Return [6]: number, means, sums of squared deviations and of their products."""
    if not len(left):
        return np.zeros(6)
    means = left.mean(), right.mean()
    x, y = left - means[0], right - means[1]
    products = [np.einsum("i,i", *pair) for pair in ((x, x), (y, y), (x, y))]
    return np.array([len(left), *means, *products])


def pearson(parts: Sequence[Numbers]) -> float | None:
    """Return Pearson's correlation of all pairs of parts, of `co_moments`; None if it has none."""
    if not parts:
        return None
    number, left, right, *sums = np.array(parts).T
    x, y = (means - (number * means).sum() / max(number.sum(), 1) for means in (left, right))
    within = zip(sums, (x * x, y * y, x * y), strict=True)
    left_squares, right_squares, products = (float((own + number * z).sum()) for own, z in within)
    spread = (left_squares * right_squares) ** 0.5
    return max(-1.0, min(1.0, products / spread)) if spread > 0 else None


def spearman(left: Numbers, right: Numbers) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for ties; None as for Pearson's."""
    both = np.isfinite(left) & np.isfinite(right)
    return pearson([co_moments(ranks(left[both]), ranks(right[both]))])


def ranks(values: Numbers) -> Numbers:
    """Return ranks from 1, [n]; equal numbers get the mean of their ranks."""
    _, positions, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[positions], dtype=np.float64)


Slices = dict[str, tuple[list[Any], "Codes"]]
"""By `all`, `step` and `domain`, as far as there are such keys: labels, and [n] codes of rows."""


def slices_of(keys: dict[str, pa.ChunkedArray], rows: Codes) -> Slices:
    """Return the slices of some rows of columns of keys, by role."""
    slices: Slices = {"all": ([None], np.zeros(len(rows), np.int64))}
    for name, role in (("step", "batch"), ("domain", "domain")):
        if role in keys:
            column = KeyColumn.of(keys[role].take(rows).chunks)
            labels = column.labels.to_pylist()
            order = step_order(labels) if name == "step" else [*range(len(labels))]
            slices[name] = [labels[code] for code in order], np.argsort(order)[column.codes]
    return slices


@dataclass
class RowMeasures:
    """Measures of some rows of all sides."""

    measures: dict[tuple[str, str], SetSums] = field(default_factory=dict)
    """By name and slice: the sums of each label."""
    products: dict[tuple[int, int], Numbers] = field(default_factory=dict)
    """Of each pair, `co_moments`."""
    means: list[Numbers] = field(default_factory=list)
    """Of each side, those of responses."""
    unequal: int = 0
    """Rows whose lists differ in length, which count for responses and not for tokens."""


def measured(
    columns: Sequence[ColumnChunk],
    kept: Sequence[Mask],
    slices: Slices,
    names: Sequence[str],
    prefix: str = "",
    *,
    of_sides: bool = True,
) -> RowMeasures:
    """Return measures of the columns of sides and of each pair.

    Args:
        columns: of each side.
        kept: the numbers of each that count.
        slices: of the rows.
        names: of the sides.
        prefix: of the names of measures of pairs.
        of_sides: whether there are measures of each side.
    """
    rows = RowMeasures()

    def add(measures: dict[str, SetSums], prefix: str, of: str) -> None:
        for name, sums in measures.items():
            for by, (labels, codes) in slices.items():
                rows.measures[f"{prefix}{name}:{of}", by] = sums.pooled(codes, len(labels))

    packed = [_where(keep, c.offsets, c.values) for keep, c in zip(kept, columns, strict=True)]
    for name, ((values,), offsets) in zip(names, packed, strict=True):
        sums = SetSums.of(values, offsets)
        rows.means.append(np.where(sums.number > 0, sums.total / sums.number.clip(1), np.nan))
        if of_sides:
            zeros = SetSums(sums.number, count_true(values == 0, offsets))
            add({"advantage": sums, "advantage_zero": zeros}, "", name)
    same = np.logical_and.reduce([column.lengths == columns[0].lengths for column in columns])
    if not same.all():
        rows.unequal = int((~same).sum())
        inside = [np.repeat(same, column.lengths) for column in columns]
        columns = [
            ColumnChunk(column.lengths * same, column.values[where])
            for column, where in zip(columns, inside, strict=True)
        ]
        kept = [keep[where] for keep, where in zip(kept, inside, strict=True)]
    for i, j in combinations(range(len(columns)), 2):
        left, right = columns[i], columns[j]
        if rows.unequal or not np.array_equal(kept[i], kept[j]):
            (x, y), offsets = _where(kept[i] & kept[j], left.offsets, left.values, right.values)
        else:
            (x,), offsets = packed[i]
            (y,), _ = packed[j]
        add(pair_measures(x, y, offsets), prefix, f"{names[i]}:{names[j]}")
        rows.products[i, j] = co_moments(x, y)
    return rows


def _where(keep: Mask, offsets: Codes, *columns: Numbers) -> tuple[Sequence[Numbers], Codes]:
    """Return columns and offsets of some numbers alone; all of them are not copied."""
    if keep.all():
        return columns, offsets
    return [column[keep] for column in columns], kept_offsets(keep, offsets)


def facts_of(parts: Sequence[RowMeasures], slices: Slices, populations: dict[str, str]) -> Json:
    """Return the statistics of all measures of some parts, by name, `all` and each slice.

    Args:
        parts: of all rows.
        slices: of the same rows.
        populations: what measures count, by the first words of their names.
    """
    facts: Json = {}
    for name, by in dict.fromkeys(key for part in parts for key in part.measures):
        sets = [part.measures[name, by] for part in parts if (name, by) in part.measures]
        labels = slices[by][0]
        codes = np.tile(np.arange(len(labels)), len(sets))
        columns = SetSums.joined(sets).pooled(codes, len(labels)).facts()
        if by == "all":
            of = next(text for start, text in populations.items() if name.startswith(start))
            facts[name] = {"of": of, by: {part: values[0] for part, values in columns.items()}}
        else:
            facts[name][by] = {"label": labels, **columns}
    return facts
