"""Prompt groups, pass@k, rewards and lengths of responses; statistics by step and by domain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.counted import COUNTED_KEYS, COUNTED_NUMBERS, counted_table
from rlpost.analysis.inspect.model import (
    LengthFacts,
    PassAtK,
    PassRates,
    PromptGroup,
    RewardFacts,
    Slice,
    Truncation,
)
from rlpost.analysis.inspect.statistics import (
    histogram_of,
    length_histogram,
    mean_of,
    pearson,
    quantiles_of,
    spearman,
    spread_of,
)
from rlpost.io.keys import step_order
from rlpost.kernels.segments import count_true

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.model import Json, Label
    from rlpost.analysis.inspect.selection import PassResult
    from rlpost.kernels.moments import Integers, Mask
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.roles import ColumnMap


MOST_VALUES = 12  # of rewards that are listed
MOST_SIZES = 100
TENTHS = 10
SMALL = 17  # responses of the largest group, at most, for a bin per rate


def table_of(rows: pl.DataFrame, resolved: ResolvedRecipe, *, masked: bool) -> CountedTable:
    """Return `counted_table` of the rows of a PassResult."""
    names = [x for x in rows.columns if x in COUNTED_NUMBERS or x.startswith("component:")]
    keys = {name: rows[name] for name in COUNTED_KEYS if name in rows}
    oldest = pl.CompatLevel.oldest()
    columns = {name: keys_of.to_arrow(compat_level=oldest) for name, keys_of in keys.items()}
    columns |= {name: rows[name].to_numpy() for name in names}
    return counted_table(columns, resolved, count=len(rows), masked=masked)


def group_table(rows: pl.DataFrame, table: CountedTable) -> pl.DataFrame | None:
    """Return a row per group that has responses which count, by the first of these in the input.

    Args:
        rows: of a PassResult.
        table: of the rows.

    Returns:
        Its keys, its `rows` (responses, or rollouts) and `first`, the index of its first row; if
        there are rewards, `passed`, `equal` (several with equal rewards), `passing` (all of these
        pass), `mean`, and the code of its `domain`. None without a group column.
    """
    if "group" not in rows:
        return None
    groups, valid = table.groups(), np.flatnonzero(table.scored[table.unit] & table.rows["valid"])
    first_of = np.zeros(len(table.units), np.int64)
    first_of[table.unit[valid[::-1]]] = valid[::-1]
    starts = groups.offsets[:-1]
    first = np.minimum.reduceat(first_of[groups.members], starts) if len(starts) else starts
    columns: dict[str, NDArray[Any]] = {"rows": groups.size, "first": first}
    if "reward" in rows:
        passed = table.units["reward"] >= table.resolved.recipe.pass_threshold
        domain = np.array([domain for _, domain in table.units.cells.pairs], np.int64)
        columns |= {
            "passed": count_true(passed[groups.members], groups.offsets),
            "equal": groups.equal,
            "passing": groups.passing,
            "mean": groups.mean,
            "domain": domain[groups.cell],
        }
    order = np.argsort(first, kind="stable")
    keys = rows.select(key for key in ("batch", "group") if key in rows)[first[order]]
    return keys.with_columns(pl.Series(name, x[order]) for name, x in columns.items())


def group_facts(
    groups: pl.DataFrame | None, columns: ColumnMap, resolved: ResolvedRecipe
) -> PromptGroup | None:
    """Return the statistics of groups; None without a group column."""
    if groups is None:
        return None
    size = groups["rows"].to_numpy().astype(np.int64)
    values, counts = np.unique(size, return_counts=True)
    has_rewards = "passed" in groups
    several = groups.filter(pl.col("rows") > 1)
    equal = int(groups["equal"].sum()) if has_rewards else 0
    passing = int((groups["equal"] & groups["passing"]).sum()) if has_rewards else 0
    rates = (groups["passed"] / groups["rows"]).to_numpy() if has_rewards else np.zeros(0)
    return PromptGroup(
        count=len(size),
        of="rollout" if resolved.unit == "rollout" else "response",
        by=[columns.column(role) for role in ("batch", "group") if role in columns],
        single=int((size == 1).sum()),
        no_signal=equal,
        size={"min": int(size.min()), "median": float(np.median(size)), "max": int(size.max())}
        if len(size)
        else None,
        sizes=dict(zip(values.tolist()[:MOST_SIZES], counts.tolist()[:MOST_SIZES], strict=True)),
        prompts=groups["group"].n_unique(),
        pass_threshold=resolved.recipe.pass_threshold,
        all_pass=several.filter(pl.col("passed") == pl.col("rows")).height if has_rewards else 0,
        all_fail=several.filter(pl.col("passed") == 0).height if has_rewards else 0,
        equal_all_pass=passing,
        equal_all_fail=equal - passing,
        pass_rate=mean_of(rates),
        pass_rates=_pass_rates(rates, int(size.max(initial=0))),
        pass_at_k=pass_at_k(size, groups["passed"].to_numpy()) if has_rewards else [],
    )


def _pass_rates(rates: NDArray[np.float64], largest: int) -> list[PassRates]:
    """Return the number of groups by pass rate: no response passes, some pass, all pass.

    Small groups have a bin for each possible rate: c / n is in bin c - 1 of n - 1.
    """
    if not len(rates):
        return []
    bins = largest - 1 if 1 < largest <= SMALL else TENTHS
    between = rates[(rates > 0) & (rates < 1)]
    counts, edges = np.histogram(between, bins, (0.0, 1.0))
    between_rates = [
        PassRates(float(low), float(high), int(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    none, every = int((rates == 0).sum()), int((rates == 1).sum())
    return [PassRates(0.0, 0.0, none), *between_rates, PassRates(1.0, 1.0, every)]


def pass_at_k(sizes: NDArray[np.int64], passed: NDArray[np.int64]) -> list[PassAtK]:
    """Return unbiased pass@k for k = 1, 2, 4, ... up to the largest group (arXiv 2107.03374).

    For n responses of which c pass: 1 - C(n - c, k) / C(n, k), the probability that at least one of
    k responses, drawn without replacement, passes. Groups of fewer than k responses do not count.

    Args:
        sizes: [G] responses of each group.
        passed: [G] responses of each group that pass.

    >>> [one.value for one in pass_at_k(np.array([4, 4]), np.array([1, 0]))]
    [0.125, 0.25, 0.5]
    """
    kinds, counts = np.unique(np.stack([sizes, passed]), axis=1, return_counts=True)
    pairs = [(int(n), int(c), int(times)) for (n, c), times in zip(kinds.T, counts, strict=True)]
    results = []
    for exponent in range(int(sizes.max(initial=0)).bit_length()):
        k = 1 << exponent
        large = [(n, c, times) for n, c, times in pairs if n >= k]
        groups = sum(times for _, _, times in large)
        total = math.fsum(times * (1 - _all_fail(n, c, k)) for n, c, times in large)
        results.append(PassAtK(k, total / groups, groups))
    return results


def _all_fail(n: int, c: int, k: int) -> float:
    """Return C(n - c, k) / C(n, k), by the fewer of k and c factors; no number becomes large."""
    if k <= c:
        return math.prod((n - c - i) / (n - i) for i in range(k))
    return math.prod((i - k) / i for i in range(n - c + 1, n + 1))


def reward_facts(table: CountedTable, column: str | None) -> RewardFacts | None:
    """Return the statistics of rewards, which are of a column; None without one."""
    if column is None:
        return None
    rewards = table.units["reward"][table.scored] + 0.0  # -0 becomes 0
    values, counts = np.unique(rewards, return_counts=True)
    few = len(values) <= MOST_VALUES
    return RewardFacts(
        column=column,
        spread=spread_of(rewards),
        nonfinite=int((table.counted_units & ~table.scored).sum()),
        quantiles=quantiles_of(rewards),
        values={f"{x:.6g}": int(n) for x, n in zip(values, counts, strict=True)} if few else None,
        histogram=histogram_of(rewards),
    )


def length_facts(reading: PassResult, counted: Mask) -> LengthFacts | None:
    """Return the statistics of lengths; None without a column of lists or lengths.

    Args:
        reading: of the input.
        counted: [N] the rows that are not left out.
    """
    rows, column = reading.rows, reading.selection.lengths_column
    if "tokens" not in rows or column is None:
        return None
    names = [x for x in ("tokens", "reward", "batch", "group") if x in rows]
    rows = rows.select(names) if counted.all() else rows.select(names).filter(counted)
    lengths = _finite(rows, "tokens")
    return LengthFacts(
        column=column,
        spread=spread_of(lengths),
        quantiles=quantiles_of(lengths),
        histogram=length_histogram(lengths),
        at_longest=int((lengths == lengths.max(initial=0)).sum()),
        reward_correlation=_with_reward(rows),
    )


def truncation(table: CountedTable, columns: ColumnMap) -> Truncation | None:
    """Return how many responses are cut off; None without a column."""
    if "truncated" not in table.units:
        return None
    flags, column = table.units["truncated"][table.counted_units], columns.column("truncated")
    return Truncation(column, int(flags.sum()), _share(flags))


def _with_reward(rows: pl.DataFrame) -> Json | None:
    """Return the correlation of reward and length: overall, and within groups."""
    if "reward" not in rows:
        return None
    valid = rows.filter(pl.col("reward").is_finite() & pl.col("tokens").is_finite())
    reward, length = valid["reward"].to_numpy(), valid["tokens"].to_numpy()
    correlation: Json = {
        "rows": len(valid),
        "pearson": pearson(reward, length),
        "spearman": spearman(reward, length),
        "within_groups": None,
    }
    by = [key for key in ("batch", "group") if key in rows]
    if "group" in rows:
        centred = valid.select(
            reward=pl.col("reward") - pl.col("reward").mean().over(by),
            length=pl.col("tokens") - pl.col("tokens").mean().over(by),
        )
        sides = centred["reward"].to_numpy(), centred["length"].to_numpy()
        # The deviations of equal rewards are rounding errors, which correlate with nothing.
        if np.abs(sides[0]).max(initial=0.0) > 1e-9 * np.abs(reward).max(initial=0.0):
            correlation["within_groups"] = pearson(*sides)
    return correlation


def slices_of(
    rows: pl.DataFrame, table: CountedTable, groups: pl.DataFrame | None, key: str
) -> list[Slice]:
    """Return the statistics of each step (`batch`) or `domain`; none without the column.

    Steps are in numerical order if they are whole numbers, otherwise as in the input; domains are
    sorted by name.
    """
    if key not in rows:
        return []
    name = "step" if key == "batch" else key
    labels, units = table.rows.labels[name], table.units
    by_label = dict[int, float]()
    if groups is not None and "equal" in groups:
        steps = pl.Series(table.rows["step"][groups["first"].to_numpy()])
        codes = groups["domain"] if key == "domain" else steps
        several = groups.select(codes.alias("code"), "rows", "equal").filter(pl.col("rows") > 1)
        by_label = dict(several.group_by("code").agg(pl.mean("equal")).iter_rows())
    places, of_units = (_places(one[name], len(labels)) for one in (table.rows, units))
    named = [code for code, label in enumerate(labels) if label is not None]
    order = step_order([labels[code] for code in named])
    ordered = sorted(named, key=lambda code: str(labels[code]))
    return [
        _slice(labels[code], rows, places[code], table, of_units[code], by_label.get(code))
        for code in (ordered if key == "domain" else [named[place] for place in order])
        if len(places[code])
    ]


def _places(codes: Integers, count: int) -> list[Integers]:
    """Return the places of each code, ascending."""
    return np.split(np.argsort(codes, kind="stable"), np.bincount(codes, minlength=count).cumsum())


def _slice(
    label: Label, rows: pl.DataFrame, places: Integers, table: CountedTable, units: Integers,
    no_signal: float | None,
) -> Slice:  # fmt: skip
    rewards = table.units["reward"][units[table.scored[units]]] if "reward" in rows else np.zeros(0)
    names = [x for x in ("row", "tokens", "length", "kl", "k3", "compared") if x in rows]
    part = rows.select(names)[places]
    ends = table.units.columns.get("truncated", np.zeros(0, np.bool_))
    kl, compared = _finite(part, "kl"), float(_finite(part, "compared").sum())
    return Slice(
        label=label,
        responses=len(places),
        tokens=token_counts(part),
        reward=spread_of(rewards),
        length=spread_of(_finite(part.filter(table.counted[places]), "tokens")),
        truncated=_share(ends[units[table.counted_units[units]]]) if len(ends) else None,
        pass_rate=_share(rewards >= table.resolved.recipe.pass_threshold) if len(rewards) else None,
        no_signal=no_signal,
        kl=mean_of(kl),
        mismatch=float(_finite(part, "k3").sum()) / compared if compared else None,
    )


def _share(flags: Mask) -> float:
    """Return the share of flags that are set; 0 of none."""
    return float(flags.mean()) if len(flags) else 0.0


def token_counts(rows: pl.DataFrame) -> Json | None:
    """Return how many tokens responses have, `all` and `policy`; None if that is unknown."""
    if "tokens" not in rows:
        return None
    every = int(rows["length"].sum()) if "length" in rows else None
    return {"all": every, "policy": int(_finite(rows, "tokens").sum())}


def _finite(rows: pl.DataFrame, column: str) -> Any:
    """Return the finite numbers of a column; none without the column."""
    if column not in rows:
        return np.zeros(0)
    values = rows[column].to_numpy()
    return values[np.isfinite(values)]
