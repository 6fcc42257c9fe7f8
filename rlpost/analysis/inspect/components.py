"""Statistics of reward components: spread, groups without signal, correlation, share."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect import advantages
from rlpost.analysis.inspect.model import ComponentFacts
from rlpost.analysis.inspect.statistics import exact_sum, spread_of
from rlpost.kernels.contributions import PairSums, advantage_shares, correlation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.inspect.selection import PassResult

    Numbers = NDArray[np.float64]


WITHOUT_ADVANTAGES = "reward minus the mean of its group"
"""What the share is of in an input without advantages: the advantage of a group baseline."""


def total_of(components: Mapping[str, Numbers], weights: Mapping[str, float]) -> Numbers:
    """Return the reward that is made of components, [n]; NaN if a component is missing."""
    total = np.zeros(len(next(iter(components.values()))))
    for name, values in components.items():
        total = total + values * weights[name]
    return total


def component_facts(
    reading: PassResult, stored_shares: Mapping[str, float | None] | None
) -> dict[str, ComponentFacts]:
    """Return the statistics of each reward component; none if the user names no components.

    Args:
        reading: of the pass.
        stored_shares: the shares of the advantage in the metadata of the input, whose estimator
            normalised the components; None: they are computed here.
    """
    rows, weights = reading.rows, reading.selection.components
    if not weights:
        return {}
    columns = {name: rows[f"component:{name}"].to_numpy() for name in weights}
    shares, of = _shares(reading, columns, weights)
    if stored_shares is not None:
        shares, of = dict(stored_shares), reading.selection.advantages or ""
    reward = rows["reward"].to_numpy()
    facts = {}
    for name, weight in weights.items():
        finite = np.isfinite(columns[name])
        facts[name] = ComponentFacts(
            weight=weight,
            spread=spread_of(columns[name][finite]),
            nonfinite=int((~finite).sum()),
            no_signal=_equal_groups(rows, name),
            reward_correlation=_correlation(columns[name], reward),
            correlations={
                other: _correlation(columns[name], columns[other])
                for other in weights
                if other != name
            },
            advantage_share=shares[name],
            share_of=of,
        )
    return facts


def _equal_groups(rows: pl.DataFrame, name: str) -> int | None:
    """Return in how many groups of several a component has one value; None without groups."""
    if "group" not in rows:
        return None
    by, value = [key for key in ("batch", "group") if key in rows], pl.col(f"component:{name}")
    valid = rows.drop_nulls(by).filter(value.is_finite())
    groups = valid.group_by(by).agg(rows=pl.len(), equal=value.max() <= value.min())
    return groups.filter(pl.col("equal") & (pl.col("rows") > 1)).height


def _correlation(x: Numbers, y: Numbers) -> float | None:
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    sums = (x, y, x * x, y * y, x * y)
    return correlation(PairSums(Fraction(len(x)), *map(exact_sum, sums)))


def _shares(
    reading: PassResult, columns: Mapping[str, Numbers], weights: Mapping[str, float]
) -> tuple[dict[str, float | None], str]:
    """Return the share of each component, and what it is a share of."""
    rows, column = reading.rows, reading.selection.advantages
    if column is not None and advantages.COUNT in rows:
        tokens = rows[advantages.COUNT].to_numpy().astype(np.float64)
        total, of = rows[advantages.TOTAL].to_numpy() / np.maximum(tokens, 1), column
        there = tokens > 0
    else:
        total, of = _centred(rows), WITHOUT_ADVANTAGES
        there = np.isfinite(total)
        total = np.where(there, total, 0.0)
    parts = {}
    for name, values in columns.items():
        part = np.where(there & np.isfinite(values), values, 0.0) * weights[name]
        parts[name] = exact_sum(part * total), exact_sum(part)
    return advantage_shares(parts, int(there.sum()), exact_sum(total)), of


def _centred(rows: pl.DataFrame) -> Numbers:
    """Return the reward minus the mean of its group, [n]; NaN without a finite reward or a key."""
    by = [key for key in ("batch", "group") if key in rows]
    reward = pl.when(pl.col("reward").is_finite()).then("reward")
    mean = reward.mean()
    if "group" not in rows:
        return rows.select(reward - mean).to_series().fill_null(np.nan).to_numpy()
    keyed = pl.all_horizontal(pl.col(key).is_not_null() for key in by)
    centred = pl.when(keyed).then(reward - mean.over(by))
    return rows.select(centred).to_series().fill_null(np.nan).to_numpy()
