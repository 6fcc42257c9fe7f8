"""Findings about responses: prompt groups, rewards, lengths, truncation, copies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.analysis.inspect.model import FindingEvidence
from rlpost.analysis.inspect.step_counts import turn_evidence_of
from rlpost.analysis.inspect.tokens import LONG, LONG_TEXT, is_copy, is_long
from rlpost.display.text import counted, share, value_list
from rlpost.pipeline.turns import BY_ID, TurnCounts, one_id, turn_evidence

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result
    from rlpost.analysis.inspect.model import Label


HALF = 1 / 2
LARGE = 128  # responses that hardly belong to one prompt; tokens that are a length limit
SPLIT = 0.05  # of the prompts of a step; data sets contain some prompts twice
STEP_EQUAL = 0.9  # of the groups of a step, if those of other steps differ
GROUPS_OF_STEP = 4  # fewer may be equal by chance
ROWS_OF_STEP = 16
SATURATED = 0.95  # of the rewards have one value
CORRELATED = 0.5
STANDARD_ERRORS = 4.0  # of a correlation of 0
TRUNCATED = 0.25
AT_LIMIT = 0.05  # of the responses have exactly the maximum length
LONG_COPIES = 0.05
WITHOUT_COPY = 0.05  # of the responses, at most
UNITS = (("group", "group"), ("batch", "step"))


@check("error", "group", whole_groups=True)
def single_row_groups(data: CheckInput) -> Result:
    """Most groups have one response, so their advantages are 0: the group key may be wrong.

    A response minus the mean of itself is 0. The group key is mostly an id per response in
    place of the prompt's: name another column with --map group=COLUMN.
    """
    groups = data.groups
    if groups is None or data.group_rows is None or groups.single * 2 <= groups.count:
        return None
    column = data.column("group")
    text = (
        "the only group has"
        if groups.count == 1
        else f"{groups.single:,} of {groups.count:,} groups have"
    ) + f" one {data.unit}"
    advice = (
        f"check whether `{column}` is the prompt's id or one per response; set another column "
        "with --map group=COLUMN"
    )
    if "batch" in data.reading.rows and groups.prompts < groups.count:
        step = data.column("batch")
        text += f"; `{column}` has {counted(groups.prompts, 'value')} over all `{step}`"
        advice += f"; groups are within one `{step}`, and --map batch=none joins all"
    return Problem(
        98,
        f"{text}, so a group baseline makes their advantages 0",
        advice,
        groups.single, groups.count, data.examples_of_groups(data.group_rows["rows"] == 1),
    )  # fmt: skip


@check("warning", "group")
def one_group_per_step(data: CheckInput) -> Result:
    """All responses of a step have the same group key.

    The baseline then compares answers to different prompts. Name the prompt's id with --map
    group=COLUMN.
    """
    groups, rows = data.groups, data.group_rows
    if groups is None or rows is None or not groups.size:
        return None
    steps = rows["batch"].n_unique() if "batch" in rows else 1
    if groups.count > steps or groups.size["min"] < LARGE:
        return None
    return Problem(
        80,
        f"all responses of a step have the same `{data.column('group')}`: groups have at least "
        f"{counted(groups.size['min'], data.unit)}",
        "check whether this is the prompt's id; set another column with --map group=COLUMN",
        groups.count, groups.count, data.examples_of_groups(rows["rows"] >= LARGE),
    )  # fmt: skip


@check("error", "group", "batch")
def turns_as_steps(data: CheckInput) -> Result:
    """Rows of one rollout are in several steps: the column counts turns, and splits the groups.

    Groups are within a step, so a rollout is compared with parts of others, and counts once for
    each turn. Join the steps with --map batch=none, or name the training step with --map
    batch=COLUMN.
    """
    rows, why = data.reading.rows.drop_nulls(["batch", "group"]), _turns_as_steps(data)
    if not why:
        return NotRun("steps are no whole numbers") if why is None else None
    groups = rows.group_by("group").agg(steps=pl.col("batch").n_unique())
    split = groups.filter(pl.col("steps") > 1)
    count = len(split)
    flags = data.reading.rows["group"].is_in(split["group"].implode())
    return Problem(
        95,
        f"`{data.column('batch')}` counts the turns of rollouts, not training batches: {why}. "
        f"{count:,} of {counted(len(groups), 'prompt')} (`{data.column('group')}`) are split, and "
        "a rollout counts once for each of its turns",
        "join the steps with --map batch=none, here and in `rlpost advantages`, or set the "
        "training step with --map batch=COLUMN; --map rollout=COLUMN counts a rollout once",
        count, len(groups), data.examples(flags, "reward"),
    )  # fmt: skip


def _turns_as_steps(data: CheckInput) -> str | None:
    """Return why steps are turns, empty if nothing shows it; None for steps of another type."""
    rows, selection = data.reading.rows.drop_nulls(["batch", "group"]), data.reading.selection
    if selection.rollout_counts:
        several = pl.col("batch").n_unique().over("group", "rollout") > 1
        count = int(rows.select(several.sum()).item())
        return f"{count:,} rows share a `{selection.rollout}` with other steps" if count else ""
    if not rows["batch"].dtype.is_integer():
        return None
    table, every = data.table.rows, data.reading.rows
    keyed = (every["batch"].is_not_null() & every["group"].is_not_null()).to_numpy()
    ids = table["rollout"][keyed] if "rollout" in table else None
    step = rows["batch"].to_numpy().astype(np.int64)
    groups = rows["group"].rank("dense").to_numpy().astype(np.int64) - 1
    return turn_evidence_of(groups, step, ids)


@check("warning", "group", "rollout ids or turns")
def turns_as_responses(data: CheckInput) -> Result:
    """Rows are turns of a rollout, and each counts as a response of its prompt group.

    Long rollouts then weigh more in the baseline of their group. Count a rollout once with
    --map rollout=COLUMN. If the rows of every group share one id, they count as one rollout; set
    --unit row if the id is that of the prompt or step.
    """
    selection, flags = data.reading.selection, data.turns > 0
    if selection.rollout_counts:
        return _one_id(data)
    count = int(flags.sum())
    if not count or data.chosen_unit == "row":
        return None
    by, rollout = selection.turn, "COLUMN"
    if (data.turns == BY_ID).any():
        by = rollout = selection.rollout or ""
    return Problem(
        82,
        f"{count:,} of {counted(data.count, 'response')} look like turns of a rollout (by `{by}`), "
        "but each counts as a response of its group, so long rollouts weigh more",
        f"count a rollout once: --map rollout={rollout}, here and in `rlpost advantages`; the "
        "estimators gigpo and step_reinforce use turns",
        count, data.count, data.examples(flags, "turn", "reward"),
    )  # fmt: skip


def _one_id(data: CheckInput) -> Result:
    """Return that each group is one rollout by an id that was not chosen."""
    rows, column = data.reading.rows, data.reading.selection.rollout
    if data.chosen_unit is not None or column is None or "rollout" not in rows:
        return None
    evidence = turn_evidence(data.table.rows["group"], data.table.rows["rollout"], None)
    if not (count := TurnCounts.of(evidence).of_groups):
        return None
    what, advice = one_id("all groups with several rows have", column)
    flags = pl.Series(evidence > 0)
    return Problem(82, what, advice, count, data.count, data.examples(flags, "turn", "reward"))


def _differing(data: CheckInput) -> pl.DataFrame:
    """Return the rollouts whose rows have different rewards: the indices of their rows, `index`.

    Empty without rollout ids or rewards.
    """
    rows = data.reading.rows
    if not {"rollout", "reward", "group"} <= {*rows.columns}:
        return pl.DataFrame(schema={"index": pl.List(pl.UInt32)})
    by, reward = [key for key in ("batch", "group", "rollout") if key in rows], pl.col("reward")
    return (
        rows.with_row_index("index")
        .filter(reward.is_finite() & data.included)
        .drop_nulls(by)
        .group_by(by, maintain_order=True)
        .agg("index", low=reward.min(), high=reward.max())
        .filter(pl.col("low") != pl.col("high"))
    )


@check("error", "group", "reward")
def differing_rollout_rewards(data: CheckInput) -> Result:
    """Rows of one rollout have different rewards, and no option selects the one that counts.

    A rollout has one reward in the baseline of its group. Choose it with --rollout-reward last,
    sum or mean.
    """
    if data.reading.selection.rollout is None:
        return NotRun("no column for rollout ids")
    if not data.reading.selection.rollout_counts:
        return NotRun("each row counts as a response (--map rollout=COLUMN counts rollouts)")
    rollouts = _differing(data)
    if data.table.resolved.recipe.rollout_reward != "equal" or rollouts.is_empty():
        return None
    rows, evidence = data.reading.rows, []
    for index in rollouts["index"].head(data.evidence):
        first, *others = (rows.row(i, named=True) for i in index)
        other = next(row for row in others if row["reward"] != first["reward"])
        path = data.input.files[int(first["file"])].path
        text = f"reward {first['reward']:g}, but {other['reward']:g} in row {other['row']}"
        evidence.append(FindingEvidence(path, first["row"], first["rollout"], text))
    return Problem(
        92,
        f"rows of one `{data.reading.selection.rollout}` have different rewards in "
        f"{counted(len(rollouts), 'rollout')}: `rlpost advantages` rejects them, and statistics of "
        "groups here are of their mean",
        "choose the reward of a rollout with --rollout-reward last, sum or mean; or count rows "
        "with --unit row",
        len(rollouts), data.count, evidence,
    )  # fmt: skip


@check("error or warning", "group", "prompts")
def mixed_prompts(data: CheckInput) -> Result:
    """Responses of one group have different prompts, so a baseline compares different questions.

    The baseline is the mean of easy and hard questions, so advantages reward easy prompts. Name
    the prompt's id with --map group=COLUMN.
    """
    if (data.turns > 0).any():
        return NotRun("rows are turns, and a later turn's prompt has the turns before")
    several = _kinds_per_key(data, ["group"], "prompt").filter(pl.col("rows") > 1)
    if not len(several):
        return NotRun("no group has several responses")
    mixed = several.filter(pl.col("kinds") > 1)
    if not len(mixed):
        return None
    column, prompt = data.column("group"), data.reading.selection.prompt
    return Problem(
        70 + 27 * len(mixed) / len(several),
        f"{len(mixed):,} of {counted(len(several), 'group')} with several responses "
        f"({share(len(mixed), len(several))}) have more than one `{prompt}`"
        f"{_equals_domain(data)}: their baseline compares answers to different questions",
        f"check whether `{column}` is the prompt's id; set another column with --map group=COLUMN, "
        f"or group by the prompts themselves with --map group={prompt}",
        len(mixed), len(several), _pairs(data, mixed, f"`{prompt}`"),
        "error" if 2 * len(mixed) > len(several) else "warning",
    )  # fmt: skip


@check("warning", "group", "prompts")
def split_prompts(data: CheckInput) -> Result:
    """Prompts have several group keys within a step: each group has only some responses.

    Each part of a prompt's responses has a baseline of its own, which is noisier. The key may
    be new for each call of the engine: group by the prompts themselves with --map group=COLUMN.
    """
    groups = data.groups
    if groups is None or 2 * groups.single > groups.count:
        return NotRun("most groups have one response")
    if (data.turns > 0).any():
        return NotRun("rows are turns, and a later turn's prompt has the turns before")
    mixed = _kinds_per_key(data, ["group"], "prompt")
    if 2 * int((mixed["kinds"] > 1).sum()) > len(mixed):
        return NotRun("most groups have several prompts")  # such a key splits prompts, too
    kinds = _kinds_per_key(data, ["prompt"], "group")
    split = kinds.filter(pl.col("kinds") > 1)
    if len(split) <= SPLIT * len(kinds):
        return None
    column, prompt = data.column("group"), data.reading.selection.prompt
    return Problem(
        66,
        f"{len(split):,} of {counted(len(kinds), 'prompt')} ({share(len(split), len(kinds))}) "
        f"have several `{column}` within one step, so each group has only some of the responses",
        f"check whether `{column}` is new for each call of the engine; --map group={prompt} joins "
        "the responses of a prompt. If the data set contains prompts twice, nothing is wrong",
        len(split), len(kinds), _pairs(data, split, f"`{column}`"),
    )  # fmt: skip


def _kinds_per_key(data: CheckInput, by: list[str], what: str) -> pl.DataFrame:
    """Count the values of one column within each step and key.

    Returns:
        For each step and key its `rows`, the number of different values (`kinds`), and the indices
        of the `first` row and of the first row with an `other` value.
    """
    rows = data.reading.rows
    by = [key for key in ("batch", *by) if key in rows]
    valid = rows.with_row_index("index").drop_nulls(["group"]).filter(pl.col("prompt") != 0)
    other = pl.col("index").filter(pl.col(what) != pl.col(what).first())
    return valid.group_by(by, maintain_order=True).agg(
        rows=pl.len(),
        kinds=pl.col(what).n_unique(),
        first=pl.col("index").first(),
        other=other.first(),
    )


def _pairs(data: CheckInput, keys: pl.DataFrame, what: str) -> list[FindingEvidence]:
    """Return a row of each key, and one that differs from it."""
    rows = data.reading.rows
    pairs = []
    for key in keys.head(data.evidence).iter_rows(named=True):
        first, other = rows.row(key["first"], named=True), rows.row(key["other"], named=True)
        path = data.input.files[int(first["file"])].path
        text = (
            f"differs from row {other['row']}; {key['kinds']:,} values of {what} in "
            f"{key['rows']:,} responses"
        )
        pairs.append(FindingEvidence(path, first["row"], first["group"], text))
    return pairs


def _equals_domain(data: CheckInput) -> str:
    """Return a note if the group key is the domain under another name."""
    rows = data.reading.rows
    if "domain" not in rows:
        return ""
    group, domain = (pl.col(name).cast(pl.String) for name in ("group", "domain"))
    same = rows.select(group.eq_missing(domain).all()).item()
    return f" (`{data.column('group')}` is the same as `{data.column('domain')}`)" if same else ""


@check("error or warning", "reward")
def constant_rewards(data: CheckInput) -> Result:
    """All rewards of the input, or of some steps, are equal, so all advantages are 0.

    A reward minus the mean of equal rewards is 0, so nothing is learnt. Check the grader, and
    that the column is the reward.
    """
    rewards = data.rewards
    if rewards is None or rewards.spread.count < 2:  # noqa: PLR2004
        return NotRun("fewer than 2 finite rewards")
    if rewards.spread.min != rewards.spread.max:
        return _constant_steps(data, rewards.column)
    flags = pl.Series(data.table.rows["valid"])
    return Problem(
        99,
        f"all {rewards.spread.count:,} rewards are {rewards.spread.min:g}: every baseline makes "
        "the advantages 0",
        f"check that the grader works and that `{rewards.column}` is the reward; set another "
        "column with --map reward=COLUMN",
        rewards.spread.count, data.count, data.examples(flags), "error",
    )  # fmt: skip


def _constant_steps(data: CheckInput, column: str) -> Result:
    """Find steps with a single reward while other steps have several."""
    rows = data.reading.rows
    if "batch" not in rows:
        return None
    constant = (
        rows.select("batch", "reward")
        .filter(pl.col("reward").is_finite() & data.included)
        .drop_nulls("batch")
        .group_by("batch", maintain_order=True)
        .agg(pl.len().alias("rows"), low=pl.col("reward").min(), high=pl.col("reward").max())
        .filter((pl.col("low") == pl.col("high")) & (pl.col("rows") >= ROWS_OF_STEP))
    )
    steps = constant["batch"].to_list()
    if not steps:
        return None
    count = int(constant["rows"].sum())
    values = ", ".join(f"{value:g}" for value in constant["low"].unique(maintain_order=True)[:3])
    return Problem(
        75 + 20 * count / data.count,
        f"all {count:,} rewards{data.in_steps(steps)} are {values}: every baseline makes the "
        "advantages 0",
        f"check that the grader worked in these steps and that `{column}` is the reward; set "
        "another column with --map reward=COLUMN",
        count, data.count, data.examples_of_steps(steps, "reward"),
        "error" if 2 * count > data.count else "warning",
    )  # fmt: skip


@check("warning", "reward")
def saturated_rewards(data: CheckInput) -> Result:
    """At least 95 % of the rewards have the highest value, or the lowest.

    Most groups have equal rewards, so most tokens have no gradient. The prompts are too easy or
    too hard, or the grader is wrong.
    """
    rewards = data.rewards
    if rewards is None or rewards.spread.min == rewards.spread.max:
        return NotRun("there are not two different rewards")
    table = data.table
    for end, which in ((rewards.spread.max, "highest"), (rewards.spread.min, "lowest")):
        count = int((table.scored & (table.units["reward"] == end)).sum())
        if count >= SATURATED * rewards.spread.count:
            difficulty = "easy" if which == "highest" else "hard"
            others = table.rows["valid"] & (table.rows["reward"] != end)
            return Problem(
                65,
                f"{share(count, rewards.spread.count)} of the rewards are {end:g}, the {which} "
                "value",
                f"the prompts are too {difficulty} or the grader is wrong: most groups have "
                "advantages of 0",
                count, data.count,
                data.examples(pl.Series(others), "reward"),
            )  # fmt: skip
    return None


@check("warning", "group", "reward")
def equal_rewards_in_groups(data: CheckInput) -> Result:
    """Most groups, in the input or in some steps, have equal rewards: no signal for a baseline.

    A reward minus the mean of equal rewards is 0: these groups cost as much to sample as
    others, and train nothing. Sample other prompts, or more responses per prompt;
    --drop-equal-rewards leaves the groups out.
    """
    groups, rows = data.groups, data.group_rows
    assert groups is not None
    assert rows is not None
    several, steps = groups.count - groups.single, _steps_with_equal_rewards(rows)
    if not several:
        return NotRun("no group has several responses")
    if groups.no_signal < HALF * several and not steps:
        return None
    in_steps = data.in_steps(steps)
    flags = rows["equal"] & (rows["rows"] > 1)
    if in_steps:
        flags &= rows["batch"].is_in(steps)
    return Problem(
        55 + 15 * groups.no_signal / several,
        f"{groups.no_signal:,} of {counted(several, 'group')} of several {data.unit}s "
        f"({share(groups.no_signal, several)}) are without signal"
        f"{', most of them' + in_steps if in_steps else ''}: {groups.equal_all_pass:,} all "
        f"pass, {groups.equal_all_fail:,} none pass{_threshold_note(data)}",
        "sample other prompts, or more responses per prompt, or leave the groups out with "
        "--drop-equal-rewards",
        groups.no_signal, several, data.examples_of_groups(flags),
    )  # fmt: skip


def _steps_with_equal_rewards(groups: pl.DataFrame) -> list[Label]:
    """Return the steps in which most groups have equal rewards."""
    if "batch" not in groups:
        return []
    shares = (
        groups.filter(pl.col("rows") > 1)
        .group_by("batch", maintain_order=True)
        .agg(pl.col("equal").mean(), pl.len().alias("groups"))
        .filter((pl.col("equal") > STEP_EQUAL) & (pl.col("groups") >= GROUPS_OF_STEP))
    )
    return shares["batch"].to_list()


def _threshold_note(data: CheckInput) -> str:
    """Return a note if no reward reaches the threshold of passing."""
    highest = data.rewards.spread.max if data.rewards else None
    if data.groups is None or highest is None or highest >= data.groups.pass_threshold:
        return ""
    threshold = data.groups.pass_threshold
    return f" (no reward reaches {threshold:g}: --pass-threshold)"


@check("error", "reward")
def nonfinite_rewards(data: CheckInput) -> Result:
    """Rewards are null, NaN or infinite, other than those of rollouts that failed.

    One such reward makes all advantages of its group NaN. Score the responses again, or leave
    them out with --nonfinite mask.
    """
    rewards = data.rewards
    if rewards is None or not rewards.nonfinite:
        return None
    rows, left_out = data.reading.rows, pl.Series(data.table.nonfinite)
    null, infinite = rows["reward_null"], rows["reward"].is_infinite()
    nan = rows["reward"].is_nan() & ~null
    kinds = {"null": null, "NaN": nan, "infinite": infinite}
    kinds = {kind: (flags & left_out).alias(kind) for kind, flags in kinds.items()}
    count = sum(int(flags.sum()) for flags in kinds.values())
    if not count:
        return None
    return Problem(
        94,
        f"`{rewards.column}` is not finite in {count:,} of "
        f"{counted(data.count, 'response')} ("
        + ", ".join(f"{flags.sum():,} {kind}" for kind, flags in kinds.items() if flags.any())
        + ")",
        "score them again, or leave them out: `rlpost advantages --nonfinite mask`",
        count, data.count, data.examples_named(kinds),
    )  # fmt: skip


@check("warning", "reward", "lengths")
def length_follows_reward(data: CheckInput) -> Result:
    """Reward and length correlate with 0.5 or more (within groups, if there are groups).

    The policy learns lengths in place of answers. Check the grader and truncation;
    --overlong-penalty and --length-weight act against it.
    """
    correlation = data.lengths.reward_correlation if data.lengths else None
    if not correlation or correlation["pearson"] is None:
        return NotRun("rewards or lengths are all equal, or fewer than 3")
    within = correlation["within_groups"]
    value = correlation["spearman"] if within is None else within
    rows = correlation["rows"]
    if value is None or abs(value) < CORRELATED:
        return None
    if abs(value) * math.sqrt(rows) < STANDARD_ERRORS:
        return None
    longer = "longer" if value > 0 else "shorter"
    unit = "" if within is None else " within groups"
    return Problem(
        35 + 30 * abs(value),
        f"{longer} responses score higher: correlation {value:+.2f}{unit}",
        f"the policy will learn to write {longer} responses: check the grader and truncation; "
        "--overlong-penalty and --length-weight act against it",
        rows, data.count, _extremes(data, longer=value > 0, within=within is not None),
    )  # fmt: skip


def _extremes(data: CheckInput, *, longer: bool, within: bool) -> list[FindingEvidence]:
    """Return the responses that contribute most to the correlation of length and reward."""
    rows, by = data.reading.rows, [key for key in ("batch", "group") if key in data.reading.rows]

    def deviation(name: str) -> pl.Expr:
        mean = pl.col(name).mean()
        return pl.col(name) - (mean.over(by) if within else mean)

    known = pl.col("reward").is_finite() & pl.col("tokens").is_finite() & data.included
    valid = rows.with_row_index("index").filter(known)
    product = deviation("reward") * deviation("tokens")
    products = valid.select("index", product=product if longer else -product)
    indices = products.sort("product", descending=True)["index"].head(data.evidence).to_list()
    return data.examples_at(indices, "tokens", "reward")


@check("warning", "truncated")
def unknown_finish_reasons(data: CheckInput) -> Result:
    """Finish reasons are not known as those of a truncated response, nor as those of a whole one.

    They count as not truncated. If they are, write `length`, or a column of bools and name it with
    --map truncated=COLUMN; --map truncated=none ignores the column.
    """
    reasons = data.reading.rows["unknown_reason"]
    flags = reasons != ""
    count = int(flags.sum())
    if not count:
        return None
    column = data.column("truncated")
    names = reasons.filter(flags).value_counts(sort=True).iter_rows()
    values = value_list(dict(names))
    return Problem(
        35 + 20 * count / data.count,
        f"`{column}` has values that are not known in {count:,} of "
        f"{counted(data.count, 'response')} ({values}), which count as not truncated",
        "if they are truncated, write `length`, or a column of bools and set it with "
        "--map truncated=COLUMN; --map truncated=none ignores the column",
        count, data.count, data.examples(flags),
    )  # fmt: skip


@check("warning", "truncated or lengths")
def many_truncated(data: CheckInput) -> Result:
    """At least 25 % of responses are truncated, or at least 5 % have exactly the most tokens.

    A truncated answer is mostly scored as wrong, whatever it would have become. Raise the
    length limit, or leave such responses out: --drop-truncated, --drop-longer,
    --overlong-penalty.
    """
    rows, lengths, counted_rows = data.reading.rows, data.lengths, data.table.counted
    total = int(counted_rows.sum())
    if "truncated" in rows:
        flags = rows["truncated"] & pl.Series(counted_rows)
        count = int(flags.sum())
        many = count > 0 and count >= TRUNCATED * total
        text = f"stopped at the length limit (`{data.column('truncated')}`)"
    else:
        assert lengths is not None
        count, longest = lengths.at_longest, lengths.spread.max
        if longest is None:  # no response counts
            return None
        flags = (rows["tokens"] == longest) & pl.Series(counted_rows)
        differ = lengths.spread.min != longest
        many = differ and count > 1 and count >= AT_LIMIT * total and longest >= LARGE
        text = f"have exactly the maximum of {longest:,.0f} tokens and may be truncated"
    if not many:
        return None
    return Problem(
        30 + 30 * count / total,
        f"{count:,} of {counted(total, 'response')} ({share(count, total)}) {text}",
        "raise the limit, or --drop-truncated, --drop-longer, --overlong-penalty",
        count, total, data.examples(flags, "tokens"),
    )  # fmt: skip


@check("warning", "response texts or log-probs")
def copied_responses(data: CheckInput) -> Result:
    """Responses repeat an earlier one of their group: duplicate rows, or collapsed sampling.

    Copies count twice in every baseline. Rows were written twice, or sampling collapsed: check
    temperature and seed.
    """
    duplicates = data.tokens.duplicates if data.tokens else None
    assert duplicates is not None
    # Short responses are equal by chance, but not all of them.
    nearly_all = duplicates["unique"] <= WITHOUT_COPY * data.count
    if not nearly_all and duplicates["long_rows"] < LONG_COPIES * data.count:
        return None
    rows = data.reading.rows
    flags = is_copy(rows)
    if not nearly_all:
        flags &= is_long(rows)
    least = f"{LONG} tokens" if "tokens" in rows else f"{LONG_TEXT} characters"
    long_only = "" if nearly_all else f" and have {least} or more"
    count = int(flags.sum())
    return Problem(
        45 + 30 * duplicates["share"],
        f"{count:,} of {counted(data.count, 'response')} ({share(count, data.count)}) repeat the "
        f"`{duplicates['column']}` of an earlier one{_unit(data)}{long_only} (reported from "
        f"{100 * LONG_COPIES:g} % on{', or if nearly all do' if nearly_all else ''})",
        "check whether rows were written twice or sampling collapsed (temperature, seed); drop "
        "copies, which count twice in every baseline",
        count, data.count, data.examples(flags, "tokens"),
    )  # fmt: skip


def _unit(data: CheckInput) -> str:
    """Return the unit within which copies are counted."""
    return next((f" of their {unit}" for role, unit in UNITS if role in data.reading.rows), "")
