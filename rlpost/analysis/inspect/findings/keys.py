"""Findings about group keys: a key that is no prompt's, prompts that a key mixes or splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.case import MOST_SHOWN, counted, share
from rlpost.analysis.inspect.model import Evidence, Finding

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.case import Case


MOST = 1 / 2  # of the groups
LARGE = 128  # rows that hardly answer one prompt
SPLIT = 0.05  # of the prompts of a step; data sets hold some prompts twice


def single_row_groups(case: Case) -> Finding | None:
    """Most groups have one row: the key is no prompt's, or steps split the groups."""
    groups = case.groups
    if groups is None or case.group_rows is None or groups.single * 2 <= groups.count:
        return None
    column = case.column("group")
    every = (
        "the only group has"
        if groups.count == 1
        else (f"{groups.single:,} of {groups.count:,} groups have")
    )
    text = f"{every} one row"
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


def mixed_prompts(case: Case) -> Finding | None:
    """Rows of one group answer different prompts: the key is not the prompt's."""
    kinds = _kinds(case, ["group"], "prompt")
    if kinds is None:
        return None
    several = kinds.filter(pl.col("rows") > 1)
    wrong = several.filter(pl.col("kinds") > 1)
    if not len(wrong):
        return None
    column, prompt = case.column("group"), case.reading.wanted.prompt
    same = _same_as_domain(case)
    advice = f"is `{column}` the prompt's id? --map group=COLUMN; --map group={prompt} takes the "
    return Finding(
        "mixed_prompts", "error" if 2 * len(wrong) > len(several) else "warning",
        70 + 27 * len(wrong) / len(several),
        f"{len(wrong):,} of {counted(len(several), 'group')} of several rows "
        f"({share(len(wrong), len(several))}) have rows with different `{prompt}`{same}: their "
        "baseline compares answers to different questions",
        f"{advice}prompts themselves",
        len(wrong), len(several), _examples(case, wrong, "kinds", f"`{prompt}`"),
    )  # fmt: skip


def split_prompts(case: Case) -> Finding | None:
    """One prompt has several groups within a step: each has fewer rows than there are."""
    kinds = _kinds(case, ["prompt"], "group")
    if kinds is None or case.groups is None or 2 * case.groups.single > case.groups.count:
        return None
    wrong = kinds.filter(pl.col("kinds") > 1)
    if len(wrong) <= SPLIT * len(kinds):
        return None
    mixed = _kinds(case, ["group"], "prompt")
    if mixed is not None and 2 * int((mixed["kinds"] > 1).sum()) > len(mixed):
        return None  # keys that have nothing to do with prompts split them, too
    column, prompt = case.column("group"), case.reading.wanted.prompt
    return Finding(
        "split_prompts", "warning", 66,
        f"{len(wrong):,} of {counted(len(kinds), 'prompt')} ({share(len(wrong), len(kinds))}) "
        f"have several `{column}` within one step: each group sees only some of the responses",
        f"is `{column}` made anew for each call of the engine? --map group={prompt} joins the "
        "rows of one prompt; where a data set has prompts twice, all is well",
        len(wrong), len(kinds), _examples(case, wrong, "kinds", f"`{column}`"),
    )  # fmt: skip


def _kinds(case: Case, by: list[str], what: str) -> pl.DataFrame | None:
    """Per step and key: its `rows`, how many `kinds` of another column, and the first two places.

    None where there is no column of prompts, or of groups.
    """
    rows = case.reading.rows
    if "prompt" not in rows or "group" not in rows:
        return None
    by = [key for key in ("batch", *by) if key in rows]
    known = rows.with_row_index("place").drop_nulls(["group"]).filter(pl.col("prompt") != 0)
    other = pl.col("place").filter(pl.col(what) != pl.col(what).first())
    return known.group_by(by, maintain_order=True).agg(
        rows=pl.len(),
        kinds=pl.col(what).n_unique(),
        first=pl.col("place").first(),
        other=other.first(),
    )


def _examples(case: Case, wrong: pl.DataFrame, kinds: str, what: str) -> list[Evidence]:
    """A row of each, and one that differs from it."""
    rows = case.reading.rows
    found = []
    for one in wrong.head(MOST_SHOWN).iter_rows(named=True):
        first, other = rows.row(one["first"], named=True), rows.row(one["other"], named=True)
        path = case.input.files[int(first["file"])].path
        said = f"differs from row {other['row']}, {one[kinds]:,} {what} in {one['rows']:,} rows"
        found.append(Evidence(path, first["row"], first["group"], said))
    return found


def _same_as_domain(case: Case) -> str:
    """A word where the key is the domain under another name."""
    rows = case.reading.rows
    if "domain" not in rows:
        return ""
    pair = (pl.col(name).cast(pl.String) for name in ("group", "domain"))
    same = rows.select(next(pair).eq_missing(next(pair)).all()).item()
    return f" (`{case.column('group')}` is the same as `{case.column('domain')}`)" if same else ""
