"""Groups: the rows of one prompt within one step, as `rlpost advantages` takes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.inspect.model import GroupFacts, PassAtK, PassRates
from rlpost.inspect.statistics import mean_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.schema import ColumnMap

MOST_SIZES = 100
TENTHS = 10
SMALL = 17  # rows of a group, at most, for a bin per rate


def group_table(rows: pl.DataFrame, pass_threshold: float) -> pl.DataFrame | None:
    """A row per group: its keys, `rows`, `passed`, `equal`, `mean`, `first`; None without groups.

    Args:
        rows: of a Reading; those without a finite reward, or without a key, take no part.
        pass_threshold: a response passes with at least this reward.

    `first` is the place in `rows` of the group's first row.
    """
    if "group" not in rows:
        return None
    by = [key for key in ("batch", "group") if key in rows]
    taking = rows.with_row_index("place").drop_nulls(by)
    if "reward" not in rows:
        return taking.group_by(by, maintain_order=True).agg(rows=pl.len(), first=pl.first("place"))
    reward = pl.col("reward")
    return (
        taking.filter(reward.is_finite())
        .group_by(by, maintain_order=True)
        .agg(
            rows=pl.len(),
            first=pl.first("place"),
            passed=(reward >= pass_threshold).sum(),
            equal=reward.max() <= reward.min(),
            mean=reward.mean(),
        )
    )


def group_facts(
    groups: pl.DataFrame | None, columns: ColumnMap, pass_threshold: float
) -> GroupFacts | None:
    """What is said of the groups; None where no column tells them."""
    if groups is None:
        return None
    size = groups["rows"].to_numpy().astype(np.int64)
    values, counts = np.unique(size, return_counts=True)
    known = "passed" in groups
    several = groups.filter(pl.col("rows") > 1)
    rates = (groups["passed"] / groups["rows"]).to_numpy() if known else np.zeros(0)
    return GroupFacts(
        count=len(size),
        by=[columns.column(role) for role in ("batch", "group") if role in columns],
        single=int((size == 1).sum()),
        zero_variance=int(several["equal"].sum()) if known else 0,
        size={"min": int(size.min()), "median": float(np.median(size)), "max": int(size.max())}
        if len(size)
        else None,
        sizes=dict(zip(values.tolist()[:MOST_SIZES], counts.tolist()[:MOST_SIZES], strict=True)),
        prompts=groups["group"].n_unique(),
        pass_threshold=pass_threshold,
        all_pass=several.filter(pl.col("passed") == pl.col("rows")).height if known else 0,
        all_fail=several.filter(pl.col("passed") == 0).height if known else 0,
        pass_rate=mean_of(rates),
        pass_rates=_pass_rates(rates, int(size.max(initial=0))),
        pass_at_k=pass_at_k(size, groups["passed"].to_numpy()) if known else [],
    )


def _pass_rates(rates: NDArray[np.float64], largest: int) -> list[PassRates]:
    """Groups by pass rate: none, some, all.

    Of small groups each possible rate has a bin of its own: c / n lies in bin c - 1 of n - 1.
    """
    if not len(rates):
        return []
    bins = largest - 1 if 1 < largest <= SMALL else TENTHS
    between = rates[(rates > 0) & (rates < 1)]
    counts, edges = np.histogram(between, bins, (0.0, 1.0))
    some = [
        PassRates(float(low), float(high), int(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    none, every = int((rates == 0).sum()), int((rates == 1).sum())
    return [PassRates(0.0, 0.0, none), *some, PassRates(1.0, 1.0, every)]


def pass_at_k(sizes: NDArray[np.int64], passed: NDArray[np.int64]) -> list[PassAtK]:
    """Unbiased pass@k for k = 1, 2, 4, ... up to the largest group (arXiv 2107.03374).

    1 - C(n - c, k) / C(n, k) of n rows of which c pass: the chance that one of k rows, drawn
    without putting back, passes. Groups of fewer than k rows take no part.

    Args:
        sizes: [G] rows of each group.
        passed: [G] of them, those that pass.

    >>> [one.value for one in pass_at_k(np.array([4, 4]), np.array([1, 0]))]
    [0.125, 0.25, 0.5]
    """
    kinds, counts = np.unique(np.stack([sizes, passed]), axis=1, return_counts=True)
    pairs = [(int(n), int(c), int(times)) for (n, c), times in zip(kinds.T, counts, strict=True)]
    found = []
    for exponent in range(int(sizes.max(initial=0)).bit_length()):
        k = 1 << exponent
        taking = [(n, c, times) for n, c, times in pairs if n >= k]
        groups = sum(times for _, _, times in taking)
        total = math.fsum(
            times * (1 - math.comb(n - c, k) / math.comb(n, k)) for n, c, times in taking
        )
        found.append(PassAtK(k, total / groups, groups))
    return found
