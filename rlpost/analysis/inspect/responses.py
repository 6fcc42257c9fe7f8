"""Responses and prompt groups of an input: which count, pass@k, rewards, lengths, components."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.counted import COUNTED_KEYS, COUNTED_NUMBERS, counted_table
from rlpost.analysis.inspect.measures import CountedRows
from rlpost.analysis.inspect.model import (
    Label,
    LengthFacts,
    PassAtK,
    PassRates,
    PromptGroup,
    RewardFacts,
)
from rlpost.analysis.inspect.profiles import (
    histogram_of,
    length_histogram,
    pearson,
    quantiles_of,
    spearman,
)
from rlpost.io.keys import step_order
from rlpost.kernels.codes import dense_codes
from rlpost.kernels.contributions import PairSums, advantage_shares, correlation
from rlpost.kernels.moments import exact_product, reaches
from rlpost.kernels.segments import count_true
from rlpost.pipeline.data import LEFT_OUT
from rlpost.pipeline.groups import equal_components
from rlpost.pipeline.measures import COMPONENT, CORRELATION, LEFT, SHARE, WITH_REWARD
from rlpost.pipeline.profiles import group_tallies, profiles, response_tallies
from rlpost.pipeline.stages.rewards import group_statistics
from rlpost.pipeline.totals import ExactTotals
from rlpost.recipe.roles import is_component

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.measures import Labels, Pair
    from rlpost.analysis.inspect.model import Json
    from rlpost.analysis.inspect.selection import ColumnSelection
    from rlpost.kernels.moments import Floats, Mask

    Codes = NDArray[np.int64]
    from rlpost.pipeline.columns import Masked
    from rlpost.pipeline.resolved import ResolvedRecipe
    from rlpost.recipe.roles import ColumnMap


MOST_VALUES = 12  # of rewards that are listed
MOST_SIZES = 100
TENTHS = 10
LONG = 32  # tokens: longer responses are hardly equal by chance
LONG_TEXT = 128  # characters, if no list has the number of tokens
SMALL = 17  # responses of the largest group, at most, for a bin per rate
WITHOUT_ADVANTAGES = "reward minus the mean of its group"
"""What the share is of in an input without advantages: the advantage of a group baseline."""


def table_of(rows: pl.DataFrame, resolved: ResolvedRecipe, *, masked: Masked) -> CountedTable:
    """Return `counted_table` of the rows of a PassResult."""
    names = [x for x in rows.columns if x in COUNTED_NUMBERS or is_component(x)]
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
        pass) and `mean`; its `cell`. None without a group column.
    """
    if "group" not in rows:
        return None
    groups, valid = table.groups(), np.flatnonzero(table.scored[table.unit] & table.rows["valid"])
    first_of = np.zeros(len(table.units), np.int64)
    first_of[table.unit[valid[::-1]]] = valid[::-1]
    starts = groups.offsets[:-1]
    first = np.minimum.reduceat(first_of[groups.members], starts) if len(starts) else starts
    columns: dict[str, NDArray[Any]] = {"rows": groups.size, "first": first, "cell": groups.cell}
    if "reward" in rows:
        passed = reaches(table.units["reward"], table.resolved.recipe.pass_threshold)
        columns |= {
            "passed": count_true(passed[groups.members], groups.offsets),
            "equal": groups.equal,
            "passing": groups.passing,
            "mean": groups.mean,
        }
    order = np.argsort(first, kind="stable")
    keys = rows.select(key for key in ("batch", "group") if key in rows)[first[order]]
    return keys.with_columns(pl.Series(name, x[order]) for name, x in columns.items())


def populations_of(
    rows: pl.DataFrame, table: CountedTable, groups: pl.DataFrame | None
) -> tuple[dict[str, CountedRows], list[Pair], Labels]:
    """Return the populations of measures, with step and domain of each cell, and their labels.

    Steps are in numerical order if they are whole numbers, otherwise as in the input; domains are
    sorted by name.

    Args:
        rows: of a PassResult.
        table: of the rows.
        groups: of the table.
    """
    whole, units, recipe = table.rows, table.units, table.resolved.recipe
    names = {"tokens": "policy_tokens", "length": "tokens", "kl": "kl"}
    numbers = {names[x]: rows[x].to_numpy() for x in names if x in rows}
    of_all = {f"{LEFT}{x}": whole["left_out"] == LEFT_OUT.index(x) + 1 for x in table.left_out}
    scored = {x: units[x] for x in (f"{COMPONENT}{y}" for y in recipe.reward_components or ())}
    if "reward" in rows:
        rewards = units["reward"]
        scored |= {"reward": rewards, "passed": reaches(rewards, recipe.pass_threshold)}
    cut = {x: units[x] for x in ("truncated",) if x in units}
    cell, all_rows = whole["cell"], np.ones(len(whole), np.bool_)
    populations = {
        "all": CountedRows(cell, all_rows, of_all | {"counted": table.counted}),
        "counted": CountedRows(cell, table.counted, numbers),
        "units": CountedRows(units["cell"], table.counted_units, cut),
        "scored": CountedRows(units["cell"], table.scored, scored),
    }
    if "failure:end" in whole:
        tried = whole["known"] & np.isin(whole["left_out"], (0, LEFT_OUT.index("failure") + 1))
        parts = (table.unit[x] for x in (tried, tried & whole["failure:end"]))
        tried, failed = (np.bincount(x, minlength=len(units)) > 0 for x in parts)
        populations["tried"] = CountedRows(units["cell"], tried, {"failed": failed})
    if groups is not None:
        columns = {x: groups[x].to_numpy() for x in groups.columns if x not in ("batch", "group")}
        cell, size = columns["cell"], columns["rows"]
        of_groups = {"group_size": size, "single": size == 1}
        if "passed" in columns:
            equal = columns["equal"]
            equals = {"equal_rewards": equal, "all_pass": equal & columns["passing"]}
            populations["several"] = CountedRows(cell, size > 1, equals)
        populations["groups"] = CountedRows(cell, size > 0, of_groups)
    cells, labels = whole.cells, dict[str, list[Label]]()
    for name, role, known in (("step", "batch", cells.steps), ("domain", "domain", cells.domains)):
        if role in rows:
            named = [label for label in known if label is not None]
            order = step_order(named) if name == "step" else np.argsort([*map(str, named)])
            labels[name] = [named[place] for place in order]
    return populations, [(cells.steps[x], cells.domains[y]) for x, y in cells.pairs], labels


def group_facts(
    groups: pl.DataFrame | None, columns: ColumnMap, resolved: ResolvedRecipe
) -> PromptGroup | None:
    """Return the statistics of groups; None without a group column."""
    if groups is None:
        return None
    size = groups["rows"].to_numpy().astype(np.int64)
    values, counts = np.unique(size, return_counts=True)
    has_rewards = "passed" in groups
    rates = (groups["passed"] / groups["rows"]).to_numpy() if has_rewards else np.zeros(0)
    return PromptGroup(
        by=[columns.column(role) for role in ("batch", "group") if role in columns],
        sizes=dict(zip(values.tolist()[:MOST_SIZES], counts.tolist()[:MOST_SIZES], strict=True)),
        prompts=groups["group"].n_unique(),
        pass_threshold=resolved.recipe.pass_threshold,
        pass_rates=_pass_rates(rates, int(size.max(initial=0))),
        pass_at_k=pass_at_k(size, groups["passed"].to_numpy()) if has_rewards else [],
    )


def profiles_of(rows: pl.DataFrame, table: CountedTable, groups: pl.DataFrame | None) -> Json:
    """Return the profiles of groups and of lengths, as those of a run; without rewards none.

    Args:
        rows: of a PassResult.
        table: of the rows.
        groups: of the table.
    """
    if "reward" not in rows or "tokens" not in rows:
        return {}
    recipe, rewards = table.resolved.recipe, table.units["reward"]
    mean = np.full(len(table.units), np.nan)
    size, passed, of_groups = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    signal = np.zeros(0, np.bool_)
    if groups is not None:
        size, passed = (groups[x].to_numpy().astype(np.int64) for x in ("rows", "passed"))
        signal, of_groups = ~groups["equal"].to_numpy() & (size > 1), groups["mean"].to_numpy()
        members = table.groups()
        mean[members.members] = members.mean.repeat(members.size)
    passes = reaches(rewards, recipe.pass_threshold)
    tallies = (
        *group_tallies(size, passed, of_groups, signal),
        *response_tallies(rewards, table.units["tokens"], passes, mean, table.scored),
    )
    default = type(recipe).model_fields["pass_threshold"].default
    return profiles(tallies, chosen=recipe.pass_threshold != default)


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
    none, whole = int((rates == 0).sum()), int((rates == 1).sum())
    return [PassRates(0.0, 0.0, none), *between_rates, PassRates(1.0, 1.0, whole)]


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
    """Return the profile of rewards, which are of a column; None without one."""
    if column is None:
        return None
    rewards = table.units["reward"][table.scored] + 0.0  # -0 becomes 0
    values, counts = np.unique(rewards, return_counts=True)
    few = len(values) <= MOST_VALUES
    return RewardFacts(
        column=column,
        nonfinite=int((table.counted_units & ~table.scored).sum()),
        quantiles=quantiles_of(rewards),
        values={f"{x:.6g}": int(n) for x, n in zip(values, counts, strict=True)} if few else None,
        histogram=histogram_of(rewards),
    )


def length_facts(rows: pl.DataFrame, table: CountedTable, column: str | None) -> LengthFacts | None:
    """Return the profile of lengths; None without a column of lists or lengths.

    Args:
        rows: of a PassResult.
        table: of the rows.
        column: the column of which lengths are known.
    """
    if "tokens" not in rows or column is None:
        return None
    lengths = rows["tokens"].to_numpy()
    known = table.counted & np.isfinite(lengths)
    known_lengths = lengths if known.all() else lengths[known]
    return LengthFacts(
        column=column,
        quantiles=quantiles_of(known_lengths),
        histogram=length_histogram(known_lengths),
        reward_correlation=_with_reward(rows, lengths, table) if "reward" in rows else None,
    )


def _with_reward(rows: pl.DataFrame, lengths: NDArray[Any], table: CountedTable) -> Json:
    """Return the correlation of reward and length: overall, and within groups."""
    rewards = table.row_rewards
    valid = np.isfinite(rewards) & np.isfinite(lengths)
    reward, length = rewards[valid], lengths[valid].astype(np.float64)
    values: Json = {
        "rows": len(reward),
        "pearson": pearson(reward, length),
        "spearman": spearman(reward, length),
        "within_groups": None,
    }
    if "group" in rows:
        codes = dense_codes(table.rows["group"][valid], table.rows.count("group"))[1]
        sizes = np.bincount(codes)
        sides = [x - (np.bincount(codes, x) / sizes)[codes] for x in (reward, length)]
        # The deviations of equal rewards are rounding errors, which correlate with nothing.
        if np.abs(sides[0]).max(initial=0.0) > 1e-9 * np.abs(reward).max(initial=0.0):
            values["within_groups"] = pearson(*sides)
    return values


# ---- copies ----


def duplicates_of(selection: ColumnSelection, rows: pl.DataFrame, group: Codes) -> Json | None:
    """Return how many responses have the text or tokens of an earlier one of their group."""
    if "copy" not in rows or not len(rows):
        return None
    copied, again = copies_of(rows, group)
    role = selection.copies_role
    column = selection.text or (role and selection.columns.column(role))
    return {
        "column": column,
        "rows": int(again.sum()),
        "share": int(again.sum()) / len(rows),
        "long_rows": int((pl.Series(again) & is_long(rows)).sum()),
        "unique": int((~copied).sum()),
    }


def is_long(rows: pl.DataFrame) -> pl.Series:
    """Return whether responses are too long to be equal by chance, [n] bool."""
    if "characters" in rows:
        return rows["characters"] >= LONG_TEXT
    if "tokens" not in rows:
        return pl.Series(np.ones(len(rows), np.bool_))
    return rows["tokens"].cast(pl.Float64).fill_nan(0) >= LONG


def copies_of(rows: pl.DataFrame, group: Codes) -> tuple[Mask, Mask]:
    """Return whether another response of the group has the same text or tokens, and an earlier one.

    Responses without a text have no copies, [n] each. They are compared by hashes of 64 bits.

    Args:
        rows: of a PassResult.
        group: [n] codes of the prompt groups within steps.
    """
    key = rows["copy"].fill_null(0).to_numpy() ^ (group.astype(np.uint64) * _MIX)
    order = np.argsort(key, kind="stable")
    same = np.append(key[order][1:] == key[order][:-1], False)
    later = np.roll(same, 1)
    flags = np.zeros((2, len(key)), np.bool_)
    flags[:, order] = same | later, later
    copied, again = flags & rows["copy"].is_not_null().to_numpy()
    return copied, again


_MIX = np.uint64(0x9E3779B97F4A7C15)


# ---- reward components ----


def component_facts(
    rows: pl.DataFrame, table: CountedTable, weights: Mapping[str, float], advantages: str | None,
    stored_shares: Mapping[str, float | None] | None,
) -> tuple[dict[str, Json], Json]:  # fmt: skip
    """Return correlations and shares of the reward components as facts, and their profile.

    Args:
        rows: of a PassResult.
        table: of the rows.
        weights: by component; none if the user names no components.
        advantages: the column of advantages.
        stored_shares: the shares of the advantage in the metadata of the input, whose estimator
            normalised the components; None: they are computed here.
    """
    if not weights:
        return {}, {}
    scored, reward = table.scored, table.units["reward"]
    values = {name: table.units[f"{COMPONENT}{name}"] for name in weights}
    shares, of = _shares(rows, table, weights, advantages)
    if stored_shares is not None:
        shares, of = dict(stored_shares), advantages or ""
    pairs = [((name, "reward"), (x, reward)) for name, x in values.items()]
    pairs += [(names, (values[names[0]], values[names[1]])) for names in combinations(values, 2)]
    numbers: dict[str, tuple[str, int, float | None]] = {}
    for names, sides in pairs:
        both = scored & np.isfinite(sides[0]) & np.isfinite(sides[1])
        sums = _pair_sums(*(side[both] for side in sides))
        name = f"{CORRELATION}{','.join(names)}" if sides[1] is not reward else ""
        name = name or f"{WITH_REWARD}{names[0]}"
        numbers[name] = "scored", int(both.sum()), correlation(sums)
    count = int((table.counted & table.rows["valid"]).sum())
    numbers |= {f"{SHARE}{name}": ("counted", count, x) for name, x in shares.items()}
    facts: dict[str, Json] = {
        name: {"of": population, "all": {"count": size, "value": value}}
        for name, (population, size, value) in numbers.items()
    }
    equal = equal_components(table.units, table.resolved.recipe, scored & table.units["keyed"])
    finite = {name: rows[f"{COMPONENT}{name}"].is_finite() for name in weights}
    return facts, {
        name: {
            "weight": weight,
            "no_signal": equal[name] if "group" in rows else None,
            "nonfinite": int((~finite[name].to_numpy() & table.counted).sum()),
            "share_of": of,
        }
        for name, weight in weights.items()
    }


def exact_total(values: Floats) -> Fraction:
    """Return the exact sum of finite numbers, [n]."""
    keys = np.zeros(len(values), np.int64)
    return ExactTotals.of(keys, {"sum": values}, {}).total().total("sum")


def _exact_products(x: Floats, y: Floats) -> Fraction:
    return sum(map(exact_total, exact_product(x, y)), Fraction(0))


def _pair_sums(x: Floats, y: Floats) -> PairSums:
    products = (_exact_products(*pair) for pair in ((x, x), (y, y), (x, y)))
    return PairSums(Fraction(len(x)), exact_total(x), exact_total(y), *products)


def _shares(
    rows: pl.DataFrame, table: CountedTable, weights: Mapping[str, float], advantages: str | None
) -> tuple[dict[str, float | None], str]:
    """Return the share of each component, and what it is a share of."""
    total, of = row_advantages(rows, table, advantages)
    there = np.isfinite(total) & table.counted & table.rows["valid"]
    total = np.where(there, total, 0.0)
    parts = {}
    for name, weight in weights.items():
        values = table.rows[f"{COMPONENT}{name}"]
        part = np.where(there & np.isfinite(values), values, 0.0) * weight
        parts[name] = _exact_products(part, total), exact_total(part)
    return advantage_shares(parts, int(there.sum()), exact_total(total)), of


def row_advantages(
    rows: pl.DataFrame, table: CountedTable, column: str | None
) -> tuple[Floats, str]:
    """Return the advantage of each row, [N], and what it is; NaN where it is unknown.

    Without numbers of the column, it is the reward minus the mean of its group.
    """
    if column is not None and "advantage" in rows:
        return rows["advantage"].to_numpy(), column
    rewards, scored = table.units["reward"], table.scored
    if "group" not in rows:
        centred = rewards - float(exact_total(rewards[scored]) / max(int(scored.sum()), 1))
    else:
        scored = scored & table.units["keyed"]
        centred = rewards - group_statistics(table.units, rewards, rows=scored)[0].mean
    return np.where(scored, centred, np.nan)[table.unit], WITHOUT_ADVANTAGES
