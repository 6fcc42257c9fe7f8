"""Statistics of policy tokens: ranges, rollout engine against trainer, KL, copies.

Only policy tokens (mask 1) count. Chunks fit the cache of a core, and each number is one or two
numpy calls on the flat values of a chunk.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import Bucket, Mismatch, TokenColumn
from rlpost.analysis.inspect.positions import bucket_bounds
from rlpost.analysis.inspect.selection import LOG_PROB_PAIRS
from rlpost.analysis.inspect.statistics import quantiles_of
from rlpost.analysis.segments import kept_offsets, segment_sums
from rlpost.kernels.divergence import FAR, confident_disagreement, effective_sample_size
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.roles import LOG_PROB_ROUNDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.columns import Block
    from rlpost.analysis.inspect.model import Json
    from rlpost.analysis.inspect.selection import PassResult
    from rlpost.analysis.inspect.statistics import TokenTotals

    Rows = dict[str, NDArray[Any]]


LOG_RATIO_CLAMP = Numerics().log_ratio_clamp.bound
FIRST_BUCKET = 128
LONG = 32  # tokens: longer responses are hardly equal by chance
LONG_TEXT = 128  # characters, if no list has the number of tokens


# For each chunk.


def add_columns(policy: Block, totals: TokenTotals) -> Rows:
    """Add the policy tokens of all responses to the totals; return flags and means, [n] each."""
    rows: Rows = {}
    for role, values in policy.values.items():
        rows |= ranges(role, values, policy.offsets, totals)
        if role in policy.nulls:
            totals.add(f"{role}.null", np.count_nonzero(policy.nulls[role]))
    for one, other in LOG_PROB_PAIRS:
        if {one, other} <= policy.values.keys():
            equal = np.count_nonzero(policy.values[one] == policy.values[other])
            totals.add(f"{one}/{other}.equal", equal)
            totals.add(f"{one}/{other}.tokens", len(policy.values[one]))
    return rows


def add_policies(policy: Block, totals: TokenTotals) -> Rows:
    """Add the policy tokens of responses that count; return their divergences, [n] each."""
    rows: Rows = {}
    if {"old_log_probs", "infer_log_probs"} <= policy.values.keys():
        rows |= engine_mismatch(policy, totals)
    if {"old_log_probs", "ref_log_probs"} <= policy.values.keys():
        rows |= reference_kl(policy, totals)
    return rows


def ranges(
    role: str, values: NDArray[Any], offsets: NDArray[np.int64], totals: TokenTotals
) -> Rows:
    """Add counts, sum and range of a column; return means, and flags of responses, [n]."""
    wide = totals.buffer("gap", len(values))
    wide[:] = values
    total = segment_sums(wide, offsets)
    lengths = np.diff(offsets)
    nonfinite = ~np.isfinite(total)
    if nonfinite.any():
        finite = np.isfinite(values)
        totals.add(f"{role}.nan", np.count_nonzero(np.isnan(values)))
        totals.add(f"{role}.minus_infinity", np.count_nonzero(values == -np.inf))
        totals.add(f"{role}.plus_infinity", np.count_nonzero(values == np.inf))
        offsets, values = kept_offsets(finite, offsets), values[finite]
        lengths = np.diff(offsets)
        total = segment_sums(values.astype(np.float64), offsets)
    positive = np.zeros(len(nonfinite), np.bool_)
    totals.add(f"{role}.count", len(values))
    totals.add(f"{role}.sum", total.sum())
    if len(values):
        low, high = values.min(), values.max()
        totals.span(role, low, high)
        totals.add(f"{role}.zero", np.count_nonzero(values == 0) if high >= 0 >= low else 0)
        if high > LOG_PROB_ROUNDING:
            totals.add(f"{role}.positive", np.count_nonzero(values > LOG_PROB_ROUNDING))
            positive = segment_sums((values > LOG_PROB_ROUNDING).astype(np.int64), offsets) > 0
    mean = np.where(lengths > 0, total / np.maximum(lengths, 1), np.nan)
    return {f"mean:{role}": mean, f"nonfinite:{role}": nonfinite, f"positive:{role}": positive}


def engine_mismatch(policy: Block, totals: TokenTotals) -> Rows:
    """Add d = old - infer, overall and by position; return Σ k3 of each response.

    Sizes |d| are of all finite differences; k1, k3 and weights clamp them to ±40.
    """
    infer, offsets = policy.values["infer_log_probs"], policy.offsets
    totals.add("gap.equal", np.count_nonzero(policy.values["old_log_probs"] == infer))
    gap, most = _gap(policy, "infer_log_probs", totals)
    if not math.isfinite(most):
        finite = np.isfinite(gap)
        gap, infer, offsets = gap[finite], infer[finite], kept_offsets(finite, offsets)
        most = np.abs(gap).max(initial=0.0)
    totals.span("gap", 0.0, most)
    size = np.abs(gap, out=totals.buffer("size", len(gap)))
    if most > LOG_RATIO_CLAMP:
        totals.add("gap.clamped", np.count_nonzero(size > LOG_RATIO_CLAMP))
        gap = np.clip(gap, -LOG_RATIO_CLAMP, LOG_RATIO_CLAMP, out=gap)
    excess = np.expm1(gap, out=totals.buffer("excess", len(gap)))
    totals.add("gap.tokens", len(gap))
    totals.add("gap.sum", gap.sum())
    totals.add("gap.excess", excess.sum())
    totals.add("gap.excess_squared", np.einsum("i,i", excess, excess))
    if most > FAR:
        totals.add("gap.sure", np.count_nonzero(confident_disagreement(infer, size)))
    k3 = np.subtract(excess, gap, out=excess)
    cells = _add_by_position({"abs": size, "k3": k3}, offsets, totals)
    compared = np.diff(offsets).astype(np.int32)
    return {"k3": cells["k3"].sum(1), "compared": compared}


def _gap(policy: Block, other: str, totals: TokenTotals) -> tuple[NDArray[np.float64], float]:
    """Return old - other, [T], and its largest size; both are NaN if a number is."""
    old = policy.values["old_log_probs"]
    gap = totals.buffer("gap", len(old))
    np.subtract(old, policy.values[other], dtype=np.float64, out=gap)
    return gap, float(max(gap.max(initial=0.0), -gap.min(initial=0.0)))


def _add_by_position(
    values: Mapping[str, NDArray[np.float64]], offsets: NDArray[np.int64], totals: TokenTotals
) -> dict[str, NDArray[np.float64]]:
    """Add sums over buckets of positions; return those of each response, [n, k]."""
    bounds = _bounds(offsets)
    width = bounds.shape[1] - 1
    flat = np.append(bounds[:, :-1].reshape(-1), offsets[-1])
    cells = {name: segment_sums(one, flat).reshape(-1, width) for name, one in values.items()}
    for name, sums in cells.items():
        totals.add_table(f"position.{name}", sums.sum(0))
        totals.add(f"gap.{name}", sums.sum())
    totals.add_table("position.tokens", np.diff(bounds, axis=1).sum(0).astype(np.float64))
    return cells


def _bounds(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first token of each bucket of each response, and the last end, [n, k + 1].

    Buckets are the positions 0 to 127, 128 to 255, 256 to 511 and so on, each twice as long, up to
    the longest response.
    """
    longest = int(np.diff(offsets).max(initial=1))
    edges = [0]
    while (edges[-1] * 2 or FIRST_BUCKET) < longest:
        edges.append(edges[-1] * 2 or FIRST_BUCKET)
    return bucket_bounds(offsets, edges)


def reference_kl(policy: Block, totals: TokenTotals) -> Rows:
    """Return the mean of old - ref of each response, clamped to ±40; NaN if it is not finite."""
    gap, most = _gap(policy, "ref_log_probs", totals)
    if not most <= LOG_RATIO_CLAMP:
        infinite = np.isinf(gap)
        beyond = np.count_nonzero((np.abs(gap) > LOG_RATIO_CLAMP) & ~infinite)
        totals.add("kl.clamped", beyond)
        np.clip(gap, -LOG_RATIO_CLAMP, LOG_RATIO_CLAMP, out=gap)
        gap[infinite] = np.nan
    lengths = np.maximum(np.diff(policy.offsets), 1)
    return {"kl": segment_sums(gap, policy.offsets) / lengths}


# For the whole input.


def column_facts(role: str, reading: PassResult) -> TokenColumn:
    """Return the statistics of a column of token numbers."""
    totals, rows = reading.totals, reading.rows
    means = rows[f"mean:{role}"].to_numpy()
    counts: dict[str, Any] = {
        name: totals.count(f"{role}.{name}")
        for name in ("zero", "positive", "null", "nan", "minus_infinity", "plus_infinity")
    }
    counts["nan"] -= counts["null"]
    return TokenColumn(
        column=reading.selection.columns.column(role),
        tokens=totals.count(f"{role}.count"),
        mean=totals.mean(f"{role}.sum", f"{role}.count"),
        min=totals.lows.get(role),
        max=totals.highs.get(role),
        **counts,
        nonfinite_rows=int(rows[f"nonfinite:{role}"].fill_nan(0).sum()),
        unequal_rows=int(rows[f"unequal:{role}"].sum()),
        quantiles=quantiles_of(means[np.isfinite(means)]),
    )


def mismatch_facts(totals: TokenTotals) -> Mismatch | None:
    """Return the difference between rollout engine and trainer; None if it is unknown."""
    count = totals.count("gap.tokens")
    if not count:
        return None
    excess, squares = totals.total("gap.excess"), totals.total("gap.excess_squared")
    return Mismatch(
        tokens=count,
        mean_abs=totals.total("gap.abs") / count,
        clamped=totals.count("gap.clamped"),
        max_abs=totals.highs["gap"],
        k1=-totals.total("gap.sum") / count,
        k3=totals.total("gap.k3") / count,
        chi_square=(squares + 2 * excess) / count,
        ess=effective_sample_size(count, count + excess, count + 2 * excess + squares) or 0.0,
        confident_disagreement=totals.count("gap.sure"),
        identical=totals.count("gap.equal"),
        by_position=_buckets(totals),
    )


def _buckets(totals: TokenTotals) -> list[Bucket]:
    tokens, sizes, k3 = (totals.tables[f"position.{name}"] for name in ("tokens", "abs", "k3"))
    edges = [0, *(FIRST_BUCKET << i for i in range(len(tokens) - 1)), None]
    return [
        Bucket(int(edges[i] or 0), edges[i + 1], int(n), float(sizes[i] / n), float(k3[i] / n))
        for i, n in enumerate(tokens)
        if n
    ]


def duplicates_of(reading: PassResult) -> Json | None:
    """Return how many responses have the text or tokens of an earlier one of their group."""
    rows, selection = reading.rows, reading.selection
    if "copy" not in rows or not len(rows):
        return None
    copies = is_copy(rows)
    role = selection.copies_role
    column = selection.text or (role and selection.columns.column(role))
    long = copies & is_long(rows)
    return {
        "column": column,
        "rows": int(copies.sum()),
        "share": int(copies.sum()) / len(rows),
        "long_rows": int(long.sum()),
        "unique": int(rows.select(~_has_copy(rows)).to_series().sum()),
    }


def is_long(rows: pl.DataFrame) -> pl.Series:
    """Return whether responses are too long to be equal by chance, [n] bool."""
    if "characters" in rows:
        return rows["characters"] >= LONG_TEXT
    if "tokens" not in rows:
        return pl.Series(np.ones(len(rows), np.bool_))
    return rows["tokens"].cast(pl.Float64).fill_nan(0) >= LONG


def is_copy(rows: pl.DataFrame) -> pl.Series:
    """Return whether an earlier response of the group has the same text or tokens, [n] bool."""
    return rows.select(_has_copy(rows) & ~_same(rows).is_first_distinct()).to_series()


def _has_copy(rows: pl.DataFrame) -> pl.Expr:
    """Return whether another response is the same; one without a text has no copies."""
    return _same(rows).is_duplicated() & pl.col("copy").is_not_null()


def _same(rows: pl.DataFrame) -> pl.Expr:
    """Return the key that copies share."""
    return pl.struct([key for key in ("batch", "group", "copy") if key in rows])
