"""Findings about prompt groups: the key, the prompts, and rows that are turns of a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from rlpost.analysis.inspect.findings.base import NotRun, Problem, check
from rlpost.display.text import counted, first_of, share
from rlpost.pipeline.groups import LARGE, joins_files, mixed_domains, mixed_files
from rlpost.pipeline.turns import BY_ID, evidence_counts, one_id, turn_evidence

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import Result
    from rlpost.analysis.inspect.inspected import Inspected


UNEQUAL = 0.01  # of the groups differ in size from most
LEAST_TURNS = 7  # times that steps start again within a prompt
TURNS = "rows are turns, and a later turn's prompt has the turns before"


@check("error or warning", "group", whole_groups=True)
def group_key(data: Inspected) -> Result:
    """Most groups have one response, or all responses of a step one key: it is not the prompt's.

    A response minus the mean of itself is 0, so with an id per response all advantages are 0. With
    an id per step, or one for all steps, the baseline compares answers to different prompts.

    Check whether the column is the prompt's id, and set another one with --map group=COLUMN; of
    prompts that are empty or equal, --group-size N makes groups of N consecutive responses.
    """
    groups, rows, column = data.facts.prompt_groups, data.group_rows, data.column("group")
    if groups is None or not len(rows):
        return None
    steps = rows["batch"].n_unique() if "batch" in rows else 1
    single, least = data.facts.whole("single")["total"], int(data.facts.whole("group_size")["min"])
    same, most = groups.prompts == 1 < steps, 2 * single > len(rows)
    if most:
        text = f"{single:,} of {counted(len(rows), 'group')} by `{column}` "
        text += f"{'has' if single == 1 else 'have'} one {data.facts.unit}, so a group "
        text += "baseline makes their advantages 0"
        if groups.prompts < len(rows):
            step = data.column("batch")
            text += f"; it has {counted(groups.prompts, 'value')} over all `{step}`, and --map "
            text += "batch=none joins the groups of a prompt over them"
    elif same or (len(rows) <= steps and least >= LARGE):
        key = f"{rows['group'][0]!r} in all {steps:,} steps" if same else "the same in a step"
        text = f"all responses are of one prompt: `{column}` is {key}, and groups have at least "
        text += counted(least, data.facts.unit)
    else:
        return None
    shown = rows.filter((rows["rows"] == 1) == most)["first"].to_list()
    option = "--map group=COLUMN" if most else "--group-size N"
    return Problem(text, shown, ["group"], option, error=most)


@check("error or warning", "group", "prompts")
def group_prompts(data: Inspected) -> Result:
    """Responses of a group have different prompts.

    The baseline is then the mean of easy and hard questions, so advantages reward easy prompts.

    Check whether the key is the prompt's id; group by prompts with --map group=COLUMN. If prompts
    continue earlier ones, rows are turns: --map rollout=COLUMN.
    """
    if (data.turns > 0).any():
        return NotRun(TURNS)
    prompt, several = data.column("prompt"), _kinds_in_groups(data, "prompt")
    several = several.filter(pl.col("rows") > 1)
    if several.is_empty():
        return NotRun("no group has several responses")
    mixed = several.filter(pl.col("kinds") > 1)
    if mixed.is_empty():
        return None
    text = f"{len(mixed):,} of {counted(len(several), 'group')} with several responses "
    text += f"({share(len(mixed), len(several))}) have more than one `{prompt}`: their baseline "
    text += "compares answers to different questions"
    most = 2 * len(mixed) > len(several)
    option = f"--map group={prompt}"
    return Problem(text, _pairs(mixed), ["group", "prompt"], option, error=most)


@check("warning", "group", "domain")
def group_domains(data: Inspected) -> Result:
    """Responses of a group have several domains, as of sources that number their prompts alike.

    A baseline is then the mean of answers to different prompts of easy and hard sources.

    Check whether the key is that of a prompt in all sources; --numerics batch=step_domain of
    `rlpost advantages` keeps the groups of domains apart.
    """
    groups = _kinds_in_groups(data, "domain")
    mixed = groups.filter(pl.col("kinds") > 1)
    if mixed.is_empty():
        return None
    count = f"{len(mixed):,} of {counted(len(groups), 'group')}"
    text = mixed_domains(count, data.column("group"), data.column("domain"))
    return Problem(text, _pairs(mixed), ["group", "domain"])


@check("warning", "group")
def group_files(data: Inspected) -> Result:
    """Responses of a group are of several files that look like steps, and no column has the step.

    A baseline is then the mean of answers of several policies.

    Name the column of steps with --map batch=COLUMN, or read the steps from names of files, such as
    step_7, with --from parquet.
    """
    files = [file.path for file in data.facts.input.files]
    if "batch" in data.rows or len(files) == 1:
        return None
    groups = _kinds_in_groups(data, "file")
    mixed = groups.filter(pl.col("kinds") > 1)
    if not joins_files(len(mixed), len(groups), files):
        return None
    count = f"{len(mixed):,} of {counted(len(groups), 'group')}"
    text = mixed_files(count, data.column("group"), files)
    return Problem(text, _pairs(mixed), ["group"], "--from parquet")


def _pairs(keys: pl.DataFrame) -> list[int]:
    """Return the first row of each key, and the first one with another value."""
    return [row for pair in keys.select("first", "other").iter_rows() for row in pair]


def _kinds_in_groups(data: Inspected, what: str) -> pl.DataFrame:
    """Count the values of a column within each group of a step.

    Returns:
        For each group its `rows`, the number of different values (`kinds`), and the indices of the
        `first` row and of the first row with an `other` value.
    """
    rows = data.rows_of("batch", "group", what)
    by = ["batch", "group"] if "batch" in rows else ["group"]
    valid = rows.drop_nulls(["group", what])
    if what == "prompt":
        valid = valid.filter(pl.col("prompt") != 0)
    other = pl.col("index").filter(pl.col(what) != pl.col(what).first())
    return valid.group_by(by, maintain_order=True).agg(
        rows=pl.len(), kinds=pl.col(what).n_unique(), first=pl.first("index"), other=other.first()
    )


@check("error or warning", "group", "rollout ids, turns or steps")
def rows_are_turns(data: Inspected) -> Result:
    """Rows are turns of rollouts: the steps count them, or each counts as a response of its group.

    Groups are within a step, so steps that are turns compare a rollout with parts of others. If
    each turn counts as a response, long rollouts weigh more in the baseline of their group. If the
    rows of every group share one id, it may be that of the prompt or step: --unit row counts rows.

    Join steps that are turns with --map batch=none; count a rollout once with --map rollout=COLUMN,
    or use the turns with the estimators gigpo and step_reinforce.
    """
    rollout, flags = data.selection.columns.columns.get("rollout"), data.turns > 0
    if why := _turns_as_steps(data):
        rows = data.rows
        several = rows.drop_nulls(["batch", "group"]).group_by("group").agg(pl.n_unique("batch"))
        split = several.filter(pl.col("batch") > 1)["group"]
        text = f"`{data.column('batch')}` counts the turns of rollouts, not training batches: {why}"
        text += f". {len(split):,} of {counted(len(several), 'prompt')} (`{data.column('group')}`) "
        text += "are split, and a rollout counts once for each of its turns"
        flags = rows["group"].is_in(split.implode())
        return Problem(text, flags, ["batch"], "--map batch=none", error=True)
    if data.by_rollout:
        return _one_id(data)
    count = int(flags.sum())
    unrewarded = rollout is not None and "reward" not in data.rows
    if not count or data.chosen_unit == "row" or unrewarded:  # with rewards, rollouts count
        return None
    role = "rollout" if (data.turns == BY_ID).any() else "turn"
    text = f"{data.part(count)} look like turns of a rollout (by `{data.column(role)}`), but each "
    text += "counts as a response of its group, so long rollouts weigh more"
    option = f"--map rollout={rollout if role == 'rollout' else 'COLUMN'}"
    return Problem(text, flags, [role], option)


def _turns_as_steps(data: Inspected) -> str:
    """Return why steps are turns; empty if nothing shows it.

    In a training, a prompt comes in any step; and if it comes in all of them, then in file order
    step by step. Steps that are turns are several within a rollout, or start again within
    consecutive rows of a prompt at least 7 times, and go up by 1 otherwise.
    """
    rows, step = data.rows_of("batch", "group", "rollout"), pl.col("batch")
    if "batch" not in rows:
        return ""
    rows = rows.drop_nulls(["batch", "group"])
    if data.by_rollout:
        several = step.n_unique().over("group", "rollout") > 1
        count, column = int(rows.select(several.sum()).item()), data.column("rollout")
        return f"{count:,} rows share a `{column}` with other steps" if count else ""
    if not rows["batch"].dtype.is_integer():
        return ""
    same = pl.col("group") == pl.col("group").shift()
    low, change = step.min(), pl.when(same).then(step.cast(pl.Int64).diff())
    again = (step == low) & (change <= 0)
    fits, start, ends, times = rows.select(
        (again | (change == 1) | change.is_null()).all(),
        start=low,
        ends=(again & (change < 0)).sum(),
        times=again.sum(),
    ).row(0)
    if not fits or ends < LEAST_TURNS:
        return ""
    return f"it starts again at {start} {times:,} times within a prompt, else goes up by 1"


def _one_id(data: Inspected) -> Result:
    """Return that each group is one rollout by an id that was not chosen."""
    rows = data.table.rows
    if data.chosen_unit is not None or "rollout" not in rows:
        return None
    evidence = turn_evidence(rows["group"], rows["rollout"], None)
    counts = evidence_counts(evidence)
    if counts["several_ids"] or not counts["shares_id"]:
        return None
    text, advice = one_id("all groups with several rows have", data.column("rollout"))
    return Problem(text, pl.Series(evidence > 0), ["rollout"], advice=advice)


@check("error", "group", "reward")
def differing_rollout_rewards(data: Inspected) -> Result:
    """Rows of one rollout have different rewards, and no option selects the one that counts.

    A rollout has one reward in the baseline of its group: `rlpost advantages` rejects others.

    Choose that reward with --rollout-reward last, sum or mean, or count rows with --unit row.
    """
    rows, reward, column = data.rows, pl.col("reward"), data.column("rollout")
    if not data.by_rollout:
        return NotRun("each row counts as a response (--map rollout=COLUMN counts rollouts)")
    if data.table.resolved.recipe.rollout_reward != "equal":
        return None
    by = [key for key in ("batch", "group", "rollout") if key in rows]
    parts = data.rows_of(*by, "reward").filter(reward.is_finite() & data.included)
    known = parts.drop_nulls(by)
    other = pl.col("index").filter(reward != reward.first()).first()
    rollouts = known.group_by(by, maintain_order=True).agg(pl.first("index"), other=other)
    differing = rollouts.drop_nulls("other")
    if differing.is_empty():
        return None
    examples = [
        f"{rollout} has {rows['reward'][first]:g} and {rows['reward'][second]:g}"
        for rollout, first, second in differing.select("rollout", "index", "other").iter_rows()
    ]
    text = f"rows of one `{column}` have different rewards in {counted(len(differing), 'rollout')}"
    text += f": {first_of(examples)}; statistics of groups here are of their mean"
    pairs = [row for pair in differing.select("index", "other").iter_rows() for row in pair]
    return Problem(text, pairs, ["rollout", "reward"], "--rollout-reward last")


@check("warning", "group", whole_groups=True)
def unequal_groups(data: Inspected) -> Result:
    """Prompt groups have fewer or more responses than most, so some were dropped or written twice.

    An asynchronous trainer drops slow or failed rollouts, which leaves a baseline of the quick
    ones; restarts write a prompt twice. Inspected count, not rows, if there are rollout ids.

    Check whether the trainer dropped rollouts, or a restart wrote some again.
    """
    rows, codes = data.rows, data.table.rows
    unit = "rollout" if "rollout" in rows else "response"
    if unit == "response" and (data.turns > 0).any():
        return NotRun("rows are turns, and a rollout has any number of them")
    chosen = np.flatnonzero(codes["keyed"] & ~data.flags("superseded").to_numpy())
    group, count = codes["group"][chosen], codes.count("group")
    first = np.zeros(count, np.int64)
    first[group[::-1]] = chosen[::-1]
    if unit == "rollout":
        width = codes.count("rollout")
        group = np.unique(group * width + codes["rollout"][chosen]) // width
    sizes = pl.DataFrame({"index": first, "size": np.bincount(group, minlength=count)})
    groups = sizes.filter(pl.col("size") > 0).sort("index")
    groups = groups.with_columns(group=rows["group"].gather(groups["index"]))
    if not len(groups):
        return NotRun("no row has all keys")
    usual, most = groups["size"].value_counts(sort=True).row(0)
    if usual < 2 or most * 2 <= len(groups):  # noqa: PLR2004
        return NotRun("no size is that of most groups")
    other = groups.filter(pl.col("size") != usual)
    if len(other) <= UNEQUAL * len(groups):
        return None
    sides = {"fewer": pl.col("size") < usual, "more": pl.col("size") > usual}
    parts = [
        f"{len(part):,} have {what} than the {usual:,} {unit}s of most "
        f"({abs(part['size'] - usual).sum():,} {'missing' if what == 'fewer' else 'too many'})"
        for what, part in ((what, other.filter(side)) for what, side in sides.items())
        if len(part)
    ]
    total = groups.group_by("group").agg(pl.sum("size"), parts=pl.len())
    whole = total.filter(pl.col("size") == usual, pl.col("parts") > 1)["group"]
    split = int(other["group"].is_in(whole.implode()).sum())
    joined = f"; {split:,} have the others in another `{data.column('batch')}`" if split else ""
    text = f"of {counted(len(groups), 'prompt group')}, {' and '.join(parts)}{joined}"
    option = "--map batch=none" if split else ""
    return Problem(text, other["index"].to_list(), ["group"], option)
