"""Statistics of reward components: spread, groups without signal, correlation, share."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from rlpost.analysis.inspect import advantages
from rlpost.analysis.inspect.model import ComponentFacts
from rlpost.analysis.inspect.statistics import exact_sum, mean_of, spread_of
from rlpost.kernels.contributions import PairSums, advantage_shares, correlation
from rlpost.pipeline.signal import equal_components
from rlpost.pipeline.stages.rewards import group_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.selection import PassResult

    Numbers = NDArray[np.float64]


WITHOUT_ADVANTAGES = "reward minus the mean of its group"
"""What the share is of in an input without advantages: the advantage of a group baseline."""


def component_facts(
    reading: PassResult, table: CountedTable, stored_shares: Mapping[str, float | None] | None
) -> dict[str, ComponentFacts]:
    """Return the statistics of each reward component; none if the user names no components.

    Args:
        reading: of the pass.
        table: of its rows.
        stored_shares: the shares of the advantage in the metadata of the input, whose estimator
            normalised the components; None: they are computed here.
    """
    weights, scored = reading.selection.components, table.scored
    if not weights:
        return {}
    columns = {name: table.units[f"component:{name}"][scored] for name in weights}
    shares, of = _shares(reading, table)
    if stored_shares is not None:
        shares, of = dict(stored_shares), reading.selection.advantages or ""
    keyed = scored & table.units["keyed"]
    equal = equal_components(table.units, table.resolved.recipe, keyed)
    reward, grouped = table.units["reward"][scored], "group" in reading.rows
    counted = reading.rows.select(f"component:{name}" for name in weights).filter(table.counted)
    return {
        name: ComponentFacts(
            weight=weight,
            spread=spread_of(columns[name]),
            nonfinite=int((~counted[f"component:{name}"].is_finite()).sum()),
            no_signal=equal[name] if grouped else None,
            reward_correlation=_correlation(columns[name], reward),
            correlations={
                other: _correlation(columns[name], columns[other])
                for other in weights
                if other != name
            },
            advantage_share=shares[name],
            share_of=of,
        )
        for name, weight in weights.items()
    }


def _correlation(x: Numbers, y: Numbers) -> float | None:
    sums = (x, y, x * x, y * y, x * y)
    return correlation(PairSums(Fraction(len(x)), *map(exact_sum, sums)))


def _shares(reading: PassResult, table: CountedTable) -> tuple[dict[str, float | None], str]:
    """Return the share of each component, and what it is a share of."""
    rows, column = reading.rows, reading.selection.advantages
    if column is not None and advantages.COUNT in rows:
        tokens = rows[advantages.COUNT].to_numpy().astype(np.float64)
        total, of = rows[advantages.TOTAL].to_numpy() / np.maximum(tokens, 1), column
        there = tokens > 0
    else:
        total, of = _centred(table, grouped="group" in rows), WITHOUT_ADVANTAGES
        there = np.isfinite(total)
        total = np.where(there, total, 0.0)
    parts = {}
    for name, weight in reading.selection.components.items():
        values = table.rows[f"component:{name}"]
        part = np.where(there & np.isfinite(values), values, 0.0) * weight
        parts[name] = exact_sum(part * total), exact_sum(part)
    return advantage_shares(parts, int(there.sum()), exact_sum(total)), of


def _centred(table: CountedTable, *, grouped: bool) -> Numbers:
    """Return the reward minus the mean of its group, [N]; NaN without a finite reward or a key."""
    rewards, rows = table.units["reward"], table.scored
    if not grouped:
        centred = rewards - (mean_of(rewards[rows]) or 0.0)
    else:
        rows = rows & table.units["keyed"]
        centred = rewards - group_statistics(table.units, rewards, rows=rows)[0].mean
    there = table.rows["valid"] & rows[table.unit]
    return np.where(there, centred[table.unit], np.nan)
