"""Advantages that a file has already, over the policy's tokens, in all and by step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.columns import kept_offsets, lists_of, numbers_of, segment_sums
from rlpost.analysis.inspect.model import AdvantageFacts, AdvantageSlice
from rlpost.io.arrow import is_list

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import Lists
    from rlpost.analysis.inspect.model import Label
    from rlpost.io.arrow import CellLocation


COUNT, TOTAL, SQUARES, ZEROS, LOW, HIGH, WRONG = (
    f"advantage:{name}" for name in ("count", "sum", "squares", "zeros", "min", "max", "nonfinite")
)


def advantage_rows(
    array: pa.Array, place: CellLocation, mask: Lists | None, kept: NDArray[np.bool_] | None
) -> dict[str, NDArray[Any]]:
    """What is kept of each response's advantages, [n] each: count, sums, span.

    Args:
        array: a list per row, or a number.
        place: where it is, for errors.
        mask: of the same rows; a row whose mask has another length counts all its values.
        kept: [n], False for responses that are left out; None keeps all.

    Raises:
        DataError: neither numbers nor lists of them.
    """
    if is_list(array.type):
        found = lists_of(array, place)
        values, offsets = found.values.astype(np.float64), found.offsets
        chosen = _policy(found, mask)
    else:
        values = numbers_of(array, place)
        offsets, chosen = np.arange(len(values) + 1), np.ones(len(values), np.bool_)
    if kept is not None:
        chosen &= np.repeat(kept, np.diff(offsets))
    finite = np.isfinite(values)
    wrong = segment_sums((chosen & ~finite).astype(np.int64), offsets)
    chosen &= finite
    offsets, values = kept_offsets(chosen, offsets), values[chosen]
    return {
        COUNT: np.diff(offsets).astype(np.int32),
        TOTAL: segment_sums(values, offsets),
        SQUARES: segment_sums(values * values, offsets),
        ZEROS: segment_sums((values == 0).astype(np.int64), offsets).astype(np.int32),
        LOW: _ends(np.minimum, values, offsets),
        HIGH: _ends(np.maximum, values, offsets),
        WRONG: wrong.astype(np.int32),
    }


def _policy(found: Lists, mask: Lists | None) -> NDArray[np.bool_]:
    """Which values are of the policy's tokens, [t]."""
    chosen = np.ones(len(found.values), np.bool_)
    if mask is None:
        return chosen
    fits = found.lengths == mask.lengths
    chosen[np.repeat(fits, found.lengths)] = mask.values[np.repeat(fits, mask.lengths)] != 0
    return chosen


def _ends(
    best: np.ufunc, values: NDArray[np.float64], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The least or the largest value of each row, [n]; NaN where it has none."""
    ends = np.full(len(offsets) - 1, np.nan)
    some = offsets[1:] > offsets[:-1]
    if some.any():
        ends[some] = best.reduceat(values, offsets[:-1][some])
    return ends


def advantage_facts(rows: pl.DataFrame, column: str | None) -> AdvantageFacts | None:
    """Facts of the advantages in a column; None where the input has none."""
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
        of="policy tokens" if rows[COUNT].max() != 1 else "responses",
        nonfinite=int(rows[WRONG].sum()),
        whole=_slice(whole, None),
        steps=steps,
    )


def _sums() -> list[pl.Expr]:
    sums = [pl.col(name).cast(pl.Float64).sum() for name in (COUNT, TOTAL, SQUARES, ZEROS)]
    return [*sums, pl.col(LOW).fill_nan(None).min(), pl.col(HIGH).fill_nan(None).max()]


def _slice(sums: dict[str, Any], label: Label | None) -> AdvantageSlice:
    count, total = int(sums[COUNT]), sums[TOTAL]
    if not count:
        return AdvantageSlice(label, 0, None, None, None, None, None)
    spare = max(sums[SQUARES] - total * total / count, 0.0)
    deviation = math.sqrt(spare / (count - 1)) if count > 1 else 0.0
    low, high = sums[LOW] + 0.0, sums[HIGH] + 0.0  # -0 is 0
    return AdvantageSlice(label, count, total / count, deviation, low, high, sums[ZEROS] / count)
