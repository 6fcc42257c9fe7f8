"""The list of dump formats, and the result of a conversion."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from rlpost.display.console import console
from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import TextTable, show_json, show_list
from rlpost.display.text import counted, first_two
from rlpost.formats import FORMATS, format_named
from rlpost.formats.dumps import GENERIC
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from rlpost.formats.base import Format


Json = dict[str, Any]


def show_formats(how: str, name: str | None = None) -> None:
    """Print the formats on stdout, a line each; all about one with a name.

    JSON and Markdown have all about each.

    Raises:
        UsageError: there is no format of this name.
    """
    formats = [*FORMATS.values()] if name is None else [format_named(name)]
    if how == "table":
        show_page(_format_page(formats[0]) if name else _format_list(formats), how)
        return
    headings = ("format", "reads", "roles", "missing roles", "note", "source")
    rows = [
        (
            one.name,
            one.title,
            ", ".join(one.roles),
            _reasons(one.missing_roles),
            one.notes(),
            one.source,
        )
        for one in formats
    ]
    show_list(headings, rows, how)


def _format_list(formats: Sequence[Format]) -> Page:
    rows = [(one.name, one.title) for one in formats]
    table = TextTable(("format", "reads"), rows, text=(0, 1))
    steps = ["next: rlpost convert --list --from NAME for the roles that a format has"]
    return Page("rlpost convert · formats", (), [table], next_steps=steps)


def _format_page(one: Format) -> Page:
    facts = [(label, text) for label, text in _roles_of(one).items() if text]
    table = TextTable((), [*facts, ("source", one.source)], text=(0, 1))
    return Page(f"rlpost convert · {one.name}: {one.title}", (), [table])


def _roles_of(one: Format) -> dict[str, str]:
    """Return the roles that every dump has, some dumps have, and no dump has."""
    if one.name in GENERIC:
        return {"if dumped": "every role", "note": one.notes()}
    always = [role for role in one.roles if role not in one.missing_roles]
    sometimes = [role for role in one.roles if role in one.missing_roles]
    never = [role for role in one.missing_roles if role not in one.roles]
    return {
        "always": ", ".join(always),
        "if dumped": ", ".join(sometimes),
        "never": ", ".join(never),
        "note": one.notes(),
    }


def _reasons(lacks: Any) -> str:
    return "; ".join(f"{role}: {why}" for role, why in lacks.items())


def show_conversion(summary: Json, how: str, *, quiet: bool) -> None:
    """Print a conversion: as a page on stderr, or on stdout as `json` or `markdown`."""
    if how == "json":
        show_json(summary)
    elif how == "markdown":
        show_page(page(summary), how)
    elif not quiet:
        show_converted(summary)


def show_converted(summary: Json, out: Console | None = None) -> None:
    """Print the page of a conversion on stderr or another console."""
    show_page(page(summary), "table", out or console(sys.stderr))


def page(summary: Json) -> Page:
    """Return the inputs, outputs, roles and missing roles of a conversion."""
    outputs, lacks = summary["outputs"], summary["missing_roles"]
    counts = [counted(summary["responses"], "response")]
    counts += [counted(summary["tokens"], "response token")] if summary["tokens"] else []
    skipped = summary["skipped_files"]
    warnings = [
        *summary["warnings"],
        *([f"skipped, unknown format: {first_two(skipped)}"] if skipped else []),
    ]
    parts = [TextTable((), _roles(summary), text=(0, 1))]
    if lacks:
        parts.append(TextTable(("missing role", "reason"), [*lacks.items()], text=(0, 1)))
    return Page(
        f"rlpost convert · {first_two(summary['inputs'])} → {first_two(outputs)}",
        [
            f"{summary['format']}: {', '.join(counts)}",
            *filter(None, [summary.get("where", {}).get("line"), summary["note"]]),
        ],
        parts,
        [Notice("warning", text) for text in warnings],
        Notice("ok", f"{first_two(outputs)} written in {summary['seconds']:.2f} s"),
        [f"next: rlpost inspect {shlex.join(outputs)}"] if len(outputs) == 1 else [],
    )


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
