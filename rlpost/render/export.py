"""The result of an export."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rlpost.display.controls import printable_line
from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, first_of

Json = dict[str, Any]
_NAMES = 6  # of columns in a line


def page(summary: Json) -> Page:
    """Return the files and columns of an export, and what it lost."""
    outputs = first_of(summary["outputs"])
    counts = [counted(summary["responses"], "response")]
    counts += [counted(summary["tokens"], "response token")] if summary["tokens"] else []
    fields, lost = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, texts in summary["fields"].items():
        for text in texts.split(", "):
            fields[text].append(name)
    for name, reason in summary["lost"].items():
        lost[reason].append(name)
    rows = [*sorted((field, ", ".join(names)) for field, names in fields.items()),
            ("other columns", first_of(summary["others"], _NAMES)),
            ("read by", summary["use"]), ("note", summary["note"])]  # fmt: skip
    warnings = [f"{counted(len(names), 'column')} lost ({reason}): {first_of(names, _NAMES)}"
                for reason, names in lost.items()]  # fmt: skip
    return Page(
        f"rlpost export · {first_of(summary['inputs'])} → {outputs}",
        [f"{summary['target']}: {', '.join(counts)}"],
        [TextTable((), [(x, printable_line(text)) for x, text in rows if text], text=(0, 1))],
        [Notice("warning", text) for text in [*warnings, *summary["warnings"]]],
        Notice("ok", f"{outputs} written in {summary['seconds']:.2f} s"),
    )
