"""What people see of conversions: the formats there are, and what a conversion gave."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import show_json, show_list, show_markdown
from rlpost.formats import FORMATS
from rlpost.io.progress import SilentReporter
from rlpost.io.text import printable_line
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from rlpost.formats.base import Format
    from rlpost.io.progress import Reporter


Json = dict[str, Any]


def show_formats(how: str) -> None:
    """The formats on stdout: what each gives, what it lacks and what to know of it."""
    if how == "table":
        out = console(sys.stdout)
        for place, one in enumerate(FORMATS.values()):
            if place:
                out.print()
            out.print(Text.assemble((one.name, "bold"), "  ", one.title))
            out.print(_facts(_told(one), "  "))
        return
    headings = ("format", "reads", "gives", "lacks", "note", "source")
    rows = [
        (one.name, one.title, ", ".join(one.gives), _reasons(one.lacks), one.notes(), one.source)
        for one in FORMATS.values()
    ]
    show_list(headings, rows, how)


def _told(one: Format) -> dict[str, str]:
    """Roles by how sure they are: a role that is given and lacking depends on the run."""
    sure = [role for role in one.gives if role not in one.lacks]
    some = [role for role in one.gives if role in one.lacks]
    never = [role for role in one.lacks if role not in one.gives]
    return {
        "gives": ", ".join(sure),
        "if dumped": ", ".join(some),
        "never": ", ".join(never),
        "note": one.notes(),
    }


def _reasons(lacks: Any) -> str:
    return "; ".join(f"{role}: {why}" for role, why in lacks.items())


class _Count(SilentReporter):
    """How many responses are converted; nobody knows beforehand how many there are."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task = bars.add_task("convert", total=None)

    def advance(self, rows: int) -> None:
        self._bars.advance(self._task, rows)


@contextmanager
def counting(*, quiet: bool) -> Iterator[Reporter]:
    """A reporter that counts on stderr, where that is a terminal; silent elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield SilentReporter()
        return
    columns = (BarColumn(bar_width=20), TextColumn("{task.completed:,} responses"))
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        yield _Count(bars)


def _facts(facts: dict[str, str], indent: str = "") -> Table:
    """Labels and texts that wrap beside them; empty ones are left out."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in facts.items():
        if text:
            table.add_row(f"{indent}{label}", printable_line(text))
    return table


def show_conversion(summary: Json, how: str, *, quiet: bool) -> None:
    """A conversion: as a screen on stderr, or on stdout as `json` or `markdown`."""
    if how == "json":
        show_json(summary)
    elif how == "markdown":
        show_markdown(("what", "value"), [*_cells(summary)])
    elif not quiet:
        show_converted(summary)


def _cells(summary: Json) -> Iterator[tuple[str, str]]:
    """The summary as pairs of words."""
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
    """What a conversion read, wrote, gives and lacks, on stderr or another console."""
    out = out or console(sys.stderr)
    parts: list[RenderableType] = [
        _paths(summary),
        _roles(summary),
        *([_lacks(summary["lacks"])] if summary["lacks"] else []),
        *([Text(summary["note"], style="dim")] if summary["note"] else []),
        *(Text(f"! {printable_line(text)}", "yellow") for text in summary["warnings"]),
        *([Text(_passed(summary["passed_over"]), "yellow")] if summary["passed_over"] else []),
    ]
    spaced = [piece for part in parts for piece in (part, Text(""))][:-1]
    title = f"rlpost convert · {summary['format']}"
    if out.is_terminal:
        out.print(Panel(Group(*spaced), title=Text(title), title_align="left", border_style="dim"))
    else:
        out.print(title, *spaced, sep="\n")


def _paths(summary: Json) -> Text:
    noun = "token" if summary["tokens"] == 1 else "tokens"
    tokens = f", {summary['tokens']:,} response {noun}" if summary["tokens"] else ""
    noun = "response" if summary["responses"] == 1 else "responses"
    lines = [
        _few(summary["inputs"]),
        f"  → {_few(summary['outputs'])}",
        f"{summary['responses']:,} {noun}{tokens}, {summary['seconds']:.2f} s",
    ]
    return Text("\n".join(lines))


def _passed(paths: list[str]) -> str:
    return f"! passed over, of no known format: {_few(paths)}"


def _few(paths: list[str]) -> str:
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""  # noqa: PLR2004
    return printable_line(", ".join(paths[:2])) + more


def _roles(summary: Json) -> Table:
    """The roles that the file serves and what they were read from, and the columns beside them."""
    columns = summary["columns"]
    used = {
        role: next(alias for alias in ROLES[role].aliases if alias in columns)
        for role in summary["roles"]
    }
    others = [name for name in columns if name not in used.values()]
    read_from = {role: summary["sources"].get(name, name) for role, name in used.items()}
    served = ", ".join(
        role if role == field else f"{role} = {field}" for role, field in read_from.items()
    )
    return _facts({"gives": served or "no role", "also has": ", ".join(others)})


def _lacks(lacks: dict[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("lacks", header_style="bold", no_wrap=True)
    table.add_column("why", header_style="bold", overflow="fold")
    for role, why in lacks.items():
        table.add_row(role, printable_line(why))
    return table
