"""The result of `rlpost join`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import labelled
from rlpost.display.text import counted, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


Json = dict[str, Any]


def show_join(summary: Json, out: Console | None = None) -> None:
    """Print the files, rows and columns of a join on stderr or another console."""
    out = out or console(sys.stderr)
    columns = [name for name in summary["columns"] if name not in summary["replaced"]]
    out.print(Text("rlpost join", "bold"))
    out.print(Text(f"{_first(summary['inputs'])}"))
    out.print(Text(f"  + {_first([*dict.fromkeys(summary['sidecars'])])}"))
    if summary["outputs"]:  # a joined table has none
        out.print(Text(f"  → {_first(summary['outputs'])}"))
    out.print()
    facts = {
        "rows": _rows(summary),
        "new columns": ", ".join(columns),
        "replaced columns": ", ".join(summary["replaced"]),
        "decoded": _first(summary["decoded"]),
        "input decoded": _first(summary["rewritten"]),
        "written": f"{size(summary['bytes'])} in {summary['seconds']:.2f} s",
    }
    out.print(labelled(facts))
    for text in summary["warnings"]:
        out.print(Text(f"! {printable_line(text)}", "yellow"))


def _rows(summary: Json) -> str:
    """Return the number of rows and how they were matched."""
    on = summary["on"]
    how = f"by the key {', '.join(on)}" if on else "by their order"
    if summary["repeated_keys"]:
        how += f" ({summary['repeated_keys']:,} have the key of an earlier row)"
    equal = [name for name in summary["equal_columns"] if name not in on]
    checked = f"; equal in both: {', '.join(equal)}" if equal else ""
    return f"{counted(summary['rows'], 'row')}, joined {how}{checked}"


def _first(texts: Sequence[str]) -> str:
    """Return the first two of several texts, and the number of the others."""
    more = f" and {len(texts) - 2} more" if len(texts) > 2 else ""  # noqa: PLR2004
    return printable_line("; ".join(texts[:2])) + more
