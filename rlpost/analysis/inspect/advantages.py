"""Statistics of the advantages that a file already has, overall and by step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.columns import lists_of, numbers_of
from rlpost.analysis.inspect.model import AdvantageFacts, AdvantageSlice
from rlpost.analysis.segments import kept_offsets, segment_counts, segment_reduce, segment_sums
from rlpost.io.arrow import is_list

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import ListColumn
    from rlpost.analysis.inspect.model import Label
    from rlpost.analysis.inspect.selection import PassResult
    from rlpost.analysis.inspect.statistics import GrowingHistogram
    from rlpost.io.arrow import CellLocation


BINS = 30
COUNT, TOTAL, SQUARES, ZEROS, POSITIVE, LOW, HIGH, NONFINITE = (
    f"advantage:{name}"
    for name in ("count", "sum", "squares", "zeros", "positive", "min", "max", "nonfinite")
)


def advantage_rows(
    array: pa.Array,
    location: CellLocation,
    mask: ListColumn | None,
    kept: NDArray[np.bool_] | None,
    histogram: GrowingHistogram,
) -> dict[str, NDArray[Any]]:
    """Return counts, sums and range of each response's advantages, [n] each.

    Args:
        array: a list per row, or a number.
        location: of the array, for errors.
        mask: of the same rows; a row whose mask has another length counts all its values.
        kept: [n], False for responses that are left out; None keeps all.
        histogram: gets the finite advantages.

    Raises:
        DataError: neither numbers nor lists of them.
    """
    if is_list(array.type):
        lists = lists_of(array, location)
        values, offsets = lists.values.astype(np.float64), lists.offsets
        chosen = _is_policy(lists, mask)
    else:
        values = numbers_of(array, location)
        offsets, chosen = np.arange(len(values) + 1), None
    if kept is not None and not kept.all():
        of_kept = np.repeat(kept, np.diff(offsets))
        chosen = of_kept if chosen is None else chosen & of_kept
    nonfinite, finite = np.zeros(len(offsets) - 1, np.int64), np.isfinite(values)
    if chosen is not None or not finite.all():  # otherwise nothing is copied
        chosen = np.ones(len(values), np.bool_) if chosen is None else chosen
        nonfinite = segment_counts(chosen & ~finite, offsets)
        chosen &= finite
        offsets, values = kept_offsets(chosen, offsets), values[chosen]
    histogram.add(values)
    return {
        COUNT: np.diff(offsets).astype(np.int32),
        TOTAL: segment_sums(values, offsets),
        SQUARES: segment_sums(values * values, offsets),
        ZEROS: segment_counts(values == 0, offsets).astype(np.int32),
        POSITIVE: segment_counts(values > 0, offsets).astype(np.int32),
        LOW: segment_reduce(np.minimum, values, offsets, np.nan),
        HIGH: segment_reduce(np.maximum, values, offsets, np.nan),
        NONFINITE: nonfinite.astype(np.int32),
    }


def _is_policy(lists: ListColumn, mask: ListColumn | None) -> NDArray[np.bool_] | None:
    """Return which values belong to policy tokens, [t]; None if all do."""
    if mask is None or mask.values.all():
        return None
    policy = np.ones(len(lists.values), np.bool_)
    fits = lists.lengths == mask.lengths
    policy[np.repeat(fits, lists.lengths)] = mask.values[np.repeat(fits, mask.lengths)] != 0
    return policy


def advantage_facts(reading: PassResult) -> AdvantageFacts | None:
    """Return the statistics of the advantages; None if the input has none."""
    rows, column = reading.rows, reading.selection.advantages
    if column is None or COUNT not in rows:
        return None
    steps: list[AdvantageSlice] = []
    if "batch" in rows and rows["batch"].n_unique() > 1:
        parts = rows.drop_nulls("batch").group_by("batch", maintain_order=True).agg(_sums())
        steps = [_slice(part, part["batch"]) for part in parts.iter_rows(named=True)]
        if all(isinstance(one.label, int) for one in steps):
            steps.sort(key=lambda one: int(one.label or 0))
    (whole,) = rows.select(_sums()).iter_rows(named=True)
    return AdvantageFacts(
        column=column,
        of=_population(rows, kept=reading.selection.kept is not None),
        nonfinite=int(rows[NONFINITE].sum()),
        whole=_slice(whole, None),
        steps=steps,
        histogram=reading.advantages.bins(BINS),
        recorded=reading.selection.recorded,
        left_out=None if reading.selection.kept is None else reading.totals.count("left_out"),
    )


def _population(rows: pl.DataFrame, *, kept: bool) -> str:
    """Return what the advantages are of; `kept`: whether a sample mask leaves responses out."""
    if rows[COUNT].max() == 1:
        return "kept responses" if kept else "responses"
    return "policy tokens of kept responses" if kept else "policy tokens"


def _sums() -> list[pl.Expr]:
    added = (COUNT, TOTAL, SQUARES, ZEROS, POSITIVE)
    sums = [pl.col(name).cast(pl.Float64).sum() for name in added]
    return [*sums, pl.col(LOW).fill_nan(None).min(), pl.col(HIGH).fill_nan(None).max()]


def _slice(sums: dict[str, Any], label: Label | None) -> AdvantageSlice:
    count, total = int(sums[COUNT]), sums[TOTAL]
    if not count:
        return AdvantageSlice(label, 0, None, None, None, None, None, None)
    squares = max(sums[SQUARES] - total * total / count, 0.0)
    deviation = math.sqrt(squares / (count - 1)) if count > 1 else 0.0
    low, high = sums[LOW] + 0.0, sums[HIGH] + 0.0  # -0 becomes 0
    zero, positive = sums[ZEROS] / count, sums[POSITIVE] / count
    return AdvantageSlice(label, count, total / count, deviation, low, high, zero, positive)
