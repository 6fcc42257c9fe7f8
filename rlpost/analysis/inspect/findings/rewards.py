"""Findings about rewards: equal ones, groups without signal, lengths that follow rewards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.display.text import counted, percent, plural, share

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result


HALF = 1 / 2  # of the groups
STEP_EQUAL = 0.9  # of the groups of a step, if those of other steps differ
GROUPS_OF_STEP = 4  # fewer may be equal by chance
ROWS_OF_STEP = 16
NEAR = 5e-7  # of rewards: four units in the last place of float32
SATURATED = 0.95  # of the rewards have one value
LEAST_STEPS = 5  # for a trend
LAST = 5  # the last fifth of the steps is compared with those before
MUCH = 1 / 2  # of the groups of the last steps
SHARE_ERRORS = 3.0  # standard errors of a difference of two shares
CORRELATED = 0.5
CORRELATION_ERRORS = 4.0  # standard errors of a correlation of 0


@check("error or warning", "reward")
def equal_rewards(data: CheckInput) -> Result:
    """All rewards of the input or of some steps are equal, or 95 % are the highest or the lowest.

    A reward minus the mean of equal rewards is 0, so nothing is learnt: the prompts are too easy or
    too hard, the grader does not work, or the column is not the reward. A step counts from 16
    responses on; it is an error if all rewards of most responses are equal.

    Check that the grader works and that the column is the reward; --map reward=COLUMN sets it.
    """
    table, rows = data.table, data.reading.rows
    rewards = table.units["reward"][table.scored]
    if len(rewards) < 2:  # noqa: PLR2004
        return NotRun("fewer than 2 finite rewards")
    steps, reward = pl.DataFrame({"batch": [], "rows": [], "low": []}), pl.col("reward")
    if "batch" in rows:
        finite = rows.filter(reward.is_finite() & data.included).drop_nulls("batch")
        by_step = finite.group_by("batch", maintain_order=True)
        steps = by_step.agg(rows=pl.len(), low=reward.min(), high=reward.max())
        steps = steps.filter(pl.col("low") == pl.col("high"), pl.col("rows") >= ROWS_OF_STEP)
    low, high, count = rewards.min(), rewards.max(), 0
    why = "every baseline makes the advantages 0"
    if low == high:
        count, shown = data.count, pl.Series(table.rows["valid"])
        text = f"all {len(rewards):,} rewards are {low:g}: {why}"
    elif len(steps):
        count, shown = int(steps["rows"].sum()), rows["batch"].is_in(steps["batch"].implode())
        values = ", ".join(f"{x:g}" for x in steps["low"].unique(maintain_order=True)[:3])
        text = f"all {count:,} rewards{data.in_steps(steps['batch'].to_list())} are {values}: {why}"
    else:
        at_ends = {"easy": (high, "highest"), "hard": (low, "lowest")}
        shares = {x: float((rewards == end).mean()) for x, (end, _) in at_ends.items()}
        difficulty = max(shares, key=lambda x: shares[x])
        if shares[difficulty] < SATURATED:
            return None
        end, which = at_ends[difficulty]
        shown = pl.Series(table.rows["valid"] & (table.rows["reward"] != end))
        text = f"{percent(shares[difficulty])} of the rewards are {end:g}, the {which} value: the "
        text += f"prompts are too {difficulty}, or the grader is wrong"
    error = 2 * count > data.count
    return Problem(text, shown, ["reward"], "--map reward=COLUMN", error=error)


@check("warning", "group", "reward")
def no_signal(data: CheckInput) -> Result:
    """Most groups have equal rewards, in the input, in some steps, or in more and more of the last.

    A reward minus the mean of equal rewards is 0: these groups cost as much to sample as others,
    and train nothing. The last fifth of the steps is compared with those before, by 3 standard
    errors. Rewards that are equal but for rounding are named, too: an estimator that divides by
    their std trains on noise.

    Sample other prompts (dynamic sampling; harder ones if all pass), or more responses per prompt,
    round rewards, or leave such groups out with --drop-equal-rewards.
    """
    groups, rows = data.groups, data.group_rows
    assert groups is not None
    assert rows is not None
    several = rows.filter(pl.col("rows") > 1)
    if not len(several):
        return NotRun("no group has several responses")
    count, texts, shown = int(several["equal"].sum()), [], pl.lit(value=True)
    steps = _steps(several)
    full = steps.filter(
        pl.col("equal") > STEP_EQUAL * pl.col("groups"), pl.col("groups") >= GROUPS_OF_STEP
    )["batch"]
    if count >= HALF * len(several) or len(full):
        in_steps = data.in_steps(full.to_list())
        highest = data.facts.whole("reward")["max"]
        low = highest is not None and highest < groups.pass_threshold
        texts.append(
            f"{count:,} of {counted(len(several), 'group')} of several {data.unit}s "
            f"({share(count, len(several))}) are without signal"
            f"{f', most of them{in_steps}' if in_steps else ''}: {groups.equal_all_pass:,} all "
            f"pass, {groups.equal_all_fail:,} none pass"
            f"{f' (no reward reaches {groups.pass_threshold:g}: --pass-threshold)' if low else ''}"
        )
        shown = pl.col("batch").is_in(full.implode()) if in_steps else shown
    last = steps.tail(-(-len(steps) // LAST))
    before = steps.head(len(steps) - len(last))
    if len(steps) >= LEAST_STEPS and _rose(before, last):
        column, names = data.column("batch"), last["batch"].to_list()
        where = (
            f"{plural(column)} {names[0]} to {names[-1]}" if names[1:] else f"{column} {names[0]}"
        )
        texts.append(
            f"{percent(_share(last))} of the groups of {where} are without signal, "
            f"{percent(_share(before))} of those before"
        )
        shown = shown if texts[1:] else pl.col("batch").is_in(names)
    first = several.filter("equal", shown)["first"].to_list() if texts else []
    if near := _nearly_equal(data):
        texts.append(
            f"in {counted(len(near), 'group')}, rewards differ by rounding noise alone (less than "
            f"{NEAR:g} of their size)"
        )
    if not texts:
        return None
    option = "--drop-equal-rewards"
    return Problem("; ".join(texts), [*first, *near], ["reward", "group"], option)


def _nearly_equal(data: CheckInput) -> list[int]:
    """Return the first row of each group whose rewards are almost equal."""
    rows, reward = data.reading.rows, pl.col("reward")
    by = [key for key in ("batch", "group") if key in rows]
    finite = rows.with_row_index("index").filter(reward.is_finite() & data.included)
    groups = finite.group_by(by, maintain_order=True).agg(
        pl.first("index"), spread=reward.max() - reward.min(), most=reward.abs().max()
    )
    near = groups.filter(pl.col("spread") > 0, pl.col("spread") < NEAR * pl.col("most"))
    return near["index"].to_list()


def _steps(groups: pl.DataFrame) -> pl.DataFrame:
    """Return for each step, in order, its `groups`, and how many of them are `equal`.

    Numbers are in numerical order, names in the order of the input; without steps there is no row.
    """
    if "batch" not in groups:
        return pl.DataFrame(schema={"batch": pl.Int64, "groups": pl.Int64, "equal": pl.Int64})
    keyed = groups.drop_nulls("batch").group_by("batch", maintain_order=True)
    steps = keyed.agg(groups=pl.len().cast(pl.Int64), equal=pl.col("equal").sum().cast(pl.Int64))
    return steps.sort("batch") if steps["batch"].dtype.is_numeric() else steps


def _rose(before: pl.DataFrame, last: pl.DataFrame) -> bool:
    """Return whether the share of groups without signal is large at last, and rose."""
    pooled = _share(pl.concat([before, last]))
    counts = (int(steps["groups"].sum()) for steps in (before, last))
    error = math.sqrt(pooled * (1 - pooled) * sum(1 / count for count in counts))
    return _share(last) >= MUCH and _share(last) - _share(before) > SHARE_ERRORS * error


def _share(steps: pl.DataFrame) -> float:
    return int(steps["equal"].sum()) / int(steps["groups"].sum())


@check("warning", "reward", "lengths")
def length_follows_reward(data: CheckInput) -> Result:
    """Reward and length correlate with 0.5 or more (within groups, if there are groups).

    The policy learns lengths in place of answers.

    Check the grader and truncation; --overlong-penalty and --length-weight act against it.
    """
    correlation = data.lengths.reward_correlation if data.lengths else None
    if not correlation or correlation["pearson"] is None:
        return NotRun("rewards or lengths are all equal, or fewer than 3")
    within = correlation["within_groups"]
    value = correlation["spearman"] if within is None else within
    error = 1 / math.sqrt(correlation["rows"])
    if value is None or abs(value) < max(CORRELATED, CORRELATION_ERRORS * error):
        return None
    longer = "longer" if value > 0 else "shorter"
    tokens = data.reading.rows["tokens"].cast(pl.Float64).fill_nan(None)
    text = f"{longer} responses score higher, correlation {value:+.2f}"
    text += (
        f"{'' if within is None else ' within groups'}: the policy learns to write {longer} ones"
    )
    rows = tokens.arg_sort(descending=True, nulls_last=True).to_list()
    return Problem(text, rows, ["reward"], "--overlong-penalty")
