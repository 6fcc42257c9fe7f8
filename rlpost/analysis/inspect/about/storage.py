"""The topic `storage`: files, the programs that wrote them, and bytes by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.analysis.inspect.about.base import page_of, topic
from rlpost.analysis.inspect.about.columns import kind
from rlpost.display.charts import bar
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, size

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import ColumnFacts, Facts, InputFacts
    from rlpost.display.page import Page


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
    total = max(sum(one.bytes for one in stored.columns), 1)
    columns = sorted(stored.columns, key=lambda one: -one.bytes)
    rows = [_row(one, total) for one in columns]
    headings = ("column", "type", "bytes", "ratio", "codec", "")
    return TextTable(headings, rows, "Storage", stored_lines(stored), text=(0, 1, 4, 5))


def _row(one: ColumnFacts, total: int) -> tuple[str, ...]:
    ratio = f"{one.uncompressed / one.bytes:.1f}" if one.bytes else "–"
    codecs = ", ".join(one.codecs)
    return one.name, kind(one.type), size(one.bytes), ratio, codecs, bar(one.bytes, total, BAR)
