"""Responses that are no answers: which failed or were replaced, and what baselines they change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import Baselines, FailureFacts
from rlpost.analysis.inspect.responses import group_table, table_of
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.pipeline.failures import reasons_of_failures

if TYPE_CHECKING:
    from rlpost.analysis.counted import CountedTable
    from rlpost.pipeline.columns import Masked

MOVED = 1e-9
"""The least difference of two means of rewards that is no rounding error."""


def signs_of_failures(rows: pl.DataFrame) -> dict[str, pl.Series]:
    """Return by sign the rows with reward exactly 0 that look like failures, [n] each.

    They have no token, or log-probs of 0 alone, which no engine computed. Masked tokens alone are a
    matter of the mask. Two other signs were tried on generated files, and are worth nothing: a
    policy gives short wrong answers, too, and a step of many zeros may have hard prompts.
    """
    if "reward" not in rows or "tokens" not in rows:
        return {}
    zero, tokens = rows["reward"] == 0, rows["tokens"]
    none = rows["length" if "length" in rows else "tokens"] == 0
    signs = {"without tokens": zero & none} if none.sum() * 2 < len(rows) else {}
    means = [rows[name] for name in (f"mean:{role}" for role in LOG_PROBS) if name in rows]
    computed = [mean for mean in means if (mean == 0).sum() * 2 < len(rows)]  # in most rows
    if computed:
        none = zero & (tokens > 0)
        for mean in computed:
            none &= (mean == 0).fill_null(value=False)
        signs["without log-probs"] = none
    return signs


def failure_facts(
    rows: pl.DataFrame, table: CountedTable, column: str | None, *, masked: Masked
) -> FailureFacts | None:
    """Return why responses failed, and the baselines with and without them; None without a role.

    Args:
        rows: of a PassResult.
        table: of the rows.
        column: that names failures.
        masked: as of `counted_table`.
    """
    if column is None:
        return None
    resolved, groups = table.resolved, list[pl.DataFrame | None]()
    for how in ("keep", "drop"):
        recipe = resolved.recipe.model_copy(update={"failures": how})
        same = how == resolved.recipe.failures
        treated = table if same else table_of(rows, replace(resolved, recipe=recipe), masked=masked)
        groups.append(group_table(rows, treated))
    return FailureFacts(
        column=column,
        treatment=resolved.recipe.failures,
        reasons=dict(reasons_of_failures(table.rows).most_common()),
        baselines=_baselines(*groups),
    )


def _baselines(groups: pl.DataFrame | None, answers: pl.DataFrame | None) -> Baselines | None:
    """Return the means of rewards with and without failures, and which baselines move how far."""
    if groups is None or answers is None or "mean" not in groups:
        return None
    by = [key for key in ("batch", "group") if key in groups]
    pairs = groups.join(answers, on=by, how="left", suffix=":answers", nulls_equal=True)
    distance = (pairs["mean"] - pairs["mean:answers"]).abs().to_numpy()
    moved = distance[distance > MOVED]
    return Baselines(
        groups=len(groups),
        emptied=int(np.isnan(distance).sum()),
        moved=len(moved),
        distance=float(moved.mean()) if len(moved) else 0.0,
        farthest=float(moved.max(initial=0.0)),
        mean_with=_mean(groups),
        mean_without=_mean(answers),
    )


def _mean(groups: pl.DataFrame) -> float | None:
    """Return the mean reward of the responses of all groups; None if there are none."""
    rows = groups["rows"].to_numpy()
    return float((groups["mean"].to_numpy() * rows).sum() / rows.sum()) if len(rows) else None
