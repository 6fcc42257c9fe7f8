"""The result of `rlpost join`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rlpost.display.console import console
from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, first_two, size

if TYPE_CHECKING:
    from rich.console import Console


Json = dict[str, Any]


def show_join(summary: Json, out: Console | None = None) -> None:
    """Print the page of a join on stderr or another console."""
    show_page(page(summary), "table", out or console(sys.stderr))


def page(summary: Json) -> Page:
    """Return the files, rows and columns of a join."""
    columns = [name for name in summary["columns"] if name not in summary["replaced"]]
    sides = f"{first_two(summary['inputs'])} + {first_two([*dict.fromkeys(summary['sidecars'])])}"
    outputs = first_two(summary["outputs"])  # a joined table has none
    facts = {
        "rows": _rows(summary),
        "new columns": ", ".join(columns),
        "replaced columns": ", ".join(summary["replaced"]),
        "decoded": first_two(summary["decoded"], "; "),
        "input decoded": first_two(summary["rewritten"], "; "),
    }
    added = f"{counted(len(columns), 'new column')}, {size(summary['bytes'])}"
    written = f"{outputs} written: {added} in {summary['seconds']:.2f} s"
    return Page(
        f"rlpost join · {sides}{f' → {outputs}' if outputs else ''}",
        (),
        [TextTable((), [fact for fact in facts.items() if fact[1]], text=(0, 1))],
        [Notice("warning", text) for text in summary["warnings"]],
        Notice("ok", written if outputs else added),
    )


def _rows(summary: Json) -> str:
    """Return the number of rows and how they were matched."""
    on = summary["on"]
    how = f"by the key {', '.join(on)}" if on else "by their order"
    if summary["repeated_keys"]:
        how += f" ({summary['repeated_keys']:,} have the key of an earlier row)"
    equal = [name for name in summary["equal_columns"] if name not in on]
    checked = f"; equal in both: {', '.join(equal)}" if equal else ""
    return f"{counted(summary['rows'], 'row')}, joined {how}{checked}"
