"""Findings about responses: recorded advantages, rewards, lengths, failures, copies, ends."""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.display.text import counted, percent, share, value_list
from rlpost.kernels.moments import reaches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.analysis.inspect.findings.base import Result
    from rlpost.analysis.inspect.inspected import Inspected


SLACK = 0.01  # of the deviation of advantages: dumps round them
FITS = 0.9  # of the groups; others lack responses that were left out
MOST_ROWS = 20_000  # in which other groups are sought
FOLLOWS, ERRORS = 0.5, 3.0  # correlation that penalties and shaping leave, less standard errors


@check("warning", "group", "reward", "recorded advantages", whole_groups=True)
def recorded_advantages(data: Inspected) -> Result:
    """Advantages that a trainer recorded are of other groups than the key's, or of another reward.

    In a group, responses of equal rewards have equal advantages, those of higher rewards higher
    ones, and the mean is 0. Where this is not so, groups by prompt, domain, or over all steps are
    tried. If none fits, and advantages hardly correlate with rewards within groups, they are of
    other rows or rewards. --map advantages=none leaves them out.

    Choose the key or the reward that the trainer had, and check the order of rows.
    """
    known = pl.col("advantage").is_finite() & pl.col("reward").is_finite()
    rows = data.rows.with_row_index("index")
    rows = rows.with_columns(reward=data.table.row_rewards)
    rows = rows.filter(data.included & known)
    flat = rows.filter("one_advantage")
    if 2 * len(flat) < max(len(rows), 1):
        return NotRun("advantages differ between the tokens of a response")
    keys, of = [x for x in ("batch", "group") if x in flat], data.selection.advantages
    shown, broken, several, fits = _contradictions(flat, keys)
    if fits:
        return None
    text = f"have other means than 0 in groups by `{data.column('group')}`"
    if broken:
        text = f"contradict `{data.column('reward')}` in {broken:,} of {several:,} groups by "
        text += f"`{data.column('group')}` ({share(broken, several)}): equal rewards have "
        text += "different ones, or a higher reward a lower one"
    for words, option, by in _other_groups(data, flat, keys):
        if _contradictions(flat.head(MOST_ROWS), by)[-1]:
            text = f"the recorded advantages (`{of}`) {text}; {words} fit"
            return Problem(text, shown, ["group", "reward", str(of)], option)
    turns = "rollout" not in data.table.rows and (data.turns > 0).any()
    follows = None if turns else _correlation(flat, keys)
    if broken and follows is not None and follows < FOLLOWS - ERRORS / math.sqrt(len(flat)):
        text = f"the recorded advantages (`{of}`) {text}, and their correlation within groups is "
        text += f"{follows:+.2f}: they are of other rows or rewards"
        return Problem(text, shown, ["group", "reward", str(of)])
    return None


def _correlation(rows: pl.DataFrame, keys: list[str]) -> float | None:
    """Return the correlation of rewards and advantages within groups of several rewards."""
    rows = rows.filter(pl.col("reward").n_unique().over(keys) > 1)
    within = [pl.col(name) - pl.col(name).mean().over(keys) for name in ("reward", "advantage")]
    correlation: float | None = rows.select(pl.corr(*within)).item()
    return correlation


def _other_groups(
    data: Inspected, rows: pl.DataFrame, keys: list[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield other groups: what they are, what chooses them, and their keys."""
    for role in ("prompt", "domain"):
        if role in rows and rows[role].n_unique() > 1:
            column, by = data.column(role), [*keys[:-1], role]
            yield f"groups by `{column}`", f"--map group={column}", by
    if len(keys) > 1:
        yield "groups over all steps", "--map batch=none", ["group"]


def _contradictions(rows: pl.DataFrame, by: list[str]) -> tuple[list[int], int, int, bool]:
    """Return which rows of groups have advantages in another order than their rewards.

    Returns:
        Their `index`, the number of their groups, that of groups of several rows, and whether
        advantages follow rewards in nearly all groups, and have the mean 0 there.
    """
    columns = rows.select(pl.struct(by).hash().alias("key"), "reward", "advantage")
    keys, rewards, advantages = (x.to_numpy() for x in columns)
    order, slack = np.lexsort((advantages, rewards, keys)), SLACK * float(advantages.std())
    key, rise = keys[order], np.diff(advantages[order])
    same, higher = key[1:] == key[:-1], np.diff(rewards[order]) > 0
    broken = np.flatnonzero(same & ((rise < -slack) | (~higher & (rise > slack)))) + 1
    first = np.concatenate([[True], ~same])
    starts, groups = np.flatnonzero(first), np.unique(np.cumsum(first)[broken] - 1)
    size = np.diff([*starts, len(key)])
    fits = np.abs(np.add.reduceat(advantages[order], starts)) <= slack * size
    fits[groups] = False
    shown = rows["index"].to_numpy()[order[broken]].tolist()
    return shown, len(groups), int((size > 1).sum()), bool(fits.mean() >= FITS)


HALF = 1 / 2  # of the groups
STEP_EQUAL = 0.9  # of the groups of a step, if those of other steps differ
GROUPS_OF_STEP = 4  # fewer may be equal by chance
SATURATED = 0.95  # of the rewards have one value
WITHOUT_PASS = 1 / 4  # of the groups with signal
CORRELATED = 0.5
ROUNDING = 1e-9  # of the largest reward, that equal ones deviate from their mean
CORRELATION_ERRORS = 4.0  # standard errors of a correlation of 0
FAILED = 0.25  # of the rollouts, or of the rows
FAILED_STEP = 0.5  # of those of one step
TRUNCATED = 0.25
LARGE = 128  # tokens that are a length limit
AT_LIMIT = 0.05  # of the responses have exactly the maximum length


@check("error or warning", "reward")
def equal_rewards(data: Inspected) -> Result:
    """All rewards are equal, an error, or 95 % of them are the highest or the lowest.

    A reward minus the mean of equal rewards is 0, so nothing is learnt: the prompts are too easy or
    too hard, the grader does not work, or the column is not the reward.

    Check that the grader works and that the column is the reward; --map reward=COLUMN sets it.
    """
    rewards, rows = data.table.units["reward"][data.table.scored], data.table.rows
    if len(rewards) < 2:  # noqa: PLR2004
        return NotRun("fewer than 2 finite rewards")
    low, high = rewards.min(), rewards.max()
    if low == high:
        text = f"all {len(rewards):,} rewards are {low:g}: every baseline makes the advantages 0"
        shown = pl.Series(rows["valid"])
        return Problem(text, shown, ["reward"], "--map reward=COLUMN", error=True)
    at_ends = {"easy": (high, "highest"), "hard": (low, "lowest")}
    shares = {x: float((rewards == end).mean()) for x, (end, _) in at_ends.items()}
    difficulty = max(shares, key=lambda x: shares[x])
    if shares[difficulty] < SATURATED:
        return None
    end, which = at_ends[difficulty]
    text = f"{percent(shares[difficulty])} of the rewards are {end:g}, the {which} value: the "
    text += f"prompts are too {difficulty}, or the grader is wrong"
    shown = pl.Series(rows["valid"] & (rows["reward"] != end))
    return Problem(text, shown, ["reward"], "--map reward=COLUMN")


@check("warning", "group", "reward")
def no_signal(data: Inspected) -> Result:
    """Half of the groups have equal rewards, or 90 % of those of a step.

    A reward minus the mean of equal rewards is 0: these groups cost as much to sample as others,
    and train nothing. Rewards are equal if they differ by rounding alone, at most 4·2⁻²³ of the
    largest: a framework that divides them by their std trains on noise.

    Sample other prompts (dynamic sampling; harder ones if all pass), or more responses per prompt,
    or leave such groups out with --drop-equal-rewards.
    """
    facts, groups, rows = data.facts, data.facts.prompt_groups, data.group_rows
    assert groups is not None
    equal, passing = facts.whole("equal_rewards"), facts.whole("all_pass")["total"]
    if not equal["count"]:
        return NotRun("no group has several responses")
    counts, totals = (facts.by("step", "equal_rewards", part) for part in ("count", "total"))
    steps = zip(facts.labels("step"), counts, totals, strict=True)
    full = [x for x, n, same in steps if n and same > STEP_EQUAL * n and n >= GROUPS_OF_STEP]
    if equal["mean"] < HALF and not full:
        return None
    shown, in_steps = rows["equal"] & (rows["rows"] > 1), data.in_steps(full)
    text = f"{equal['total']:,} of {counted(equal['count'], 'group')} of several {facts.unit}s "
    text += f"({percent(equal['mean'])}) are without signal"
    if in_steps:
        shown &= rows["batch"].is_in(full)
        text += f", most of them{in_steps}"
    text += f": {passing:,} all pass, {equal['total'] - passing:,} none pass"
    highest = facts.whole("reward")["max"]
    if highest is not None and highest < groups.pass_threshold:
        text += f" (no reward reaches {groups.pass_threshold:g}: --pass-threshold)"
    first = rows.filter(shown)["first"].to_list()
    return Problem(text, first, ["reward", "group"], "--drop-equal-rewards")


@check("warning", "group", "reward", whole_groups=True)
def signal_without_pass(data: Inspected) -> Result:
    """Of the groups with signal, a quarter or more have no response that passes.

    Their advantages are of penalties and parts of the reward alone, so the policy learns these
    where it never solves the prompt. Graded rewards are no such case: none may be from half of
    --pass-threshold on and below it, and some response has to pass.

    Leave such groups out with --drop-difficulty 0:1, or subtract penalties in other groups alone.
    """
    table, rows = data.table, data.group_rows
    threshold = table.resolved.recipe.pass_threshold
    rewards = table.units["reward"][table.scored]
    passing = reaches(rewards, threshold)
    if not passing.any() or (rewards[~passing] >= threshold / 2).any():
        return NotRun("no response passes, or rewards are graded")
    signal = rows.filter(~pl.col("equal"), pl.col("rows") > 1)
    failing = signal.filter(pl.col("passed") == 0)
    if not len(failing) or len(failing) < WITHOUT_PASS * len(signal):
        return None
    text = f"{len(failing):,} of {counted(len(signal), 'group')} with signal "
    text += f"({share(len(failing), len(signal))}) have no reward of {threshold:g} or more "
    text += "(--pass-threshold): penalties and parts of the reward alone make their advantages"
    return Problem(text, failing["first"].to_list(), ["reward", "group"], "--drop-difficulty 0:1")


@check("warning", "reward", "lengths")
def length_follows_reward(data: Inspected) -> Result:
    """Reward and length correlate with 0.5 or more (within groups, if there are groups).

    The policy learns lengths in place of answers.

    Check the grader and truncation; --overlong-penalty and --length-weight act against it.
    """
    tokens = data.rows["tokens"].cast(pl.Float64).fill_nan(None)
    columns: dict[str, Any] = {"reward": data.table.row_rewards, "length": tokens, "group": 0}
    where = " within groups" if "group" in data.rows else ""
    if where:
        columns["group"] = data.table.rows["group"]
    rows = pl.DataFrame(columns).filter(pl.col("reward").is_finite()).drop_nulls()
    centred = rows.select(pl.col(x) - pl.col(x).mean().over("group") for x in ("reward", "length"))
    deviation, largest = (
        float(abs(part["reward"].to_numpy()).max(initial=0.0)) for part in (centred, rows)
    )
    value = centred.select(pl.corr("reward", "length")).item()
    if deviation <= ROUNDING * largest or value is None or not math.isfinite(value):
        return NotRun("rewards or lengths are all equal")
    if abs(value) < max(CORRELATED, CORRELATION_ERRORS / math.sqrt(len(rows))):
        return None
    longer = "longer" if value > 0 else "shorter"
    text = f"{longer} {data.noun}s score higher, correlation {value:+.2f}{where}: the "
    text += f"policy learns to write {longer} ones"
    shown = tokens.arg_sort(descending=True, nulls_last=True).to_list()
    return Problem(text, shown, ["reward"], "--overlong-penalty")


@check("error", "group", "rollout ids")
def written_twice(data: Inspected) -> Result:
    """Rows of a rollout are there twice: with the same turn, text, reward and tokens.

    They count and are trained on twice. Without a text, a response is recognised by the mean of its
    log-probs.

    Check whether a restart or a retry of the writer wrote them again, and drop the copies.
    """
    names = data.rows.columns
    means = [f"mean:{role}" for role in LOG_PROBS if f"mean:{role}" in names]
    if not ("copy" in names or means):
        return NotRun("no column for response texts or log-probs")
    known = pl.col("copy") != 0 if "copy" in names else pl.all_horizontal(pl.col(means).is_finite())
    keys = [key for key in ("batch", "group") if key in names]
    rows = data.rows_of(*keys, "rollout", "turn", "copy", "tokens", "reward", *means)
    parts = [name for name in rows.columns if name != "index"]
    rows = rows.filter(~data.flags("superseded") & data.unmasked).drop_nulls(keys)
    again = rows.filter(~pl.struct(parts).is_first_distinct() & known)["index"].to_list()
    if not again:
        return None
    text = f"{data.part(len(again))} are there twice: rows of a rollout again"
    return Problem(text, again, ["rollout"])


@check("warning", "failures or rewards")
def many_failures(data: Inspected) -> Result:
    """At least 25 % of the rollouts failed, or half of those of a step, or rewards of 0 look so.

    Without rollout ids, each row counts. A crash, a time-out or a failed judge is no wrong answer,
    but with reward 0 it lowers the baseline of its group, so the policy is trained towards whatever
    the survivors did. Without a column that names failures, rewards of 0 of responses without
    tokens, without log-probs, or with a finish reason such as `aborted`, look like them.

    Repair the environment, and write the reason of each failure to a column (--map failure=COLUMN):
    `rlpost advantages` leaves failures out by --failures drop, its default.
    """
    facts, reward = data.facts, data.facts.whole("reward")
    if facts.failures is not None:
        failed, shares = facts.whole("failed"), [x or 0.0 for x in facts.by("step", "failed")]
        if not failed["count"]:
            return NotRun("no response counts")
        worst, at = max(shares, default=0.0), ""
        if failed["mean"] < FAILED and worst < FAILED_STEP:
            return None
        if worst:
            step = facts.labels("step")[shares.index(worst)]
            at = f", {percent(worst)} of those of {data.column('batch')} {step}"
        text = f"{failed['total']:,} of {counted(failed['count'], facts.unit)} "
        text += f"({percent(failed['mean'])}) failed{at}: {value_list(facts.failures.reasons)}"
        return Problem(text, data.flags("failed"), ["failure"], "--failures drop")
    signs = {x: flags for x, flags in data.signs_of_failures().items() if flags.any()}
    if not signs or reward["min"] == reward["max"]:
        return None
    either = reduce(or_, signs.values())
    text = f"{data.part(int(either.sum()))} with reward 0 look like failures, not like wrong "
    text += f"answers: {', '.join(f'{flags.sum():,} {name}' for name, flags in signs.items())}"
    return Problem(text, either, ["reward"], "--map failure=COLUMN")


@check("warning", "truncated or lengths")
def many_truncated(data: Inspected) -> Result:
    """At least 25 % of responses are truncated, or at least 5 % have exactly the most tokens.

    A truncated answer is mostly scored as wrong, whatever it would have become.

    Raise the length limit, or leave such responses out: --drop-truncated, --drop-longer,
    --overlong-penalty.
    """
    rows, included = data.rows, data.included
    total = int(included.sum())
    if "truncated" in rows:
        flags = rows["truncated"] & included
        many = int(flags.sum()) >= TRUNCATED * total
        text = f"stopped at the length limit (`{data.column('truncated')}`)"
    else:
        lengths = data.facts.whole("policy_tokens")
        longest = lengths["max"] or 0
        flags = (rows["tokens"] == longest) & included
        count, differ = int(flags.sum()), lengths["min"] != longest
        many = differ and count > 1 and count >= AT_LIMIT * total and longest >= LARGE
        text = f"have exactly the largest length, {longest:,.0f} tokens, and may be truncated"
    if not many or not flags.any():
        return None
    count = int(flags.sum())
    text = f"{count:,} of {counted(total, data.noun)} ({share(count, total)}) {text}"
    return Problem(text, flags, ["truncated"] if "truncated" in rows else [], "--drop-truncated")


@check("warning", "truncated")
def unknown_finish_reasons(data: Inspected) -> Result:
    """Finish reasons are not known as those of a truncated response, nor as those of a whole one.

    They count as not truncated.

    If they are truncated, write `length`, or a column of bools and name it with
    --map truncated=COLUMN; if they failed, write the reason to a column of its own and name it with
    --map failure=COLUMN; --map truncated=none ignores the column.
    """
    reasons = data.rows["unknown_reason"]
    flags = reasons != ""
    if not flags.any():
        return None
    values = value_list(dict(reasons.filter(flags).value_counts(sort=True).iter_rows()))
    text = f"`{data.column('truncated')}` has values that are not known in "
    text += f"{data.part(int(flags.sum()))} ({values}), which count as not truncated"
    return Problem(text, flags, ["truncated"], "--map truncated=COLUMN")
