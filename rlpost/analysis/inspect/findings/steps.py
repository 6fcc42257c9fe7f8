"""The finding about whole steps: one that repeats another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.base import MOST_EVIDENCE, NotRun, Problem, check
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.analysis.inspect.tokens import is_long
from rlpost.display.text import counted, plural

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result


FEW_RESPONSES = 4  # different ones in a step; fewer may be equal by chance
HALF = 1 << 32  # digests are added in two halves, whose sums fit 64 bits


@check("error", "batch", "response texts or log-probs")
def repeated_steps(data: CheckInput) -> Result:
    """A step has the prompts, responses, rewards and log-probs of another: it was written twice."""
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
    named = ", ".join(f"{step} repeats {original}" for step, original in pairs[:MOST_EVIDENCE])
    more = ", ..." if len(pairs) > MOST_EVIDENCE else ""
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
            for step, original in pairs[:MOST_EVIDENCE]
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
