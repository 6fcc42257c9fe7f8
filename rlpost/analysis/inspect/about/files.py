"""Topics on files: the column of each role, and what is stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.analysis.inspect.model import ColumnFacts, Facts, InputFacts, RoleFacts
    from rlpost.display.page import Page


# ---- columns ----

EXPECTED = ("group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "batch")


@topic
def columns(facts: Facts) -> Page:
    """The column of each role, how it was found, and roles without a column."""
    derived = ("reward",) if facts.components else ()
    missing = [role for role in EXPECTED if role not in facts.roles and role not in derived]
    lines = [f"no column for {', '.join(missing)} (set with --map ROLE=COLUMN)"] if missing else []
    lacks: dict[str, str] = {}
    for file in facts.input.files:
        lacks |= (file.rlpost or {}).get("missing_roles") or {}
    reasons: dict[str, list[str]] = {}
    for role in missing:
        if role in lacks:
            reasons.setdefault(lacks[role], []).append(role)
    lines += [f"{', '.join(roles)}: {reason}" for reason, roles in reasons.items()]
    table = roles_table(facts.roles, [*lines, *ignored_lines(facts)])
    return page_of(facts, "columns", [table], "")


def roles_table(roles: dict[str, RoleFacts], lines: Sequence[str] = ()) -> TextTable:
    """Return a row for each role."""
    rows = [(role, x.column, x.found_by, kind_text(x.type)) for role, x in roles.items()]
    headings = ("role", "column", "found by", "type")
    return TextTable(headings, rows, "Columns by role", lines, text=range(4))


def ignored_lines(facts: Facts) -> list[str]:
    """Return the columns that have the name of a role which another column serves."""
    return [
        f"{' and '.join(f'`{name}`' for name in served.ignored)} ignored: {role} is read from "
        f"`{served.column}` (--map {role}=COLUMN)"
        for role, served in facts.roles.items()
        if served.ignored
    ]


def kind_text(text: str) -> str:
    """Return a type without the names inside lists."""
    return re.sub(r"(list(?:_view)?<)\w+: ", r"\1", text)


# ---- storage ----

BAR = 16  # characters


@topic
def storage(facts: Facts) -> Page:
    """Files, row groups, the programs that wrote them, and bytes by column."""
    table = storage_table(facts.input) if facts.input.columns else None
    return page_of(facts, "storage", [table], "\n".join(stored_lines(facts.input)))


def stored_lines(stored: InputFacts) -> list[str]:
    """Return files, bytes, row groups, and the programs that wrote them; of tables, the rows."""
    if not stored.columns:
        return [f"{counted(stored.rows, 'row')} of {counted(len(stored.files), 'table')} in memory"]
    low, high = stored.rows_per_group
    span = f" of {low:,}" if low == high else f" of {low:,} to {high:,}"
    span = span if stored.row_groups else ""
    files, rows = counted(len(stored.files), "file"), counted(stored.rows, "row")
    groups = f"{counted(stored.row_groups, 'row group')}{span}"
    writers = ", ".join(sorted({file.writer for file in stored.files}))
    by_rlpost = sorted({_written_by(file.rlpost) for file in stored.files if file.rlpost})
    return [
        f"{files}, {size(stored.bytes)}, {rows} in {groups}",
        "; ".join([f"written by {writers}", *by_rlpost]),
    ]


def _written_by(rlpost: dict[str, Any]) -> str:
    verb = "written"
    if rlpost.get("estimator"):
        verb = f"enriched with {rlpost['estimator']}"
    elif rlpost.get("format"):
        verb = f"converted from {rlpost['format']}"
    return f"{verb} by rlpost {rlpost['version']}"


def storage_table(stored: InputFacts) -> TextTable:
    """Return bytes by column, the largest first."""
    total = max(sum(column.bytes for column in stored.columns), 1)
    columns = sorted(stored.columns, key=lambda column: -column.bytes)
    rows = [_storage_row(column, total) for column in columns]
    headings = ("column", "type", "bytes", "ratio", "codec", "")
    return TextTable(headings, rows, "Storage", stored_lines(stored), text=(0, 1, 4, 5))


def _storage_row(column: ColumnFacts, total: int) -> tuple[str, ...]:
    ratio = f"{column.uncompressed / column.bytes:.1f}" if column.bytes else "–"
    codecs, share = ", ".join(column.codecs), bar(column.bytes, total, BAR)
    return column.name, kind_text(column.type), size(column.bytes), ratio, codecs, share
