"""Findings about rows that are no answers, or not whole: failures, copies, truncated responses."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.failures import signs_of_failures
from rlpost.analysis.inspect.findings.base import MOST_NAMED, NotRun, Problem, check
from rlpost.analysis.inspect.responses import LONG, LONG_TEXT, is_copy, is_long
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.display.text import counted, percent, plural, share, value_list

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import CheckInput, Result


FAILED = 0.25  # of the rollouts, or of the rows
FAILED_STEP = 0.5  # of those of one step
FEW_RESPONSES = 4  # different ones in a step; fewer may be equal by chance
DIGESTS = 1 << 32  # digests are added in two halves, whose sums fit 64 bits
LONG_COPIES = 0.05
WITHOUT_COPY = 0.05  # of the responses, at most
TRUNCATED = 0.25
LARGE = 128  # tokens that are a length limit
AT_LIMIT = 0.05  # of the responses have exactly the maximum length


@check("error", "rollouts, samples or steps")
def written_twice(data: CheckInput) -> Result:
    """Rows are there twice: a step under another number, rows of a rollout, samples of a prompt.

    They count and are trained on twice. A step is another one if it has its prompts, responses,
    rewards and log-probs.

    Check whether a restart or a retry of the writer wrote them again, and drop the copies.
    """
    steps, copies, texts = _repeated_steps(data), _repeated_rows(data), []
    column = data.column("batch")
    if count := int(steps["rows"].sum()):
        pairs = [*steps.select("batch", "original").iter_rows()]
        named = ", ".join(f"{step} repeats {original}" for step, original in pairs[:MOST_NAMED])
        more = ", ..." if len(pairs) > MOST_NAMED else ""
        noun = column if len(pairs) == 1 else plural(column)
        texts.append(f"{noun} {named}{more}: the same prompts, responses, rewards and log-probs in "
                     f"{data.part(count)}")  # fmt: skip
    indices = sorted({index for copy in copies.values() for index in copy})
    if indices and 2 * len(indices) <= data.count:  # else sample ids number no rollouts
        counts = ", ".join(f"{len(copy):,} {name}" for name, copy in copies.items() if copy)
        texts.append(f"{data.part(len(indices))} are there twice: {counts}")
    if not texts:
        return None
    shown = [*steps["first"].to_list(), *indices]
    return Problem("; ".join(texts), shown, ["batch"] if count else ["rollout"])


def _repeated_rows(data: CheckInput) -> dict[str, list[int]]:
    """Return the rows of a rollout, and the samples of a prompt, that are there again."""
    rows = data.reading.rows.with_row_index("index")
    rows = rows.filter(~data.flags("superseded") & data.unmasked)
    by, copies = [key for key in ("batch", "group") if key in rows], {}
    if "group" not in rows:
        return {}
    rows = rows.drop_nulls(by)
    if {"rollout", "copy"} <= {*rows.columns}:
        parts = [name for name in ("rollout", "turn", "copy", "tokens", "reward") if name in rows]
        again = ~pl.struct([*by, *parts]).is_first_distinct() & (pl.col("copy") != 0)
        copies["rows of a rollout again"] = rows.filter(again)["index"].to_list()
    if "sample" in rows and ("rollout" in rows or not ("turn" in rows or (data.turns > 0).any())):
        unit = "rollout" if "rollout" in rows else "index"
        again = pl.col(unit) != pl.first(unit).over([*by, "sample"])
        copies["a sample again"] = rows.filter(again)["index"].to_list()
    return copies


def _repeated_steps(data: CheckInput) -> pl.DataFrame:
    """Return the steps that repeat an `original` one: how many `rows` they have, and the `first`.

    A response is identified by the numbers of its log-probs, or by a text that is too long to be
    equal by chance; a step counts if it has several of them. Their order does not matter.
    """
    rows = data.reading.rows.with_row_index("index")
    means = [f"mean:{role}" for role in LOG_PROBS if f"mean:{role}" in rows]
    known = [pl.col(name).is_finite() & (pl.col(name) != 0) for name in means]
    if data.reading.selection.text is not None:
        known.append(pl.lit(is_long(rows)) & pl.col("copy").is_not_null())
    if "batch" not in rows or not known:
        return pl.DataFrame(schema=dict.fromkeys(("batch", "original", "rows", "first"), pl.Int64))
    parts = [name for name in ("prompt", "copy", "reward", "tokens", *means) if name in rows]
    digests = rows.select(
        "batch", "index", digest=pl.struct(parts).hash(), known=pl.any_horizontal(known)
    ).drop_nulls("batch")
    steps = digests.group_by("batch", maintain_order=True).agg(
        rows=pl.len(),
        low=(pl.col("digest") % DIGESTS).sum(),
        high=(pl.col("digest") // DIGESTS).sum(),
        distinct=pl.col("digest").filter("known").n_unique(),
        first=pl.first("index"),
    )
    steps = steps.filter(pl.col("distinct") >= FEW_RESPONSES)
    original = pl.first("batch").over("rows", "low", "high")
    return steps.with_columns(original=original).filter(pl.col("batch") != pl.col("original"))


@check("error", "run_attempt")
def superseded_attempts(data: CheckInput) -> Result:
    """Several attempts of the run wrote rows of the same step: the older ones count twice.

    A run that restarts from a checkpoint writes the steps after it again. Rows of the older attempt
    are from weights that were discarded, and join the groups of the newer one.

    Leave them out of statistics, here and in `rlpost advantages`, with --attempts newest.
    """
    flags = data.flags("superseded") & data.unmasked
    count, rows = int(flags.sum()), data.reading.rows
    if not count or data.table.resolved.recipe.attempts == "newest":
        return None
    steps = rows["batch"].filter(flags).unique().to_list() if "batch" in rows else []
    text = f"{data.part(count)} are of an older attempt (`{data.column('run_attempt')}`) than "
    text += f"others of their step{data.in_steps(steps)}"
    return Problem(text, flags, ["run_attempt"], "--attempts newest")


@check("warning", "failures or rewards")
def many_failures(data: CheckInput) -> Result:
    """At least 25 % of the rollouts failed, or half of those of a step, or rewards of 0 look so.

    Without rollout ids, each row counts. A crash, a time-out or a failed judge is no wrong answer,
    but with reward 0 it lowers the baseline of its group, so the policy is trained towards whatever
    the survivors did; --about failures has both baselines. Without a column that names failures,
    rewards of 0 of responses without tokens, or without log-probs, look like them.

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
    signs = {x: flags for x, flags in signs_of_failures(data.reading.rows).items() if flags.any()}
    if not signs or reward["min"] == reward["max"]:
        return None
    either = reduce(or_, signs.values())
    text = f"{data.part(int(either.sum()))} with reward 0 look like failures, not like wrong "
    text += f"answers: {', '.join(f'{flags.sum():,} {name}' for name, flags in signs.items())}"
    return Problem(text, either, ["reward"], "--map failure=COLUMN")


@check("warning", "response texts or log-probs")
def copied_responses(data: CheckInput) -> Result:
    """Responses repeat an earlier one of their group: duplicate rows, or collapsed sampling.

    Copies count twice in every baseline. Responses of 32 tokens or more count from 5 % on, others
    if nearly all do.

    Check whether rows were written twice or sampling collapsed (temperature, seed); drop copies.
    """
    duplicates, rows = data.tokens.duplicates if data.tokens else None, data.reading.rows
    assert duplicates is not None
    # Short responses are equal by chance, but not all of them.
    nearly_all = duplicates["unique"] <= WITHOUT_COPY * data.count
    flags = is_copy(rows) if nearly_all else is_copy(rows) & is_long(rows)
    if not nearly_all and flags.sum() < LONG_COPIES * data.count:
        return None
    least = f"{LONG} tokens" if "tokens" in rows else f"{LONG_TEXT} characters"
    units = {"group": " of their group", "batch": " of their step"}
    within = next((text for role, text in units.items() if role in rows), "")
    text = f"{data.part(int(flags.sum()))} repeat the `{duplicates['column']}` of an earlier one"
    text += f"{within}{'' if nearly_all else f' and have {least} or more'}"
    return Problem(text, flags, [duplicates["column"]])


@check("warning", "truncated or lengths")
def many_truncated(data: CheckInput) -> Result:
    """At least 25 % of responses are truncated, or at least 5 % have exactly the most tokens.

    A truncated answer is mostly scored as wrong, whatever it would have become.

    Raise the length limit, or leave such responses out: --drop-truncated, --drop-longer,
    --overlong-penalty.
    """
    rows, included = data.reading.rows, data.included
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
        text = f"have exactly the maximum of {longest:,.0f} tokens and may be truncated"
    if not many or not flags.any():
        return None
    count = int(flags.sum())
    text = f"{count:,} of {counted(total, 'response')} ({share(count, total)}) {text}"
    return Problem(text, flags, ["truncated"] if "truncated" in rows else [], "--drop-truncated")


@check("warning", "truncated")
def unknown_finish_reasons(data: CheckInput) -> Result:
    """Finish reasons are not known as those of a truncated response, nor as those of a whole one.

    They count as not truncated.

    If they are truncated, write `length`, or a column of bools and name it with
    --map truncated=COLUMN; --map truncated=none ignores the column.
    """
    reasons = data.reading.rows["unknown_reason"]
    flags = reasons != ""
    if not flags.any():
        return None
    values = value_list(dict(reasons.filter(flags).value_counts(sort=True).iter_rows()))
    text = f"`{data.column('truncated')}` has values that are not known in "
    text += f"{data.part(int(flags.sum()))} ({values}), which count as not truncated"
    return Problem(text, flags, ["truncated"], "--map truncated=COLUMN")


@check("warning")
def made_token_ids(data: CheckInput) -> Result:
    """A tokenizer made the token ids and lengths of the responses, whose dump has only texts.

    The text of sampled tokens can have other tokens, and none for the end of a sequence, so ids and
    lengths may differ from those that the policy sampled.

    Dump token ids, or compare one response with the engine's tokens.
    """
    files = {file.path: (file.rlpost or {}).get("tokenizer") for file in data.input.files}
    names = ", ".join(sorted({name for name in files.values() if name}))
    if not names:
        return None
    text = f"token ids and lengths are not those that were sampled: `{names}` made them from texts"
    return Problem(text, files=[path for path, name in files.items() if name])
