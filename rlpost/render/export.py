"""The list of targets of exports, and the result of an export."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

from rlpost.display.controls import printable_line
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, first_of
from rlpost.formats.targets.base import lost_text

Json = dict[str, Any]


def page(summary: Json) -> Page:
    """Return the files and columns of an export, and what it lost."""
    outputs = first_of(summary["outputs"])
    counts = [counted(summary["responses"], "response")]
    counts += [counted(summary["tokens"], "response token")] if summary["tokens"] else []
    warnings = [*filter(None, [_lost(summary)]), *summary["warnings"]]
    return Page(
        f"rlpost export · {first_of(summary['inputs'])} → {outputs}",
        [f"{summary['target']}: {', '.join(counts)}"],
        [TextTable((), [*_facts(summary).items()], text=(0, 1))],
        [Notice("warning", text) for text in warnings],
        Notice("ok", f"{outputs} written in {summary['seconds']:.2f} s"),
    )


def _facts(summary: Json) -> dict[str, str]:
    pairs = [(field, name) for name, own in summary["fields"].items() for field in own.split(", ")]
    fields = sorted(pairs, key=itemgetter(0))
    written = [
        field if columns == [field] else f"{field} = {', '.join(columns)}"
        for field, names in groupby(fields, key=itemgetter(0))
        for columns in [[name for _, name in names]]
    ]
    facts = {
        "fields": "; ".join(written),
        "other columns" if written else "columns": ", ".join(summary["others"]),
        "read by": summary["use"],
        "note": summary["note"],
    }
    return {name: printable_line(text) for name, text in facts.items() if text}


def _lost(summary: Json) -> str:
    """Return the number of lost columns, and their names; empty if none is lost."""
    lost = summary["lost"]
    total = len(summary["fields"]) + len(summary["others"]) + len(lost)
    return f"{len(lost)} of {counted(total, 'column')} lost: {lost_text(lost)}" if lost else ""
