"""Measures of two columns of the same responses, and their statistics by step and domain."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.difference import ColumnChunk
from rlpost.io.keys import KeyColumn, step_order
from rlpost.kernels.segments import compact_offsets, count_true
from rlpost.pipeline.measures import Numbers
from rlpost.pipeline.totals import ExactTotals, by_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    Codes = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    Floats = NDArray[Any]

Json = dict[str, Any]


def side_measures(values: Floats, offsets: Codes) -> Numbers:
    """Return the measures of a side.

    A measure has the size of its population under its name and `.count`; a share has no `.total`.
    """
    numbers = Numbers()
    numbers.add_tokens("advantage", values, None, offsets)
    numbers.sums["advantage_zero.count"] = numbers.sums["advantage.count"]
    numbers.sums["advantage_zero"] = count_true(values == 0, offsets)
    return numbers


def pair_measures(left: Floats, right: Floats, offsets: Codes) -> Numbers:
    """Return the measures of the differences of two sides.

    Numbers that are 0 on both sides count in no measure of signs.

    Args:
        left: [T] finite numbers.
        right: [T] those beside them.
        offsets: [n+1] of the responses.
    """
    distance, products = np.abs(left - right), left * right
    signed = count_true((left != 0) | (right != 0), offsets)
    numbers = Numbers()
    numbers.add_tokens("difference", distance, None, offsets)
    shares = {"equal": distance == 0, "same_sign": products > 0, "opposite_sign": products < 0}
    for name, flags in shares.items():
        size = numbers.sums["difference.count"] if name == "equal" else signed
        numbers.sums.update({f"{name}.count": size, name: count_true(flags, offsets)})
    return numbers


def co_moments(left: Floats, right: Floats) -> Floats:
    """Return [6]: number, means, sums of squared deviations and of their products."""
    if not len(left):
        return np.zeros(6)
    means = left.mean(), right.mean()
    x, y = left - means[0], right - means[1]
    products = [np.einsum("i,i", *pair) for pair in ((x, x), (y, y), (x, y))]
    return np.array([len(left), *means, *products])


def pearson(parts: Sequence[Floats]) -> float | None:
    """Return Pearson's correlation of all pairs of parts, of `co_moments`; None if it has none."""
    if not parts:
        return None
    number, left, right, *sums = np.array(parts).T
    x, y = (means - (number * means).sum() / max(number.sum(), 1) for means in (left, right))
    within = zip(sums, (x * x, y * y, x * y), strict=True)
    left_squares, right_squares, products = (float((own + number * z).sum()) for own, z in within)
    spread = (left_squares * right_squares) ** 0.5
    return max(-1.0, min(1.0, products / spread)) if spread > 0 else None


def spearman(left: Floats, right: Floats) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for ties; None as for Pearson's."""
    both = np.isfinite(left) & np.isfinite(right)
    return pearson([co_moments(ranks(left[both]), ranks(right[both]))])


def ranks(values: Floats) -> Floats:
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

    totals: dict[tuple[str, str, str], ExactTotals] = field(default_factory=dict)
    """By the sides, the prefix of names and the slice: sums by label."""
    products: dict[tuple[int, int], Floats] = field(default_factory=dict)
    """Of each pair, `co_moments`."""
    means: list[Floats] = field(default_factory=list)
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

    def add(numbers: Numbers, prefix: str, of: str) -> None:
        for by, (_, codes) in slices.items():
            rows.totals[of, prefix, by] = ExactTotals.of(codes, numbers.sums, numbers.spans)

    packed = [_where(keep, c.offsets, c.values) for keep, c in zip(kept, columns, strict=True)]
    for name, ((values,), offsets) in zip(names, packed, strict=True):
        side = side_measures(values, offsets)
        count, total = (side.sums[f"advantage.{part}"] for part in ("count", "total"))
        rows.means.append(np.where(count > 0, total / count.clip(1), np.nan))
        if of_sides:
            add(side, "", name)
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


def _where(keep: Mask, offsets: Codes, *columns: Floats) -> tuple[Sequence[Floats], Codes]:
    """Return columns and offsets of some numbers alone; all of them are not copied."""
    if keep.all():
        return columns, offsets
    return [column[keep] for column in columns], compact_offsets(keep, offsets)


def facts_of(parts: Sequence[RowMeasures], slices: Slices, populations: dict[str, str]) -> Json:
    """Return the statistics of all measures of some parts, by name, `all` and each slice.

    Args:
        parts: of all rows.
        slices: of the same rows.
        populations: what measures count, by the first words of their names.
    """
    facts: Json = {}
    for key in dict.fromkeys(key for part in parts for key in part.totals):
        (of, prefix, by), labels = key, slices[key[2]][0]
        totals = sum((part.totals.get(key, ExactTotals()) for part in parts), ExactTotals())
        sets = totals.over_each([[code] for code in range(len(labels))])
        for name in (x.removesuffix(".count") for x in totals.names if x.endswith(".count")):
            spread = f"{name}.total" in totals.names
            rows = [(x.numbers if spread else x.yes)(name, x.count(f"{name}.count")) for x in sets]
            words = next(text for start, text in populations.items()
                         if f"{prefix}{name}".startswith(start))  # fmt: skip
            entry = facts.setdefault(f"{prefix}{name}:{of}", {"of": words})
            entry[by] = by_label(None if by == "all" else labels, rows)
    return facts
