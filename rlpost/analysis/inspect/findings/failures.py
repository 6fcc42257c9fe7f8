"""Findings about responses that are no answers: failures, and rows that a restart replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.failures import signs_of_failures
from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.display.text import counted, percent, share, value_list

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result

FAILED = 0.25  # of the rollouts, or of the rows
FAILED_STEP = 0.5  # of those of one step
UNEQUAL = 0.01  # of the groups differ in size from most


@check("warning", "failure")
def many_failures(data: CheckInput) -> Result:
    """At least 25 % of the rollouts failed, or at least half of those of a step.

    Without rollout ids, each row counts.

    Counted with reward 0, failures lower the baseline of their groups, so the policy is trained
    towards whatever the survivors did. Repair the environment; `rlpost advantages` leaves failures
    out unless --failures keeps them, and --about failures has both baselines.
    """
    facts = data.failures
    assert facts is not None
    if not facts.count:
        return NotRun("no response counts")
    step, worst = next(iter(facts.by_step.items()), (None, 0.0))
    if facts.failed < FAILED * facts.count and worst < FAILED_STEP:
        return None
    at = "" if step is None else f", {percent(worst)} of those of {data.column('batch')} {step}"
    return Problem(
        60 + 25 * facts.failed / facts.count,
        f"{facts.failed:,} of {counted(facts.count, facts.of)} "
        f"({share(facts.failed, facts.count)}) failed{at}: {value_list(facts.reasons)}",
        "repair the environment; `rlpost advantages` leaves failures out (--failures drop, the "
        "default), and --about failures has the baselines with and without them",
        facts.failed, facts.count, data.examples(data.failed, "reward"),
    )  # fmt: skip


@check("warning", "reward", "lengths")
def zeros_without_answers(data: CheckInput) -> Result:
    """Responses with reward 0 have no token, or no log-probs: they look like failures.

    A crash, a time-out or a failed judge is no wrong answer, but with reward 0 it lowers the
    baseline of its group. Write a column with the reason, and name it with --map failure=COLUMN.
    """
    if "failure" in data.reading.rows:
        return NotRun(f"`{data.column('failure')}` has which responses failed")
    flags = signs_of_failures(data.reading.rows)
    every = data.no_answers
    count, rewards = int(every.sum()), data.rewards
    if not count or rewards is None or rewards.spread.min == rewards.spread.max:
        return None
    counts = ", ".join(f"{int(one.sum()):,} {name}" for name, one in flags.items() if one.any())
    return Problem(
        74,
        f"{count:,} of {counted(data.count, 'response')} ({share(count, data.count)}) with reward "
        f"0 look like failures, not like wrong answers: {counts}",
        "check what the environment recorded of them; a column with the reason of each failure "
        "(--map failure=COLUMN) leaves them out of baselines and of training",
        count, data.count, data.examples_named(flags),
    )  # fmt: skip


@check("error", "run_attempt")
def superseded_attempts(data: CheckInput) -> Result:
    """Several attempts of the run wrote rows of the same step: the older ones count twice.

    A run that restarts from a checkpoint writes the steps after it again. Rows of the older attempt
    are from weights that were discarded, and join the groups of the newer one. --attempts newest of
    `rlpost advantages` leaves them out.
    """
    flags = data.replaced & data.counted
    count = int(flags.sum())
    if not count or data.table.resolved.recipe.attempts == "newest":
        return None
    rows = data.reading.rows
    steps = rows["batch"].filter(flags).unique().to_list() if "batch" in rows else []
    return Problem(
        91,
        f"{count:,} of {counted(data.count, 'row')} ({share(count, data.count)}) are of an older "
        f"attempt (`{data.column('run_attempt')}`) than others of their step"
        f"{data.in_steps(steps)}",
        "--attempts newest leaves them out of statistics, here and in `rlpost advantages`",
        count, data.count, data.examples(flags, "attempt"),
    )  # fmt: skip


@check("warning", "group", whole_groups=True)
def unequal_groups(data: CheckInput) -> Result:
    """Prompt groups have fewer or more responses than most, so some were dropped or written twice.

    An asynchronous trainer drops slow or failed rollouts, which leaves a baseline of the quick
    ones; restarts write a prompt twice. Rollouts count, not rows, if there are rollout ids.
    """
    unit = "rollout" if "rollout" in data.reading.rows else "response"
    if unit == "response" and (data.turns > 0).any():
        return NotRun("rows are turns, and a rollout has any number of them")
    groups = _sizes(data)
    if not len(groups):
        return NotRun("no row has all keys")
    sizes = groups["size"].value_counts(sort=True)
    usual, most = sizes.row(0)
    other = groups.filter(pl.col("size") != usual)
    if usual < 2 or most * 2 <= len(groups):  # noqa: PLR2004
        return NotRun("no size is that of most groups")
    if len(other) <= UNEQUAL * len(groups):
        return None
    fewer, more = (other.filter(flag) for flag in (pl.col("size") < usual, pl.col("size") > usual))
    parts = [
        f"{len(part):,} have {what} than the {usual:,} {unit}s of most "
        f"({abs(part['size'] - usual).sum():,} {sign})"
        for part, what, sign in ((fewer, "fewer", "missing"), (more, "more", "too many"))
        if len(part)
    ]
    split = _split(groups, fewer, int(usual))
    text = f"; {split:,} have the others in another `{data.column('batch')}`" if split else ""
    joined = "--map batch=none joins groups over steps; " if split else ""
    return Problem(
        40 + 20 * len(other) / len(groups),
        f"of {counted(len(groups), 'prompt group')}, {' and '.join(parts)}{text}",
        f"{joined}check whether an asynchronous trainer dropped rollouts, which makes baselines "
        "one-sided, or a restart wrote some again",
        len(other), len(groups), data.examples_at(other["first"].to_list()),
    )  # fmt: skip


def _sizes(data: CheckInput) -> pl.DataFrame:
    """Return for each group its keys, its `size` in rollouts or rows, and its `first` row."""
    rows = data.reading.rows.with_row_index("index").filter(~data.replaced)
    by = [key for key in ("batch", "group") if key in rows]
    size = pl.col("rollout").n_unique() if "rollout" in rows else pl.len()
    own = rows.drop_nulls(by).group_by(by, maintain_order=True)
    return own.agg(size=size.cast(pl.Int64), first=pl.first("index"))


def _split(groups: pl.DataFrame, fewer: pl.DataFrame, usual: int) -> int:
    """Return how many of the groups that lack responses have them in other steps."""
    if "batch" not in groups:
        return 0
    total = groups.group_by("group").agg(total=pl.col("size").sum(), steps=pl.len())
    whole = total.filter((pl.col("steps") > 1) & (pl.col("total") == usual))
    return int(fewer["group"].is_in(whole["group"].implode()).sum())


@check("error", "group", "rollout or sample ids")
def repeated_rollouts(data: CheckInput) -> Result:
    """Rows of one rollout are there twice, or one sample of a prompt is of several rollouts.

    A restart, or a retry of the writer, wrote them again: they count and are trained on twice. Drop
    the copies.
    """
    rows = data.reading.rows.with_row_index("index").filter(~data.replaced & data.counted)
    by = [key for key in ("batch", "group") if key in rows]
    rows = rows.drop_nulls(by)
    found: dict[str, list[int]] = {}
    if {"rollout", "copy"} <= {*rows.columns}:
        own = [name for name in ("rollout", "turn", "copy", "tokens", "reward") if name in rows]
        copies = rows.filter(pl.struct([*by, *own]).is_duplicated() & (pl.col("copy") != 0))
        later = copies.filter(~pl.struct([*by, *own]).is_first_distinct())
        found["rows of a rollout again"] = later["index"].to_list()
    if "sample" in rows and not (data.turns > 0).any() | ("turn" in rows):
        again = ~pl.struct([*by, "sample"]).is_first_distinct()
        found["a sample again"] = rows.filter(again)["index"].to_list()
    elif {"sample", "rollout"} <= {*rows.columns}:
        first = pl.col("rollout").first().over([*by, "sample"])
        found["a sample again"] = rows.filter(pl.col("rollout") != first)["index"].to_list()
    indices = sorted({index for one in found.values() for index in one})
    if not indices or len(indices) * 2 > data.count:
        return None if not indices else NotRun("most sample ids repeat, so they number no rollouts")
    counts = ", ".join(f"{len(one):,} {name}" for name, one in found.items() if one)
    return Problem(
        86,
        f"{len(indices):,} of {counted(data.count, 'row')} ({share(len(indices), data.count)}) "
        f"are there twice: {counts}",
        "check whether a restart or a retry wrote them again, and drop the copies, which count and "
        "train twice",
        len(indices), data.count, data.examples_at(indices, "turn", "reward"),
    )  # fmt: skip
