"""What there is, for people and for programs: estimators, presets, and where presets differ."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from rlpost.controls import escaped, in_line, shown
from rlpost.render import console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.estimators import Estimator
    from rlpost.presets import Difference


def show_list(headings: Sequence[str], rows: Sequence[Sequence[str]], how: str) -> None:
    """Rows on stdout as a `table`, as `json` or as `markdown`."""
    if how == "json":
        show_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif how == "markdown":
        show_markdown(headings, rows)
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        for heading in headings:
            first = heading == headings[0]
            table.add_column(heading, header_style="bold", overflow="fold", no_wrap=first)
        for row in rows:
            table.add_row(*row)
        console(sys.stdout).print(table)


def show_json(value: Any) -> None:
    """A value as JSON, on stdout."""
    sys.stdout.write(escaped(json.dumps(value, indent=1, ensure_ascii=False)) + "\n")


def show_markdown(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, prose: str | None = None
) -> None:
    """Rows as a Markdown table, on stdout; see `markdown_table`."""
    sys.stdout.write(markdown_table(headings, rows, prose=prose))


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, prose: str | None = None
) -> str:
    """Rows as a Markdown table; what is in a cell ends neither it nor its row, and is no tag.

    Args:
        headings: of the columns.
        rows: cells, as many as headings.
        prose: the heading of a column of whole texts, whose line ends become blanks and which may
            join characters; elsewhere these are signs.
    """
    kinds = [prose is not None and heading == prose for heading in headings]
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(map(_cell, line, kinds))} |\n" for line in lines)


def _cell(text: str, prose: bool) -> str:  # noqa: FBT001
    line = shown(text).replace("\n", " ") if prose else in_line(text)
    return line.replace("|", "\\|").replace("<", "&lt;")


def show_estimators(estimators: Sequence[Estimator], how: str) -> None:
    """The estimators: what they read and compute, and where they are from."""
    headings = ("estimator", "level", "needs", "formula", "source")
    rows = [
        (one.name, one.level, ", ".join(one.roles), one.formula, one.source) for one in estimators
    ]
    show_list(headings, rows, how)


def show_differences(names: tuple[str, str], found: Sequence[Difference], how: str) -> None:
    """Where two recipes differ: a line of values, and below it what they are about."""
    headings = ("field", *names, "what it is")
    if how == "json":
        show_json([dict(zip(("field", *names, "why"), one, strict=True)) for one in found])
    elif how == "markdown":
        rows = [(one.field, _word(one.left), _word(one.right), one.why) for one in found]
        show_markdown(headings, rows)
    else:
        _print_differences(names, found)


def _print_differences(names: tuple[str, str], found: Sequence[Difference]) -> None:
    out = console(sys.stdout)
    if not found:
        out.print(f"{names[0]} and {names[1]} give the same numbers")
        return
    width = max(len(one.field) for one in found) + 2
    value = max(len(word) for one in found for word in (_word(one.left), names[0])) + 2
    out.print(Text(" " * width + names[0].ljust(value) + names[1], style="bold"))
    for one in found:
        line = Text(one.field.ljust(width), style="bold")
        line.append(_word(one.left).ljust(value), style="not bold cyan")
        line.append(_word(one.right), style="not bold magenta")
        out.print(line)
        for part in textwrap.wrap(one.why, out.width - 6):
            out.print(Text(f"    {part}", style="dim"))
    out.print(f"\n{len(found)} fields differ; what both share is not shown")


def _word(value: Any) -> str:
    """A value as it stands in a recipe."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "never" if value == float("inf") else f"{value:g}"
    return str(value)


def show_recipe(lines: Sequence[str], values: Mapping[str, Any], how: str) -> None:
    """A recipe as the TOML that `--config` takes, as JSON, or as a table of its fields."""
    if how == "json":
        show_json(values)
    elif how == "markdown":
        tables = {name: table for name, table in values.items() if isinstance(table, dict)}
        flat = [(name, _word(value)) for name, value in values.items() if name not in tables]
        flat += [
            (f"{title}.{key}", _word(x)) for title, t in tables.items() for key, x in t.items()
        ]
        show_markdown(("field", "value"), flat)
    else:
        console(sys.stdout).print("\n".join(lines), markup=False, soft_wrap=True)
