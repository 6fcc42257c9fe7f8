"""Findings about columns: roles, types, keys."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import polars as pl

from rlpost.analysis.inspect.findings.base import Problem, check
from rlpost.analysis.inspect.inspected import MISSING
from rlpost.analysis.inspect.selection import LOG_PROBS
from rlpost.display.text import counted
from rlpost.io.arrow import EXACT
from rlpost.recipe.candidates import candidates, worth
from rlpost.recipe.recipe import EXTRA, WRITTEN
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from rlpost.analysis.inspect.findings.base import Result
    from rlpost.analysis.inspect.inspected import Inspected
    from rlpost.analysis.inspect.model import ColumnFacts


MOST_COLUMNS = 3
MOST_FILES = 3
NUMBERS = re.compile("u?int|float|double|halffloat|bool|decimal")
NEEDED_TYPES = {
    "tokens": "a list of numbers per row",
    "number": "a number per row",
    "key": "a name or a whole number per row",
    "flag": "a bool or a finish reason per row",
}


@check("error", needs_rows=False)
def no_rows(data: Inspected) -> Result:
    """The input has no rows.

    Nothing can be trained on.

    Check whether the dump failed, or whether a filter removed every row.
    """
    if data.count:
        return None
    files = [file.path for file in data.facts.input.files]
    return Problem(f"the input has no rows, in {counted(len(files), 'file')}", files=files)


@check("error or warning")
def missing_roles(data: Inspected) -> Result:
    """No column has the role `reward`, which every estimator needs, or `group`, the prompt.

    Without a group, grpo, rloo and the like have no mean of a prompt's responses to subtract.

    Name the column with --map ROLE=COLUMN, or the columns whose sum is the reward with
    --reward-components A,B.
    """
    selection = data.selection
    explained = {*selection.contents, *selection.unusable, *selection.columns.in_some_files}
    recipes = [(file.rlpost or {}).get("recipe", {}) for file in data.facts.input.files]
    if all(recipe.get("reward_components") for recipe in recipes):
        explained.add("reward")  # a run computed it
    lacking = [role for role in ("reward", "group") if role not in explained]
    if not lacking:
        return None
    names = {x.name: x.type for x in data.facts.input.columns if x.role is None}
    holds = {name: "number" if NUMBERS.match(kind) else "text" if kind == "string" else "other"
             for name, kind in names.items()}  # fmt: skip
    role, others = lacking[0], [name for name in names if name not in {*WRITTEN, *EXTRA}]
    likely = [name for name in candidates(role, others, holds) if worth(role, name)]
    if role == "group" and selection.prompt:  # which may be messages
        likely = likely or [selection.prompt]
    reasons = {
        missing: why
        for file in data.facts.input.files
        for missing, why in (file.rlpost or {}).get("missing_roles", {}).items()
    }
    usual = {x: f"usual names: {', '.join(ROLES[x].aliases[:4])}" for x in lacking}
    usual |= {x: reasons[x] for x in lacking if x in reasons}
    return Problem(
        "; ".join(f"no column has the role {x} ({why})" for x, why in usual.items()),
        roles=likely,
        option=f"--map {role}={likely[0] if likely else 'COLUMN'}",
        error=role == "reward",
    )


@check("error or warning", needs_rows=False)
def column_types(data: Inspected) -> Result:
    """A column has a type that its role cannot have, or not one type in all files.

    A text in place of a number, or one number in place of a list, cannot be read, nor can a role
    whose column some files lack. Other readers use the schema of the first file, so they misread or
    reject the others.

    Write all files with one schema and the types that roles need, or set another column with --map
    ROLE=COLUMN, or none.
    """
    selection = data.selection
    typed = {column: role for role, (column, _) in selection.unusable.items()}
    lacking = {column: role for role, (column, _) in selection.columns.in_some_files.items()}
    unread = {**lacking, **typed}
    wrong = [x for x in data.facts.input.columns if x.name in unread or _has_other_types(x)]
    if not wrong:
        return None
    served = [column for column in wrong if column.role or column.name in unread]
    shown = sorted(served or wrong, key=lambda column: column.name not in unread)[:MOST_COLUMNS]
    texts = [f"{_types(x)}{_needed(typed.get(x.name), lacking.get(x.name))}" for x in shown]
    if names := ", ".join(f"`{column.name}`" for column in wrong if column not in shown):
        texts.append(f"types differ for {names}, too")
    kinds = [(x.type, kind, paths) for x in shown for kind, paths in x.files.items()]
    first = shown[0].name
    return Problem(
        "; ".join(texts),
        roles=[column.name for column in shown],
        option=f"--map {typed[first]}=COLUMN" if first in typed else "",
        files=[path for first_type, kind, paths in kinds if kind != first_type for path in paths],
        error=bool(served),
    )


def _types(column: ColumnFacts) -> str:
    """Return the types of a column by file."""
    others = ", ".join(
        f"{'missing' if kind == MISSING else kind} in {_names(column.files.get(kind, []), count)}"
        for kind, count in column.other_types.items()
    )
    return f"`{column.name}` is {column.type}{', but ' if others else ''}{others}"


def _needed(typed: str | None, lacking: str | None) -> str:
    """Return that a column is not read for a role, whose type it lacks, or which files lack."""
    if typed is not None:
        need = "a list of floats per row" if typed in LOG_PROBS else NEEDED_TYPES[kind_of(typed)]
        return f"; the role {typed} needs {need}: not read from any file"
    return f"; it serves the role {lacking}: not read from any file" if lacking else ""


def _names(files: list[str], count: int) -> str:
    """Return `b.parquet`, or `b.parquet and 3 more files`."""
    names = ", ".join(path.rpartition("/")[2] for path in files[:MOST_FILES])
    more = count - min(len(files), MOST_FILES)
    return names + (f" and {counted(more, 'more file')}" if more > 0 else "")


def _has_other_types(column: ColumnFacts) -> bool:
    """Return whether types differ in more than how a list or a string is stored.

    A column that is null in all rows of a file, or whose lists are empty, goes with any type.
    """
    kinds = {_plain(kind) for kind in (column.type, *column.other_types)}
    return len(kinds - {"null", "list<null>"}) > 1


def _plain(kind: str) -> str:
    kind = re.sub(r"fixed_size_list<(.*)>\[\d+\]", r"list<\1>", kind)
    kind = re.sub(r"\b(?:large_)?list(?:_view)?<\w+: ", "list<", kind)
    kind = re.sub(r"dictionary<values=(\w+),.*>", r"\1", kind)
    kind = re.sub(r"\blarge_(string|binary)\b|\b(string)_view\b", r"\1\2", kind)
    return kind.removesuffix(" not null")


@check("error", "keys")
def unusable_keys(data: Inspected) -> Result:
    """Responses have no prompt id, step or domain, or a float that is no exact whole number.

    `rlpost advantages` rejects null keys and fractions: a response without a key belongs to no
    group, step or domain. From 2^53 on, several ids are one float64, so several prompts look like
    one group.

    Fill the keys in or drop these rows, and write ids as int64 or as text; --unit row needs no ids
    of rollouts.
    """
    rows = data.rows
    keys = [role for role in ("group", "batch", "domain") if role in rows]
    keys += ["rollout"] if data.by_rollout else []
    types = {column.name: column.type for column in data.facts.input.columns}
    flags, texts = {}, []
    for role in keys:
        column, null = data.column(role), rows[role].is_null()
        if null.any():
            flags[role] = null
            texts.append(f"no `{column}` in {data.part(int(null.sum()))}")
        elif most := EXACT.get(types.get(column, "")):
            numbers = rows[role].cast(pl.String).cast(pl.Float64, strict=False)
            inexact = ~((numbers == numbers.round()) & (numbers.abs() < most))
            if inexact.any():
                flags[role] = inexact
                texts.append(
                    f"`{column}` is {types[column]}, and in {data.part(int(inexact.sum()))} a "
                    f"fraction or from {most:,} on, where several ids are one number"
                )
    if not flags:
        return None
    option = "--unit row" if "rollout" in flags else ""
    return Problem("; ".join(texts), reduce(or_, flags.values()), [*flags], option)
