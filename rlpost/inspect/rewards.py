"""Rewards and lengths of the responses, and how the one follows the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.inspect.model import LengthFacts, RewardFacts, Truncation
from rlpost.inspect.statistics import (
    histogram_of,
    length_histogram,
    pearson,
    quantiles_of,
    spearman,
    spread_of,
)

if TYPE_CHECKING:
    from rlpost.inspect.model import Json
    from rlpost.inspect.reading import Reading

MOST_VALUES = 12


def reward_facts(reading: Reading) -> RewardFacts | None:
    """Facts of the reward column; None where there is none."""
    if "reward" not in reading.rows:
        return None
    every = reading.rows["reward"].to_numpy()
    rewards = every[np.isfinite(every)] + 0.0  # -0 is 0
    values, counts = np.unique(rewards, return_counts=True)
    few = len(values) <= MOST_VALUES
    return RewardFacts(
        column=reading.wanted.columns.column("reward"),
        spread=spread_of(rewards),
        nonfinite=len(every) - len(rewards),
        quantiles=quantiles_of(rewards),
        values={f"{x:.6g}": int(n) for x, n in zip(values, counts, strict=True)} if few else None,
        histogram=histogram_of(rewards),
    )


def length_facts(reading: Reading) -> LengthFacts | None:
    """Facts of the lengths; None where no list column tells them."""
    rows, column = reading.rows, reading.wanted.lists_column
    if "tokens" not in rows or column is None:
        return None
    lengths = rows["tokens"].to_numpy()
    return LengthFacts(
        column=column,
        spread=spread_of(lengths),
        quantiles=quantiles_of(lengths),
        histogram=length_histogram(lengths),
        truncated=_truncation(reading),
        at_longest=int((lengths == lengths.max(initial=0)).sum()),
        reward_correlation=_with_reward(rows),
    )


def _truncation(reading: Reading) -> Truncation | None:
    if "truncated" not in reading.rows:
        return None
    flags = reading.rows["truncated"]
    column = reading.wanted.columns.column("truncated")
    return Truncation(column, int(flags.sum()), float(flags.mean() or 0.0))  # type: ignore[arg-type]


def _with_reward(rows: pl.DataFrame) -> Json | None:
    """How rewards follow lengths: over all rows, and within groups, where a prompt is no cause."""
    if "reward" not in rows:
        return None
    valid = rows.filter(pl.col("reward").is_finite())
    reward, length = valid["reward"].to_numpy(), valid["tokens"].to_numpy()
    found: Json = {
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
        # what is left of equal rewards is rounding, which correlates with nothing
        if np.abs(sides[0]).max(initial=0.0) > 1e-9 * np.abs(reward).max(initial=0.0):
            found["within_groups"] = pearson(*sides)
    return found
