"""Findings about steps: one that repeats another, and signal that is lost over the steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.base import MOST_NAMED, NotRun, Problem, check
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.analysis.inspect.tokens import is_long
from rlpost.display.text import counted, percent, plural

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result


FEW_RESPONSES = 4  # different ones in a step; fewer may be equal by chance
LEAST_STEPS = 5  # for a trend
LAST = 5  # the last fifth of the steps is compared with those before
MUCH = 1 / 2  # of the groups of the last steps
STANDARD_ERRORS = 3.0  # of a difference of two shares
HALF = 1 << 32  # digests are added in two halves, whose sums fit 64 bits


@check("error", "batch", "response texts or log-probs")
def repeated_steps(data: CheckInput) -> Result:
    """A step has the prompts, responses, rewards and log-probs of another: it was written twice.

    The step would be trained on twice. A restart may have written it again: drop one of the
    two.
    """
    steps = _digests(data)
    if len(steps) < 2:  # noqa: PLR2004
        return NotRun("fewer than 2 steps")
    if not (steps["distinct"] >= FEW_RESPONSES).any():
        return NotRun(f"no step has {FEW_RESPONSES} responses that can be told apart")
    steps = steps.filter(pl.col("distinct") >= FEW_RESPONSES)
    by = ["rows", "low", "high"]
    first = pl.col("batch").first().over(by)
    repeated = steps.with_columns(original=first).filter(pl.col("batch") != pl.col("original"))
    if not len(repeated):
        return None
    column, count = data.column("batch"), int(repeated["rows"].sum())
    pairs = [*repeated.select("batch", "original").iter_rows()]
    named = ", ".join(f"{step} repeats {original}" for step, original in pairs[:MOST_NAMED])
    more = ", ..." if len(pairs) > MOST_NAMED else ""
    noun = column if len(pairs) == 1 else plural(column)
    return Problem(
        89,
        f"{noun} {named}{more}: the same prompts, responses, rewards and log-probs in "
        f"{count:,} of {counted(data.count, 'response')}",
        "check whether the dump was written twice after a restart; drop one of the two, which "
        "would be trained on twice",
        count, data.count,
        [
            replace(data.examples_of_steps([step])[0], text=f"{column} {step} repeats {original}")
            for step, original in pairs[:data.evidence]
        ],
    )  # fmt: skip


def _digests(data: CheckInput) -> pl.DataFrame:
    """Return for each step its `rows`, a digest of them in any order, and `distinct`.

    A response is identified by the numbers of its log-probs, or by a text that is too long to be
    equal by chance; `distinct` counts the different ones among these.
    """
    rows = data.reading.rows
    means = [f"mean:{role}" for role in LOG_PROBS if f"mean:{role}" in rows]
    own = [name for name in ("prompt", "copy", "reward", "tokens", *means) if name in rows]
    known = [pl.col(name).is_finite() & (pl.col(name) != 0) for name in means]
    if data.reading.selection.text is not None:
        known.append(pl.lit(is_long(rows)) & pl.col("copy").is_not_null())
    digests = rows.select(
        "batch", digest=pl.struct(own).hash(), known=pl.any_horizontal(known)
    ).drop_nulls("batch")
    return digests.group_by("batch", maintain_order=True).agg(
        rows=pl.len(),
        low=(pl.col("digest") % HALF).sum(),
        high=(pl.col("digest") // HALF).sum(),
        distinct=pl.col("digest").filter("known").n_unique(),
    )


@check("warning", "batch", "group", "reward")
def vanishing_signal(data: CheckInput) -> Result:
    """The share of groups without signal rose: at the last steps it is a half or more.

    The policy passes, or fails, all responses of more and more prompts, so each step costs as much
    as before and trains less. Sample other prompts (harder ones if all pass), or only groups with
    signal. The last fifth of the steps is compared with those before, by 3 standard errors.
    """
    groups = data.group_rows
    assert groups is not None
    steps = _shares_without_signal(groups)
    if len(steps) < LEAST_STEPS:
        return NotRun(f"fewer than {LEAST_STEPS} steps with groups of several responses")
    last = steps.tail(-(-len(steps) // LAST))
    first = steps.head(len(steps) - len(last))
    counts = [(int(part["equal"].sum()), int(part["groups"].sum())) for part in (first, last)]
    (equal_before, of_before), (equal, of) = counts
    before, after = equal_before / of_before, equal / of
    pooled = (equal_before + equal) / (of_before + of)
    error = math.sqrt(pooled * (1 - pooled) * (1 / of_before + 1 / of))
    if after < MUCH or after - before <= STANDARD_ERRORS * error:
        return None
    column, names = data.column("batch"), last["batch"].to_list()
    several = f"the last {counted(len(names), column)} ({names[0]} to {names[-1]})"
    where = several if len(names) > 1 else f"{column} {names[0]}"
    flags = groups["equal"] & (groups["rows"] > 1) & groups["batch"].is_in(names)
    return Problem(
        56 + 10 * after,
        f"{percent(after)} of the groups of {where} are without signal, {percent(before)} of those "
        "before",
        "sample other prompts (dynamic sampling), or leave the groups out with "
        "--drop-equal-rewards",
        equal, of, data.examples_of_groups(flags),
    )  # fmt: skip


def _shares_without_signal(groups: pl.DataFrame) -> pl.DataFrame:
    """Return for each step, in order, its `groups` of several responses, and how many are `equal`.

    Numbers are in numerical order, names in the order of the input.
    """
    several = groups.filter(pl.col("rows") > 1).drop_nulls("batch")
    steps = several.group_by("batch", maintain_order=True).agg(
        groups=pl.len(), equal=pl.col("equal").sum()
    )
    return steps.sort("batch") if steps["batch"].dtype.is_numeric() else steps
