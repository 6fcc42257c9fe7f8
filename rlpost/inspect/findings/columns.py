"""Findings about columns: missing, of mixed types, of unequal lengths, padded, shifted, masks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from rlpost.inspect.findings.case import MOST_SHOWN, counted
from rlpost.inspect.footers import MISSING
from rlpost.inspect.model import Evidence, Finding
from rlpost.schema import ROLES, kind_of

if TYPE_CHECKING:
    from rlpost.inspect.findings.case import Case
    from rlpost.inspect.model import ColumnFacts

MOST_OFFERED = 3
SHOWN_FILES = 3
REWARDLIKE = re.compile("reward|score|accura|correct|pass|return|grade")


def no_reward(case: Case) -> Finding | None:
    """No column serves as the reward."""
    if case.rewards is not None or not case.rows or "reward" in case.reading.wanted.unusable:
        return None
    return Finding(
        "no_reward", "error", 100,
        f"no column is the reward: it would be called {' or '.join(ROLES['reward'].aliases[:4])}",
        _which(case),
        1, 1,
    )  # fmt: skip


def _which(case: Case) -> str:
    """What to write, with the columns that could be meant: those that are called like a reward."""
    numbers = [
        one.name
        for one in case.input.columns
        if one.role is None and re.match(r"u?int|float|double|halffloat|bool|decimal", one.type)
    ]
    likely = [name for name in numbers if REWARDLIKE.search(name.lower())]
    found = likely or numbers
    if not found:
        return "no column has a number per row; say which one it is: --map reward=COLUMN"
    maps = " or ".join(f"--map reward={name}" for name in found[:MOST_OFFERED])
    return f"say which one it is: {maps}"


def no_rows(case: Case) -> Finding | None:
    """Nothing to train on."""
    if case.rows:
        return None
    return Finding(
        "no_rows", "error", 100,
        f"there are no rows, in {counted(len(case.input.files), 'file')}",
        "did the dump fail, or did a filter leave nothing?",
        1, 1, [Evidence(file.path) for file in case.input.files[:MOST_SHOWN]],
    )  # fmt: skip


def no_groups(case: Case) -> Finding | None:
    """No column tells the prompt of a response."""
    if case.groups is not None or not case.rows or "group" in case.reading.wanted.unusable:
        return None
    return Finding(
        "no_groups", "warning", 60,
        "no column says which responses answer one prompt, so there are no group baselines "
        f"(it would be called {' or '.join(ROLES['group'].aliases[:4])})",
        f"say which one it is: --map group={case.reading.wanted.prompt or 'COLUMN'}",
        1, 1,
    )  # fmt: skip


NEEDS = {
    "tokens": "a list of numbers per row",
    "number": "a number per row",
    "key": "a name or a whole number per row",
    "flag": "a bool or a finish reason per row",
}


def wrong_types(case: Case) -> Finding | None:
    """Columns that serve a role by their name, but can't by their type."""
    wrong = case.reading.wanted.unusable
    if not wrong:
        return None
    kinds = [
        f"`{column}` is {kind}{_where(case, column, kind)}, but {role} needs {NEEDS[kind_of(role)]}"
        for role, (column, kind) in wrong.items()
    ]
    first = next(iter(wrong))
    return Finding(
        "wrong_types", "error", 88,
        f"{'; '.join(kinds)}: not read{' from any file' if len(case.input.files) > 1 else ''}",
        f"name the column that is meant, --map {first}=COLUMN, or none, --map {first}=none",
        len(wrong), len(case.input.columns),
    )  # fmt: skip


def _where(case: Case, column: str, kind: str) -> str:
    """The files in which a column is of a type, where it is another elsewhere."""
    facts = next(one for one in case.input.columns if one.name == column)
    if not facts.other_types:
        return ""
    if kind in facts.other_files:
        return f" in {_named(facts.other_files[kind], facts.other_types[kind])}"
    return f" in {_named([case.input.files[0].path], 1)}"


def _named(files: list[str], count: int) -> str:
    """`b.parquet`, or `b.parquet and 3 more files`."""
    names = ", ".join(path.rpartition("/")[2] for path in files[:SHOWN_FILES])
    more = count - min(len(files), SHOWN_FILES)
    return names + (f" and {counted(more, 'more file')}" if more > 0 else "")


def null_keys(case: Case) -> Finding | None:
    """Rows without a prompt, a step or a domain."""
    rows = case.reading.rows
    keys = [role for role in ("group", "batch", "domain") if role in rows]
    lacking = [role for role in keys if rows[role].null_count()]
    if not lacking:
        return None
    flags = rows.select(pl.any_horizontal(pl.col(role).is_null() for role in lacking)).to_series()
    count = int(flags.sum())
    names = ", ".join(f"`{case.column(role)}`" for role in lacking)
    return Finding(
        "null_keys", "error", 91,
        f"{count:,} of {case.rows:,} rows have no {names}",
        "fill or drop these rows; `rlpost advantages` refuses them",
        count, case.rows, case.rows_where(flags),
    )  # fmt: skip


def mixed_types(case: Case) -> Finding | None:
    """Files disagree about a column's type, or some lack it."""
    mixed = [column for column in case.input.columns if _other_kinds(column)]
    if not mixed:
        return None
    serving = [one for one in mixed if one.role is not None]
    first = (serving or mixed)[0]
    names = ", ".join(f"`{one.name}`" for one in mixed[:6])
    unread = first.role in case.reading.wanted.unusable
    return Finding(
        "mixed_types", "error" if serving else "warning", 85 if serving else 30,
        f"files disagree about {names}: {_kinds(first)}",
        "write all files with one schema; "
        + (
            f"`{first.name}` is not read at all now" if unread
            else "rlpost reads what it can, other readers take the first file's type, or fail"
        ),
        len(mixed), len(case.input.columns),
        [
            Evidence(path, said=f"{one.name}: {kind}")
            for one in (serving or mixed)[:5]
            for kind, files in one.other_files.items()
            if kind == MISSING or _plain(kind) != _plain(one.type)
            for path in files
        ][:MOST_SHOWN],
    )  # fmt: skip


def _kinds(column: ColumnFacts) -> str:
    """What the first file that has a column says it is, and what the others say, by name."""
    kinds = [
        f"{'missing' if kind == MISSING else kind} in "
        f"{_named(column.other_files.get(kind, []), times)}"
        for kind, times in column.other_types.items()
    ]
    return f"`{column.name}` is {column.type}, but {', '.join(kinds)}"


def _other_kinds(column: ColumnFacts) -> bool:
    """Whether types differ in more than how a list or a string is stored."""
    return any(_plain(kind) != _plain(column.type) for kind in column.other_types)


def _plain(kind: str) -> str:
    kind = re.sub(r"fixed_size_list<(.*)>\[\d+\]", r"list<\1>", kind)
    kind = re.sub(r"\b(?:large_)?list(?:_view)?<\w+: ", "list<", kind)
    kind = re.sub(r"dictionary<values=(\w+),.*>", r"\1", kind)
    return re.sub(r"\blarge_(string|binary)\b|\b(string)_view\b", r"\1\2", kind).removesuffix(
        " not null"
    )
