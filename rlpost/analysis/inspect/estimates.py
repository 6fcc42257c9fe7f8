"""Numbers of advantages and log-probs that are no sums over a population."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.inspect.responses import row_advantages
from rlpost.analysis.inspect.tokens import policy_role
from rlpost.kernels.moments import exact_sums
from rlpost.pipeline.recorded import row_facts
from rlpost.pipeline.resolved import resolve_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.counted import CountedTable
    from rlpost.analysis.inspect.model import Facts, Json, Label
    from rlpost.analysis.inspect.reading import PassResult
    from rlpost.recipe.recipe import Recipe


def entropy_profile(reading: PassResult, facts: Facts, advantages: str | None) -> Json | None:
    """Return the columns of entropies, log-probs and advantages; None without entropies."""
    if "entropy" not in facts.facts:
        return None
    selection = reading.selection
    role = policy_role(selection.tokens)
    log_probs = selection.columns.column(role) if role else None
    return {
        "column": selection.entropy or log_probs or "",
        "sampled": selection.entropy is None,
        "log_probs": log_probs,
        "covariance_of": advantages,
    }


def covariance(
    reading: PassResult, table: CountedTable, steps: Sequence[Label]
) -> tuple[str | None, Json]:
    """Return what the advantages are, and the fact of their covariance with log-probs, if known.

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
    return advantages, {"covariance": entry}


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
