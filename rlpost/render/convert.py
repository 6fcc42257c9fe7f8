"""The list of dump formats, and the result of a conversion."""

from __future__ import annotations

import shlex
from typing import Any

from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, first_of
from rlpost.recipe.roles import ROLES

Json = dict[str, Any]


def page(summary: Json) -> Page:
    """Return the inputs, outputs, roles and missing roles of a conversion."""
    outputs, lacks = summary["outputs"], summary["missing_roles"]
    counts = [counted(summary["responses"], "response")]
    counts += [counted(summary["tokens"], "response token")] if summary["tokens"] else []
    skipped = summary["skipped_files"]
    warnings = [
        *summary["warnings"],
        *([f"skipped, unknown format: {first_of(skipped)}"] if skipped else []),
    ]
    parts = [TextTable((), _roles(summary), text=(0, 1))]
    if lacks:
        parts.append(TextTable(("missing role", "reason"), [*lacks.items()], text=(0, 1)))
    return Page(
        f"rlpost convert · {first_of(summary['inputs'])} → {first_of(outputs)}",
        [
            f"{summary['format']}: {', '.join(counts)}",
            *filter(None, [summary.get("where", {}).get("line"), *_note(summary)]),
        ],
        parts,
        [Notice("warning", text) for text in warnings],
        Notice("ok", f"{first_of(outputs)} written in {summary['seconds']:.2f} s"),
        [f"rlpost inspect {shlex.join(outputs)}"] if len(outputs) == 1 else [],
    )


def _note(summary: Json) -> list[str]:
    """Return what was proposed and the command that states it, or the note on the format."""
    if "proposed" not in summary:
        return [summary["note"]]
    proposed = summary["proposed"]
    return [f"proposed: {proposed['text']}", f"stated: {proposed['command']}"]


def _roles(summary: Json) -> list[tuple[str, str]]:
    """Return the roles of the output with the fields they were read from, and other columns."""
    columns = summary["columns"]
    by_role = {
        role: next(alias for alias in ROLES[role].aliases if alias in columns)
        for role in summary["roles"]
    }
    others = [name for name in columns if name not in by_role.values()]
    fields = {role: summary["sources"].get(name, name) for role, name in by_role.items()}
    roles = ", ".join(
        role if role == field else f"{role} = {field}" for role, field in fields.items()
    )
    rows = [("roles", roles or "none"), ("other columns", ", ".join(others))]
    return [row for row in rows if row[1]]
