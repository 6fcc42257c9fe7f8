"""Profiles of a critic and of the policy's entropy, which are no means over a population."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.responses import row_advantages
from rlpost.analysis.inspect.tokens import LAMBDAS, policy_role
from rlpost.kernels.moments import exact_sums, group_moments, group_offsets
from rlpost.pipeline.recorded import row_facts
from rlpost.pipeline.resolved import resolve_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.model import Facts, Json, Label
    from rlpost.analysis.inspect.profiles import BinnedSums
    from rlpost.analysis.inspect.reading import PassResult
    from rlpost.recipe.recipe import Recipe


DECILES = 10
TOP = 0.2
"""Share of tokens, those of the highest entropy (arXiv 2506.01939)."""


def critic_profile(reading: PassResult) -> Json | None:
    """Return calibration, means by position and the targets of each λ; None without tokens."""
    positions, bins = reading.sums.by_position("critic"), reading.bins["value"]
    if positions is None:
        return None
    parts = bins.parts(DECILES)
    groups, lambdas = _lambdas(reading.rows)
    return {
        "calibration": {
            "count": [int(bins.counts[part].sum()) for part in parts],
            **{name: [bins.mean(name, part) for part in parts] for name in ("value", "return")},
        },
        "by_position": positions,
        "groups": groups,
        "lambdas": lambdas,
    }


def _lambdas(rows: pl.DataFrame) -> tuple[int, Json | None]:
    """Return the number of groups of several responses, and the targets V + A by λ.

    `bias` is of a group's mean target less its mean return, without what chance adds; `std` of one
    target within groups. Both are root mean squares over groups; `error` is √(bias² + std²). Rows
    of later turns have another first state than their prompt, and are left out.
    """
    keys = [key for key in ("batch", "group") if key in rows]
    if "group" not in keys or "target:1.0" not in rows:
        return 0, None
    rows = rows.filter(pl.col("target:1.0").is_finite()).drop_nulls(keys)
    if "turn" in rows:
        rows = rows.filter(pl.col("turn") == pl.col("turn").min().over(keys))
    rows = rows.filter(pl.len().over(keys) > 1)
    if not len(rows):
        return 0, None
    codes = rows.select(pl.struct(keys).rank("dense") - 1).to_series().to_numpy().astype(np.int64)
    columns = [rows[f"target:{lam}"].to_numpy() for lam in LAMBDAS]
    order = np.lexsort((*columns, codes))  # sums do not depend on the order of the input
    offsets = group_offsets(codes, count := int(codes.max()) + 1)
    bias, std = list[float](), list[float]()
    for column in columns:
        targets, leads = column[order], (column - columns[-1])[order]
        target, lead = (group_moments(x, offsets) for x in (targets, leads))
        squares = lead.mean**2 - lead.std**2 / lead.number, target.std**2
        means = [math.fsum(x) / count for x in squares]
        bias.append(math.sqrt(max(means[0], 0.0)))
        std.append(means[1] ** 0.5)
    error = [*map(math.hypot, bias, std)]
    return count, {"lambda": [*LAMBDAS], "bias": bias, "std": std, "error": error}


def entropy_profile(reading: PassResult, facts: Facts) -> Json | None:
    """Return what the entropy is of, its highest tokens, and means by position; None without it."""
    positions, selection = reading.sums.by_position("policy"), reading.selection
    if positions is None:
        return None
    role, whole = policy_role(selection.tokens), facts.whole("entropy")
    log_probs = selection.columns.column(role) if role else None
    total = whole["mean"] * whole["count"]
    share, top, least = _top(reading.bins["entropy"], whole["count"], total)
    return {
        "column": selection.entropy or log_probs or "",
        "sampled": selection.entropy is None,
        "top_share": share,
        "top_mean": top,
        "top_least": least,
        "by_position": positions,
        "log_probs": log_probs,
    }


def _top(bins: BinnedSums, count: int, whole: float) -> tuple[float | None, float, float]:
    """Return the share of the sum in the highest tokens, their mean, and the lowest of them.

    Of the bin that has the last of them, tokens count with its mean.
    """
    wanted = max(TOP * count, 1.0)
    above = bins.counts[::-1].cumsum()[::-1]
    last = int(np.flatnonzero(above >= wanted)[-1])
    higher = int(above[last + 1]) if last + 1 < len(bins.counts) else 0
    parts = slice(last + 1, None), slice(last, last + 1)
    most, edge = (bins.mean("entropy", part) for part in parts)
    total = most * higher + edge * (wanted - higher)
    return (total / whole if whole > 0 else None), total / wanted, edge


def covariance(
    reading: PassResult, table: CountedTable, steps: Sequence[Label]
) -> tuple[str | None, Json]:
    """Return what the advantages are, and their covariance with log-probs; none if it is unknown.

    That is the mean over policy tokens of (A - mean A)(log π - mean log π), with the means of a
    step, as of a batch of `clip_cov`; of the whole input, the mean over the tokens of all steps.

    Args:
        reading: of the input.
        table: of its rows.
        steps: in order; none without the column.
    """
    rows, column = reading.rows, reading.selection.advantages
    if "entropy:l" not in rows:
        return None, {}
    tokens, log = (rows[f"entropy:{name}"].to_numpy() for name in ("l_tokens", "l"))
    advantages: str | None = column
    if "entropy:a" in rows and rows["entropy:a"].is_finite().any():
        credit, product = (rows[f"entropy:{name}"].to_numpy() for name in ("a", "la"))
    elif (column is not None and "advantage" in rows) or {"reward", "group"} <= {*rows.columns}:
        of_row, advantages = row_advantages(rows, table, column)
        credit, product = of_row * tokens, of_row * log
    else:
        return None, {}
    known = table.counted & (tokens > 0) & np.isfinite(credit)
    if "kept" in rows:
        known &= rows["kept"].to_numpy()
    codes = np.zeros(len(rows), np.int64)
    if "batch" in rows:
        places = {label: place for place, label in enumerate(steps)}
        of_labels = [places.get(label, -1) for label in table.rows.labels["step"]]
        codes = np.array(of_labels, np.int64)[table.rows["step"]]
        known &= codes >= 0
    if not known.any():
        return None, {}
    columns, codes = (tokens, log, credit, product), codes[known]
    sums = (exact_sums(values[known], codes, max(len(steps), 1)) for values in columns)
    counts, log, advantage, product = sums
    number = counts.clip(1)
    values = product / number - (log / number) * (advantage / number)
    total = float(counts.sum())
    mean = float(sum((values * counts).tolist()) / total)
    entry: dict[str, Any] = {"of": "policy", "all": {"count": int(total), "value": mean}}
    if "batch" in rows:
        known = [value if n else None for value, n in zip(values.tolist(), counts, strict=True)]
        entry["step"] = {"label": [*steps], "count": counts.astype(int).tolist(), "value": known}
    return advantages, entry


def recorded_facts(reading: PassResult, table: CountedTable, recipe: Recipe) -> Json:
    """Return how recorded advantages differ from those of grpo, as `rlpost advantages` does.

    None are compared if they differ between the tokens of a response, or without a group or reward.
    """
    rows, selection = reading.rows, reading.selection
    if not selection.recorded or not {"group", "reward"} <= {*rows.columns}:
        return {}
    known = table.counted & table.rows["keyed"] & table.rows["valid"]
    if not known.any() or not rows["one_advantage"].to_numpy()[known].all():
        return {}
    columns = replace(selection.columns, rows_only=True)
    resolved = resolve_recipe(recipe.model_copy(update={"estimator": "grpo"}), columns)
    values = np.where(known, rows["advantage"].to_numpy(), np.nan)
    tokens = np.nan_to_num(rows["tokens"].to_numpy()) if "tokens" in rows else np.ones(len(rows))
    return row_facts(table.rows, values, tokens, resolved)
