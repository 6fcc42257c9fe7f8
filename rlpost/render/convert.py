"""The list of dump formats, and the result of a conversion."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable, labelled, show_json, show_list, show_markdown
from rlpost.display.text import counted
from rlpost.formats import FORMATS
from rlpost.formats.dumps import GENERIC
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType
    from rich.table import Table

    from rlpost.formats.base import Format


Json = dict[str, Any]


def show_formats(how: str) -> None:
    """Print the formats on stdout: the roles that each has and lacks, and notes."""
    if how == "table":
        out = console(sys.stdout)
        for i, one in enumerate(FORMATS.values()):
            if i:
                out.print()
            out.print(Text.assemble((one.name, "bold"), "  ", one.title))
            out.print(labelled(_roles_of(one), "  "))
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
        for one in FORMATS.values()
    ]
    show_list(headings, rows, how)


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
    """Print a conversion: as a screen on stderr, or on stdout as `json` or `markdown`."""
    if how == "json":
        show_json(summary)
    elif how == "markdown":
        show_markdown(("what", "value"), [*_cells(summary)])
    elif not quiet:
        show_converted(summary)


def _cells(summary: Json) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the summary, those of tables as TABLE.NAME."""
    for name, value in summary.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", _cell(one)) for key, one in value.items())
        elif value not in ("", []):
            yield name, _cell(value)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def show_converted(summary: Json, out: Console | None = None) -> None:
    """Print the inputs, outputs and roles of a conversion on stderr or another console."""
    out = out or console(sys.stderr)
    parts: list[RenderableType] = [
        _paths(summary),
        _roles(summary),
        *([_missing(summary["missing_roles"])] if summary["missing_roles"] else []),
        *([Text(summary["note"], style="dim")] if summary["note"] else []),
        *(Text(f"! {printable_line(text)}", "yellow") for text in summary["warnings"]),
        *([Text(_skipped(summary["skipped_files"]), "yellow")] if summary["skipped_files"] else []),
    ]
    spaced = [line for part in parts for line in (part, Text(""))][:-1]
    title = f"rlpost convert · {summary['format']}"
    if out.is_terminal:
        out.print(Panel(Group(*spaced), title=Text(title), title_align="left", border_style="dim"))
    else:
        out.print(title, *spaced, sep="\n")


def _paths(summary: Json) -> Text:
    tokens = f", {counted(summary['tokens'], 'response token')}" if summary["tokens"] else ""
    lines = [
        _first_paths(summary["inputs"]),
        f"  → {_first_paths(summary['outputs'])}",
        f"{counted(summary['responses'], 'response')}{tokens}, {summary['seconds']:.2f} s",
    ]
    return Text("\n".join(lines))


def _skipped(paths: list[str]) -> str:
    return f"! skipped, unknown format: {_first_paths(paths)}"


def _first_paths(paths: list[str]) -> str:
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""  # noqa: PLR2004
    return printable_line(", ".join(paths[:2])) + more


def _roles(summary: Json) -> Table:
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
    return labelled({"roles": roles or "none", "other columns": ", ".join(others)})


def _missing(lacks: dict[str, str]) -> TextTable:
    return TextTable(("missing role", "reason"), [*lacks.items()], text=(0, 1))
