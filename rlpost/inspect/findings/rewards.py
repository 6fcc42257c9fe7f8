"""Findings about groups, rewards and lengths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlpost.inspect.findings.case import share
from rlpost.inspect.model import Finding
from rlpost.inspect.token_facts import copied

if TYPE_CHECKING:
    from rlpost.inspect.findings.case import Case

MOST = 1 / 2
LARGE = 128  # rows that hardly answer one prompt
SATURATED = 0.95  # of the rewards at one value
FOLLOWS = 0.5  # correlation of rewards and lengths
SURE = 4.0  # standard errors of a correlation of 0
TRUNCATED = 0.25
AT_LIMIT = 0.05  # of the responses at exactly the largest length
LONG_COPIES = 0.05
ALONE = 0.05  # of the rows, at most, without a copy


def single_row_groups(case: Case) -> Finding | None:
    """Most groups have one row: the key is no prompt's, or steps split the groups."""
    groups = case.groups
    if groups is None or case.group_rows is None or groups.single * 2 <= groups.count:
        return None
    column = case.column("group")
    text = f"{groups.single:,} of {groups.count:,} groups have one row"
    advice = f"is `{column}` the prompt's id, or one per response? --map group=COLUMN"
    if "batch" in case.reading.rows and groups.prompts < groups.count:
        step = case.column("batch")
        text += f"; there are {groups.prompts:,} different `{column}` over all `{step}`"
        advice += f"; a group is within one `{step}`: --map batch=none joins all"
    return Finding(
        "single_row_groups", "error", 98,
        f"{text}: a group baseline makes their advantages 0",
        advice,
        groups.single, groups.count, case.groups_where(case.group_rows["rows"] == 1),
    )  # fmt: skip


def one_group_per_step(case: Case) -> Finding | None:
    """A whole step is one group: the key is the same in all rows."""
    groups, rows = case.groups, case.group_rows
    if groups is None or rows is None or not groups.size:
        return None
    steps = rows["batch"].n_unique() if "batch" in rows else 1
    if groups.count > steps or groups.size["min"] < LARGE:
        return None
    return Finding(
        "one_group_per_step", "warning", 80,
        f"all rows of a step share one `{case.column('group')}`: groups of "
        f"{groups.size['min']:,} rows and more",
        "is it the prompt's id? --map group=COLUMN names another column",
        groups.count, groups.count, case.groups_where(rows["rows"] >= LARGE),
    )  # fmt: skip


def constant_rewards(case: Case) -> Finding | None:
    """All rewards are equal."""
    rewards = case.rewards
    if rewards is None or rewards.spread.count < 2 or rewards.spread.min != rewards.spread.max:  # noqa: PLR2004
        return None
    return Finding(
        "constant_rewards", "error", 99,
        f"all {rewards.spread.count:,} rewards are {rewards.spread.min:g}: every baseline makes "
        "the advantages 0",
        f"does the grader work, and is `{rewards.column}` the reward? --map reward=COLUMN",
        rewards.spread.count, case.rows,
    )  # fmt: skip


def saturated_rewards(case: Case) -> Finding | None:
    """Nearly all rewards are the highest, or the lowest, there is."""
    rewards = case.rewards
    if rewards is None or rewards.spread.min == rewards.spread.max or not rewards.spread.count:
        return None
    column = case.reading.rows["reward"]
    for end, word in ((rewards.spread.max, "highest"), (rewards.spread.min, "lowest")):
        count = int((column == end).sum())
        if count >= SATURATED * rewards.spread.count:
            harder = "easy" if word == "highest" else "hard"
            return Finding(
                "saturated_rewards", "warning", 65,
                f"{share(count, rewards.spread.count)} of the rewards are {end:g}, the {word}",
                f"the prompts are too {harder}, or the grader is wrong: most groups teach nothing",
                count, case.rows, case.rows_where(column != end, "reward"),
            )  # fmt: skip
    return None


def equal_rewards_in_groups(case: Case) -> Finding | None:
    """Most groups have equal rewards, and so no advantage."""
    groups, rows = case.groups, case.group_rows
    if groups is None or rows is None or "equal" not in rows:
        return None
    several = groups.count - groups.single
    if not several or groups.zero_variance < MOST * several:
        return None
    return Finding(
        "equal_rewards_in_groups", "warning", 55 + 15 * groups.zero_variance / several,
        f"{groups.zero_variance:,} of {several:,} groups of several rows "
        f"({share(groups.zero_variance, several)}) have equal rewards: {groups.all_pass:,} all "
        f"pass, {groups.all_fail:,} all fail",
        "they teach nothing: sample other prompts, more responses a prompt, or "
        "`rlpost advantages --drop-zero-variance`",
        groups.zero_variance, several, case.groups_where(rows["equal"] & (rows["rows"] > 1)),
    )  # fmt: skip


def nonfinite_rewards(case: Case) -> Finding | None:
    """Rewards that are null, NaN or infinite."""
    rewards = case.rewards
    if rewards is None or not rewards.nonfinite:
        return None
    flags = ~case.reading.rows["reward"].is_finite()
    return Finding(
        "nonfinite_rewards", "error", 94,
        f"{rewards.nonfinite:,} of {case.rows:,} rows have a `{rewards.column}` that is "
        "null, NaN or infinite",
        "score them anew, or leave them out: `rlpost advantages --nonfinite mask`",
        rewards.nonfinite, case.rows, case.rows_where(flags),
    )  # fmt: skip


def length_follows_reward(case: Case) -> Finding | None:
    """Rewards follow lengths, within the groups where there are groups."""
    found = case.lengths.reward_correlation if case.lengths else None
    if not found:
        return None
    within = found["within_groups"]
    value = found["spearman"] if within is None else within
    if value is None or abs(value) < FOLLOWS or abs(value) * math.sqrt(found["rows"]) < SURE:
        return None
    longer = "longer" if value > 0 else "shorter"
    where = "" if within is None else " within groups"
    return Finding(
        "length_follows_reward", "warning", 35 + 30 * abs(value),
        f"{longer} responses get more reward: correlation {value:+.2f}{where}",
        f"the policy will learn to be {longer}: look at the grader, at truncation, and at "
        "`--overlong-penalty` and `--length-weight`",
        found["rows"], case.rows,
    )  # fmt: skip


def many_truncated(case: Case) -> Finding | None:
    """Many responses were cut off, or have exactly the largest length."""
    lengths = case.lengths
    if lengths is None:
        return None
    cut = lengths.truncated
    if cut is not None:
        count, flags = cut.responses, case.reading.rows["truncated"]
        enough = cut.share >= TRUNCATED
        text = f"`{cut.column}` says that they were cut off at the length limit"
    else:
        count, longest = lengths.at_longest, lengths.spread.max
        flags = case.reading.rows["tokens"] == longest
        varied = lengths.spread.min != longest
        enough = varied and count > 1 and count >= AT_LIMIT * case.rows and (longest or 0) >= LARGE
        text = (
            f"they have exactly {longest or 0:,.0f} tokens, the most there are: were they cut off?"
        )
    if not enough:
        return None
    return Finding(
        "many_truncated", "warning", 30 + 30 * count / case.rows,
        f"{count:,} of {case.rows:,} responses ({share(count, case.rows)}): {text}",
        "raise the limit, or keep them from teaching: `--drop-truncated`, `--max-len-mask`, "
        "`--overlong-penalty`",
        count, case.rows, case.rows_where(flags, "tokens"),
    )  # fmt: skip


def copied_responses(case: Case) -> Finding | None:
    """Responses that repeat one of their group: collapsed sampling, or rows dumped twice."""
    found = case.tokens.duplicates if case.tokens else None
    if not found:
        return None
    # short ones are equal by chance, but not all of them
    many = found["alone"] <= ALONE * case.rows
    if not many and found["long_rows"] < LONG_COPIES * case.rows:
        return None
    rows = case.reading.rows
    flags = copied(rows)
    if not many:
        flags &= rows["tokens"] >= 32  # noqa: PLR2004
    count = int(flags.sum())
    return Finding(
        "copied_responses", "warning", 45 + 30 * found["share"],
        f"{count:,} of {case.rows:,} rows ({share(count, case.rows)}) repeat the "
        f"`{found['of']}` of an earlier row of their group",
        "were rows dumped twice, or has sampling collapsed (temperature, seed)? Drop copies: they "
        "count double in every baseline",
        count, case.rows, case.rows_where(flags, "tokens"),
    )  # fmt: skip
