"""What the footers tell, as titles, sentences and rows of text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlpost.render_inspect_charts import bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.inspect.model import ColumnFacts, InputFacts, RoleFacts

Row = tuple[str, ...]
BAR = 16
MOST_COLUMNS = 12


@dataclass(frozen=True)
class Section:
    """A title, sentences, and a table of text; columns in `left` are aligned to the left."""

    title: str
    lines: Sequence[str] = ()
    headings: Row = ()
    rows: Sequence[Row] = ()
    left: frozenset[int] = field(default_factory=lambda: frozenset({0}))


def counted(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def storage_lines(stored: InputFacts) -> list[str]:
    """Files, bytes, row groups, and who wrote them."""
    low, high = stored.rows_per_group
    span = f" of {low:,}" if low == high else f" of {low:,} to {high:,}"
    span = span if stored.row_groups else ""
    files = f"{len(stored.files):,} files" if len(stored.files) > 1 else "1 file"
    groups = f"{counted(stored.row_groups, 'row group')}{span}"
    lines = [f"{files}, {size(stored.bytes)}, {counted(stored.rows, 'row')} in {groups}"]
    writers = ", ".join(sorted({file.writer for file in stored.files}))
    made = sorted({_made_by(file.rlpost) for file in stored.files if file.rlpost})
    return [*lines, "; ".join([f"written by {writers}", *made])]


def _made_by(rlpost: dict[str, Any]) -> str:
    """How rlpost made a file."""
    how = "made"
    if rlpost.get("estimator"):
        how = f"enriched with {rlpost['estimator']}"
    elif rlpost.get("format"):
        how = f"converted from {rlpost['format']}"
    return f"{how} by rlpost {rlpost['version']}"


def size(count: int) -> str:
    """Bytes, with a unit that reads well."""
    amount, unit = float(count), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:  # noqa: PLR2004
            break
        amount, unit = amount / 1000, bigger
    return f"{amount:.3g} {unit}" if unit != "B" else f"{count} B"


def kind(text: str) -> str:
    """A type without the names inside lists."""
    return re.sub(r"(list(?:_view)?<)\w+: ", r"\1", text)


def roles_section(roles: dict[str, RoleFacts], lines: Sequence[str] = ()) -> Section:
    """Which column serves what, and how it was found."""
    rows = [(role, one.column, one.found_by, kind(one.type)) for role, one in roles.items()]
    return Section(
        "Columns by role", lines, ("role", "column", "found by", "type"), rows, frozenset(range(4))
    )


def storage(stored: InputFacts, *, every_column: bool) -> Section:
    """Bytes by column, the largest first."""
    total = max(sum(one.bytes for one in stored.columns), 1)
    columns = sorted(stored.columns, key=lambda one: -one.bytes)
    shown = columns if every_column else columns[:MOST_COLUMNS]
    rows = [_stored(one, total) for one in shown]
    rest = columns[len(shown) :]
    if rest:
        some = sum(one.bytes for one in rest)
        rows.append((f"… {len(rest)} more", "", size(some), "", "", bar(some, total, BAR)))
    headings = ("column", "type", "bytes", "ratio", "codec", "")
    return Section("Storage", (), headings, rows, frozenset({0, 1, 4, 5}))


def _stored(one: ColumnFacts, total: int) -> Row:
    ratio = f"{one.uncompressed / one.bytes:.1f}" if one.bytes else "–"
    codecs = ", ".join(one.codecs)
    return one.name, kind(one.type), size(one.bytes), ratio, codecs, bar(one.bytes, total, BAR)
