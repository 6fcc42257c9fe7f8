"""The list of targets of exports, and the result of an export."""

from __future__ import annotations

import sys
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import labelled, show_json, show_list, show_markdown
from rlpost.display.text import counted
from rlpost.formats.targets import TARGETS
from rlpost.formats.targets.base import lost_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from rlpost.formats.targets.base import ExportTarget

Json = dict[str, Any]


def show_targets(how: str) -> None:
    """Print the targets on stdout: what each needs, can hold and loses."""
    if how == "table":
        out = console(sys.stdout)
        for i, one in enumerate(TARGETS.values()):
            if i:
                out.print()
            out.print(Text.assemble((one.name, "bold"), "  ", one.title))
            facts = {**target_facts(one), "note": notes_of(one)}
            out.print(labelled({name: text for name, text in facts.items() if text}, "  "))
        return
    headings = ("target", "writes", "needs", "optional", "other columns", "note", "source")
    rows = [
        (one.name, one.title, *target_facts(one).values(), notes_of(one), one.source)
        for one in TARGETS.values()
    ]
    show_list(headings, rows, how)


def target_facts(target: ExportTarget) -> dict[str, str]:
    """Return what a target needs, what else it holds, and what becomes of other columns."""
    optional = [item for item in target.fields if item not in target.needs]
    return {
        "needs": ", ".join(target.needs),
        "optional": ", ".join(optional),
        "other columns": target.others or "lost",
    }


def notes_of(target: ExportTarget) -> str:
    """Return what becomes different in a target, and what it cannot represent."""
    return " ".join(text for text in (target.note, target.limits) if text)


def show_export(summary: Json, how: str, *, quiet: bool) -> None:
    """Print an export: on stderr, or on stdout as `json` or `markdown`."""
    if how == "json":
        show_json(summary)
    elif how == "markdown":
        show_markdown(("what", "value"), [*_facts(summary).items()])
    elif not quiet:
        show_exported(summary)


def show_exported(summary: Json, out: Console | None = None) -> None:
    """Print the files and columns of an export on stderr or another console."""
    out = out or console(sys.stderr)
    out.print(Text.assemble((f"rlpost export · {summary['target']}", "bold")))
    outputs = ["stdout" if path == "-" else path for path in summary["outputs"]]
    out.print(Text(f"{_first(summary['inputs'])}\n  → {_first(outputs)}"))
    out.print()
    out.print(labelled(_facts(summary)))
    for text in summary["warnings"]:
        out.print(Text(f"! {printable_line(text)}", "yellow"))


def _facts(summary: Json) -> dict[str, str]:
    tokens = f", {counted(summary['tokens'], 'response token')}" if summary["tokens"] else ""
    pairs = [(field, name) for name, own in summary["fields"].items() for field in own.split(", ")]
    fields = sorted(pairs, key=itemgetter(0))
    written = [
        field if columns == [field] else f"{field} = {', '.join(columns)}"
        for field, names in groupby(fields, key=itemgetter(0))
        for columns in [[name for _, name in names]]
    ]
    facts = {
        "written": f"{counted(summary['responses'], 'response')}{tokens}, "
        f"{summary['seconds']:.2f} s",
        "fields": "; ".join(written),
        "other columns" if written else "columns": ", ".join(summary["others"]),
        "lost": _lost(summary),
        "read by": summary["use"],
        "note": summary["note"],
    }
    return {name: printable_line(text) for name, text in facts.items() if text}


def _lost(summary: Json) -> str:
    """Return the number of lost columns, and their names."""
    lost = summary["lost"]
    total = len(summary["fields"]) + len(summary["others"]) + len(lost)
    return f"{len(lost)} of {counted(total, 'column')}: {lost_text(lost)}" if lost else ""


def _first(texts: Sequence[str]) -> str:
    """Return the first two of several paths, and the number of the others."""
    more = f" and {len(texts) - 2} more" if len(texts) > 2 else ""  # noqa: PLR2004
    return printable_line(", ".join(texts[:2])) + more
