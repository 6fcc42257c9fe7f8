"""Responses that are no answers: which failed or were replaced, and what baselines they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect.model import Baselines, FailureFacts
from rlpost.analysis.inspect.responses import codes_of, group_table, order_of, response_table
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.kernels.rollouts import superseded
from rlpost.pipeline.failures import failed_units

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Label
    from rlpost.analysis.inspect.selection import PassResult
    from rlpost.recipe.recipe import RolloutReward

MOST_STEPS = 5
MOVED = 1e-9
"""The least difference of two means of rewards that is no rounding error."""


def failed_rows(rows: pl.DataFrame, *, by_rollout: bool) -> pl.Series:
    """Return which rows failed, [n]; by rollout, all rows of one that failed. None without a role.

    The rule is that of `rlpost advantages`.
    """
    failed = (rows["failure"] != "").to_numpy()
    if by_rollout:
        places = (rows[x].to_numpy() if x in rows else None for x in ("turn", "agent_role"))
        failed = failed_units(failed, order_of(rows), *places)
    return pl.Series(failed)


def replaced_rows(rows: pl.DataFrame) -> pl.Series:
    """Return the rows of whose step a later attempt of the run has rows, [n]."""
    attempt = rows["attempt"].fill_nan(-np.inf).to_numpy()
    codes = np.unique(attempt, return_inverse=True)[1].astype(np.int64)
    step = codes_of(rows, ["batch"]) if "batch" in rows else np.zeros(len(rows), np.int64)
    return pl.Series(superseded(step, codes))


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
    return {name: flags.alias(name) for name, flags in signs.items()}


def failure_facts(
    reading: PassResult, pass_threshold: float, reward: RolloutReward | None
) -> FailureFacts | None:
    """Return which responses failed, and the baselines with and without them; None without a role.

    Args:
        reading: of the input.
        pass_threshold: as in `inspect`.
        reward: the reward of a rollout's rows, which count once; None: each row counts.
    """
    rows = reading.rows
    if "failure" not in rows:
        return None
    by_rollout = reward is not None
    failed = failed_rows(rows, by_rollout=by_rollout)
    units = _units(rows, failed, by_rollout=by_rollout)
    reasons = units.filter("failed")["reason"].value_counts(sort=True)
    every, answers = (
        group_table(response_table(some, reward), pass_threshold)
        for some in (rows, rows.filter(~failed))
    )
    return FailureFacts(
        column=reading.selection.columns.column("failure"),
        of="rollout" if by_rollout else "response",
        count=len(units),
        failed=int(units["failed"].sum()),
        reasons={str(name): int(n) for name, n in reasons.iter_rows()},
        by_step=_by_step(units),
        baselines=_baselines(every, answers),
    )


def _units(rows: pl.DataFrame, failed: pl.Series, *, by_rollout: bool) -> pl.DataFrame:
    """Return of each rollout, or of each row, whether it `failed`, the `reason`, and its `batch`.

    The reason is the last in the order of the rollout, which has one in its last turn if it failed.
    """
    named = rows.with_columns(failed=failed)
    if by_rollout:
        named = named.sort("order", maintain_order=True)
    else:
        named = named.with_columns(unit=pl.int_range(len(rows)))
    reason = pl.col("failure").filter(pl.col("failure") != "").last()
    of_step = [pl.first("batch")] if "batch" in rows else []
    units = named.group_by("unit", maintain_order=True)
    return units.agg(pl.first("failed"), *of_step, reason=reason).sort("unit")


def _by_step(units: pl.DataFrame) -> dict[Label, float]:
    """Return the share that failed, of the steps in which most did."""
    if "batch" not in units:
        return {}
    steps = units.group_by("batch", maintain_order=True)
    shares = steps.agg(pl.mean("failed")).sort("failed", descending=True, maintain_order=True)
    return dict(shares.filter(pl.col("failed") > 0).head(MOST_STEPS).iter_rows())


def _baselines(every: pl.DataFrame | None, answers: pl.DataFrame | None) -> Baselines | None:
    """Return the means of rewards with and without failures, and which baselines move how far."""
    if every is None or answers is None or "mean" not in every:
        return None
    by = [key for key in ("batch", "group") if key in every]
    pairs = every.join(answers, on=by, how="left", suffix=":answers", nulls_equal=True)
    distance = (pairs["mean"] - pairs["mean:answers"]).abs().to_numpy()
    moved = distance[distance > MOVED]
    return Baselines(
        groups=len(every),
        emptied=int(np.isnan(distance).sum()),
        moved=len(moved),
        distance=float(moved.mean()) if len(moved) else 0.0,
        farthest=float(moved.max(initial=0.0)),
        mean_with=_mean(every),
        mean_without=_mean(answers),
    )


def _mean(groups: pl.DataFrame) -> float | None:
    """Return the mean reward of the responses of all groups; None if there are none."""
    rows = groups["rows"].to_numpy()
    return float((groups["mean"].to_numpy() * rows).sum() / rows.sum()) if len(rows) else None
