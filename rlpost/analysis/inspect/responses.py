"""Prompt groups, pass@k, rewards and lengths of responses; statistics by step and by domain."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

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
from rlpost.io.keys import name_ranks
from rlpost.kernels.rollouts import RolloutOrder, rollout_ranks
from rlpost.pipeline.turns import turn_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.inspect.model import Json, Label
    from rlpost.analysis.inspect.selection import PassResult
    from rlpost.recipe.recipe import RolloutReward
    from rlpost.recipe.roles import ColumnMap, Unit


MOST_VALUES = 12  # of rewards that are listed
MOST_SIZES = 100
TENTHS = 10
SMALL = 17  # responses of the largest group, at most, for a bin per rate


def response_table(rows: pl.DataFrame, rollout_reward: RolloutReward | None) -> pl.DataFrame:
    """Return a row for each response: `index` of its first row, keys, `reward`, `truncated`.

    A rollout is truncated if its last row is, in the order of `rlpost advantages`.

    Args:
        rows: of a Reading.
        rollout_reward: the reward of the rows of one rollout, which count once; NaN if no row has a
            finite one, and for `last` and `sum` if any row lacks one. Rows without a rollout are
            left out. None: each row counts.
    """
    rows = rows.with_row_index("index")
    if rollout_reward is None:
        return rows
    by = [key for key in ("batch", "group") if key in rows]
    values = [pl.first("index"), *(pl.first(name) for name in ("domain",) if name in rows)]
    if "reward" in rows:
        values.append(_REWARD_OF[rollout_reward].fill_null(math.nan).alias("reward"))
    if "truncated" in rows:
        values.append(pl.col("truncated").sort_by("order", "index").last())
    return rows.drop_nulls("rollout").group_by([*by, "rollout"], maintain_order=True).agg(values)


def group_table(responses: pl.DataFrame, pass_threshold: float) -> pl.DataFrame | None:
    """Return a row per group: its keys, `rows`, `passed`, `equal`, `mean`, `first`.

    A group is the responses of one prompt within one step, as in `rlpost advantages`.

    Args:
        responses: of `response_table`; those without a finite reward, or without a key, do not
            count.
        pass_threshold: a response passes with at least this reward.

    Returns:
        None without a group column. `first` is the index in the rows of the group's first row, and
        `domain` that row's.
    """
    if "group" not in responses:
        return None
    by = [key for key in ("batch", "group") if key in responses]
    valid, reward = responses.drop_nulls(by), pl.col("reward")
    if "reward" not in responses:
        return valid.group_by(by, maintain_order=True).agg(rows=pl.len(), first=pl.first("index"))
    domain = [pl.first("domain")] if "domain" in valid else []
    groups = valid.filter(reward.is_finite()).group_by(by, maintain_order=True)
    return groups.agg(
        *domain,
        rows=pl.len(),
        first=pl.first("index"),
        passed=(reward >= pass_threshold).sum(),
        equal=reward.max() <= reward.min(),
        mean=reward.mean(),
    )


_FINITE = pl.col("reward").is_finite()
_MEAN = pl.col("reward").filter(_FINITE).mean()
_REWARD_OF = {
    "equal": _MEAN,  # rows that differ are a finding
    "mean": _MEAN,
    "sum": pl.when(_FINITE.all()).then(pl.col("reward").sum()),
    "last": pl.when(_FINITE.all()).then(pl.col("reward").sort_by("order", "index").last()),
}


def group_facts(
    groups: pl.DataFrame | None, columns: ColumnMap, pass_threshold: float, unit: Unit
) -> PromptGroup | None:
    """Return the statistics of groups; None without a group column."""
    if groups is None:
        return None
    size = groups["rows"].to_numpy().astype(np.int64)
    values, counts = np.unique(size, return_counts=True)
    has_rewards = "passed" in groups
    several = groups.filter(pl.col("rows") > 1)
    rates = (groups["passed"] / groups["rows"]).to_numpy() if has_rewards else np.zeros(0)
    return PromptGroup(
        count=len(size),
        of="rollout" if unit == "rollout" else "response",
        by=[columns.column(role) for role in ("batch", "group") if role in columns],
        single=int((size == 1).sum()),
        no_signal=int(several["equal"].sum()) if has_rewards else 0,
        size={"min": int(size.min()), "median": float(np.median(size)), "max": int(size.max())}
        if len(size)
        else None,
        sizes=dict(zip(values.tolist()[:MOST_SIZES], counts.tolist()[:MOST_SIZES], strict=True)),
        prompts=groups["group"].n_unique(),
        pass_threshold=pass_threshold,
        all_pass=several.filter(pl.col("passed") == pl.col("rows")).height if has_rewards else 0,
        all_fail=several.filter(pl.col("passed") == 0).height if has_rewards else 0,
        equal_all_pass=_count(several, pl.col("passed") == pl.col("rows")) if has_rewards else 0,
        equal_all_fail=_count(several, pl.col("passed") == 0) if has_rewards else 0,
        pass_rate=mean_of(rates),
        pass_rates=_pass_rates(rates, int(size.max(initial=0))),
        pass_at_k=pass_at_k(size, groups["passed"].to_numpy()) if has_rewards else [],
    )


def _count(groups: pl.DataFrame, flag: pl.Expr) -> int:
    """Return the number of groups with equal rewards for which a flag is set."""
    return groups.filter(pl.col("equal") & flag).height


def turn_kinds(rows: pl.DataFrame) -> pl.Series:
    """Return which rows look like turns, [n] as `rlpost.pipeline.turns.turn_rows`."""
    by = [key for key in ("batch", "group") if key in rows]
    rollout = codes_of(rows, ["rollout"]) if "rollout" in rows else None
    turn = rows["turn"].fill_nan(-1).cast(pl.Int64).to_numpy() if "turn" in rows else None
    if "group" not in rows or (rollout is None and turn is None):
        return pl.zeros(len(rows), pl.Int8, eager=True)
    return pl.Series(turn_rows(codes_of(rows, by), rollout, turn))


def with_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `unit`, codes of rollouts, and `order`, the ranks of their rows, if there are rollouts.

    The order is that of `rlpost advantages`.
    """
    if "rollout" not in rows:
        return rows
    unit = codes_of(rows, [key for key in ("batch", "group", "rollout") if key in rows])
    turn = rows["turn"].fill_nan(-1).to_numpy() if "turn" in rows else None
    branch, agent = (codes_of(rows, [x]) if x in rows else None for x in ("branch", "agent_role"))
    if branch is not None:
        labels = rows["branch"].unique(maintain_order=True).fill_null("").to_list()
        branch = name_ranks(labels)[branch]
    ties = (rows[name].to_numpy() for name in ("tokens", "length", "reward") if name in rows)
    ranks = rollout_ranks(unit, turn, branch, agent, *ties)
    return rows.with_columns(unit=pl.Series(unit), order=pl.Series(ranks))


def order_of(rows: pl.DataFrame) -> RolloutOrder:
    """Return the order of rows that have rollouts; they may be a part of those of the input."""
    return RolloutOrder.of(codes_of(rows, ["unit"]), rows["order"].to_numpy())


def codes_of(rows: pl.DataFrame, keys: list[str]) -> NDArray[np.int64]:
    """Return a number from 0 for each combination of keys, [n]; nulls are equal."""
    different = rows.select(keys).unique(maintain_order=True).with_row_index("code")
    codes = rows.select(keys).join(different, on=keys, nulls_equal=True, maintain_order="left")
    return codes["code"].to_numpy().astype(np.int64)


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


def reward_facts(responses: pl.DataFrame, column: str) -> RewardFacts | None:
    """Return the statistics of rewards, which are of a column; None without one."""
    if "reward" not in responses:
        return None
    every = responses["reward"].to_numpy()
    rewards = every[np.isfinite(every)] + 0.0  # -0 becomes 0
    values, counts = np.unique(rewards, return_counts=True)
    few = len(values) <= MOST_VALUES
    return RewardFacts(
        column=column,
        spread=spread_of(rewards),
        nonfinite=len(every) - len(rewards),
        quantiles=quantiles_of(rewards),
        values={f"{x:.6g}": int(n) for x, n in zip(values, counts, strict=True)} if few else None,
        histogram=histogram_of(rewards),
    )


def length_facts(reading: PassResult) -> LengthFacts | None:
    """Return the statistics of lengths; None without a column of lists or lengths."""
    rows, column = reading.rows, reading.selection.lengths_column
    if "tokens" not in rows or column is None:
        return None
    lengths = _finite(rows, "tokens")
    return LengthFacts(
        column=column,
        spread=spread_of(lengths),
        quantiles=quantiles_of(lengths),
        histogram=length_histogram(lengths),
        at_longest=int((lengths == lengths.max(initial=0)).sum()),
        reward_correlation=_with_reward(rows),
    )


def truncation(responses: pl.DataFrame, columns: ColumnMap) -> Truncation | None:
    """Return how many responses are cut off; None without a column."""
    if "truncated" not in responses:
        return None
    flags, column = responses["truncated"], columns.column("truncated")
    return Truncation(column, int(flags.sum()), float(flags.mean() or 0.0))  # type: ignore[arg-type]


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
    rows: pl.DataFrame,
    responses: pl.DataFrame,
    groups: pl.DataFrame | None,
    key: str,
    pass_threshold: float,
) -> list[Slice]:
    """Return the statistics of each step (`batch`) or `domain`; none without the column.

    Steps are in numerical order if they are whole numbers, otherwise as in the input; domains are
    sorted by name.
    """
    if key not in rows:
        return []
    parts = _partition(rows, key)
    whole = parts if len(responses) == len(rows) else _partition(responses, key)
    labels = [label for (label,) in parts]
    by_label = None
    if groups is not None and "equal" in groups:
        several = groups.filter(pl.col("rows") > 1).drop_nulls(key)
        by_label = dict(several.group_by(key).agg(pl.mean("equal")).iter_rows())
    return [
        _slice(
            label,
            parts[(label,)],
            whole.get((label,), responses.clear()),
            pass_threshold,
            (by_label or {}).get(label),
        )
        for label in _ordered(labels, key)
    ]


def _partition(table: pl.DataFrame, key: str) -> dict[tuple[Any, ...], pl.DataFrame]:
    return table.drop_nulls(key).partition_by(key, maintain_order=True, as_dict=True)


def _ordered(labels: list[Any], key: str) -> list[Any]:
    if key != "batch":
        return sorted(labels, key=str)
    try:
        return sorted(labels, key=int)
    except ValueError:
        return labels


def _slice(
    label: Label,
    rows: pl.DataFrame,
    responses: pl.DataFrame,
    pass_threshold: float,
    no_signal: float | None,
) -> Slice:
    rewards, lengths = _finite(responses, "reward"), _finite(rows, "tokens")
    kl = _finite(rows, "kl")
    compared = float(_finite(rows, "compared").sum())
    return Slice(
        label=label,
        responses=len(rows),
        tokens=token_counts(rows),
        reward=spread_of(rewards),
        length=spread_of(lengths),
        truncated=float(responses["truncated"].mean() or 0) if "truncated" in rows else None,  # type: ignore[arg-type]
        pass_rate=float((rewards >= pass_threshold).mean()) if len(rewards) else None,
        no_signal=no_signal,
        kl=mean_of(kl),
        mismatch=float(_finite(rows, "k3").sum()) / compared if compared else None,
    )


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
