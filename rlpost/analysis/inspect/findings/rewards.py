"""Findings about groups, rewards and lengths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.case import MOST_SHOWN, share
from rlpost.analysis.inspect.model import Finding
from rlpost.analysis.inspect.token_facts import LONG, LONG_TEXT, copied, is_long

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.case import Case
    from rlpost.analysis.inspect.model import Evidence, Label


MOST = 1 / 2
STEP_EQUAL = 0.9  # of a step's groups, where those of other steps differ
GROUPS_OF_STEP = 4  # fewer are equal by chance
ROWS_OF_STEP = 16
LARGE = 128  # rows that hardly answer one prompt
SATURATED = 0.95  # of the rewards at one value
FOLLOWS = 0.5  # correlation of rewards and lengths
SURE = 4.0  # standard errors of a correlation of 0
TRUNCATED = 0.25
AT_LIMIT = 0.05  # of the responses at exactly the largest length
LONG_COPIES = 0.05
UNITS = (("group", "group"), ("batch", "step"))
ALONE = 0.05  # of the rows, at most, without a copy


def constant_rewards(case: Case) -> Finding | None:
    """All rewards are equal, of the whole input or of some of its steps."""
    rewards = case.rewards
    if rewards is None or rewards.spread.count < 2:  # noqa: PLR2004
        return None
    if rewards.spread.min != rewards.spread.max:
        return _constant_steps(case, rewards.column)
    return Finding(
        "constant_rewards", "error", 99,
        f"all {rewards.spread.count:,} rewards are {rewards.spread.min:g}: every baseline makes "
        "the advantages 0",
        f"does the grader work, and is `{rewards.column}` the reward? --map reward=COLUMN",
        rewards.spread.count, case.rows, case.rows_where(case.reading.rows["reward"].is_finite()),
    )  # fmt: skip


def _constant_steps(case: Case, column: str) -> Finding | None:
    """Some steps have one reward throughout, while others do not."""
    rows = case.reading.rows
    if "batch" not in rows:
        return None
    constant = (
        rows.filter(pl.col("reward").is_finite() & pl.col("batch").is_not_null())
        .group_by("batch", maintain_order=True)
        .agg(pl.len().alias("rows"), low=pl.col("reward").min(), high=pl.col("reward").max())
        .filter((pl.col("low") == pl.col("high")) & (pl.col("rows") >= ROWS_OF_STEP))
    )
    steps = constant["batch"].to_list()
    if not steps:
        return None
    count = int(constant["rows"].sum())
    values = ", ".join(f"{value:g}" for value in constant["low"].unique(maintain_order=True)[:3])
    return Finding(
        "constant_rewards", "error" if 2 * count > case.rows else "warning",
        75 + 20 * count / case.rows,
        f"all {count:,} rewards{case.in_steps(steps)} are {values}: every baseline makes the "
        "advantages 0",
        f"did the grader fail then, and is `{column}` the reward? --map reward=COLUMN",
        count, case.rows, case.rows_of_steps(steps, "reward"),
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
    """Most groups have equal rewards, and so no advantage; in all, or in some steps."""
    groups, rows = case.groups, case.group_rows
    if groups is None or rows is None or "equal" not in rows:
        return None
    several, steps = groups.count - groups.single, _equal_steps(rows)
    most = groups.zero_variance >= MOST * several
    if not several or not (most or steps):
        return None
    text = ", most of them" + case.in_steps(steps) if case.in_steps(steps) else ""
    flags = rows["equal"] & (rows["rows"] > 1)
    if text:
        flags &= rows["batch"].is_in(steps)
    return Finding(
        "equal_rewards_in_groups", "warning", 55 + 15 * groups.zero_variance / several,
        f"{groups.zero_variance:,} of {several:,} groups of several rows "
        f"({share(groups.zero_variance, several)}) have equal rewards{text}: {groups.all_pass:,} "
        f"all pass, {groups.all_fail:,} all fail{_threshold(case)}",
        "they teach nothing: sample other prompts, more responses a prompt, or "
        "`rlpost advantages --drop-zero-variance`",
        groups.zero_variance, several, case.groups_where(flags),
    )  # fmt: skip


def _equal_steps(groups: pl.DataFrame) -> list[Label]:
    """The steps of which most groups have equal rewards."""
    if "batch" not in groups:
        return []
    shares = (
        groups.filter(pl.col("rows") > 1)
        .group_by("batch", maintain_order=True)
        .agg(pl.col("equal").mean(), pl.len().alias("groups"))
        .filter((pl.col("equal") > STEP_EQUAL) & (pl.col("groups") >= GROUPS_OF_STEP))
    )
    return shares["batch"].to_list()


def _threshold(case: Case) -> str:
    """A word where no reward reaches what passing takes."""
    highest = case.rewards.spread.max if case.rewards else None
    if case.groups is None or highest is None or highest >= case.groups.pass_threshold:
        return ""
    return (
        f" (no reward reaches {case.groups.pass_threshold:g}: --pass-threshold R says what passes)"
    )


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
        f"{longer} responses get more reward: correlation {value:+.2f}{where} (told from "
        f"{FOLLOWS:g} on)",
        f"the policy will learn to be {longer}: look at the grader, at truncation, and at "
        "`--overlong-penalty` and `--length-weight`",
        found["rows"], case.rows, _extremes(case, longer=value > 0, within=within is not None),
    )  # fmt: skip


def _extremes(case: Case, *, longer: bool, within: bool) -> list[Evidence]:
    """The rows that make the correlation most: far from the mean in length and in reward."""
    rows, by = case.reading.rows, [key for key in ("batch", "group") if key in case.reading.rows]

    def far(name: str) -> pl.Expr:
        mean = pl.col(name).mean()
        return pl.col(name) - (mean.over(by) if within else mean)

    valid = rows.with_row_index("place").filter(pl.col("reward").is_finite())
    product = far("reward") * far("tokens")
    most = valid.select("place", product=product if longer else -product)
    places = most.sort("product", descending=True)["place"].head(MOST_SHOWN).to_list()
    return case.rows_at(places, "tokens", "reward")


def many_truncated(case: Case) -> Finding | None:
    """Many responses were cut off, or have exactly the largest length."""
    lengths = case.lengths
    if lengths is None or not case.rows:
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
        flags &= is_long(rows)
    least = f"{LONG} tokens" if "tokens" in rows else f"{LONG_TEXT} characters"
    text = "" if many else f" and are of {least} or more"
    count = int(flags.sum())
    return Finding(
        "copied_responses", "warning", 45 + 30 * found["share"],
        f"{count:,} of {case.rows:,} rows ({share(count, case.rows)}) repeat the "
        f"`{found['of']}` of an earlier row{_unit(case)}{text} (told where "
        f"{100 * LONG_COPIES:g} % of rows do{', or nearly all' if many else ''})",
        "were rows dumped twice, or has sampling collapsed (temperature, seed)? Drop copies: they "
        "count double in every baseline",
        count, case.rows, case.rows_where(flags, "tokens"),
    )  # fmt: skip


def _unit(case: Case) -> str:
    """What copies are looked for in."""
    return next((f" of their {word}" for role, word in UNITS if role in case.reading.rows), "")
