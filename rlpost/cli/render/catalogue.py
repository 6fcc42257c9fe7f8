"""What there is, for people and for programs: estimators, presets, and where presets differ."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import show_json, show_list, show_markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.estimators import Estimator
    from rlpost.recipe.presets import Difference


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
