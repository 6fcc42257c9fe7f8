"""A resolved recipe, for people and for programs."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import show_json, show_markdown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Setting(Protocol):
        """A field of the recipe, its value as plain data, and where it came from."""

        @property
        def field(self) -> str:
            """Its name; those of tables are written TABLE.NAME."""

        @property
        def value(self) -> Any:
            """None where nothing is set."""

        @property
        def source(self) -> str:
            """`default`, `default of` an estimator, or what set it."""

        @property
        def is_set(self) -> bool:
            """Whether it is at no default."""


HEADINGS = ("field", "value", "from")


def show(found: Sequence[Setting], how: str) -> None:
    """Settings on stdout as `table`, `json`, `markdown`, or TOML that --config takes."""
    if how == "json":
        rows = [(one.field, _plain(one.value), one.source) for one in found]
        show_json([dict(zip(HEADINGS, row, strict=True)) for row in rows])
    elif how == "markdown":
        show_markdown(HEADINGS, [(x.field, _word(x.value), x.source) for x in found])
    elif how == "toml":
        sys.stdout.write("\n".join(toml_lines(found)) + "\n")
    else:
        _print(found)


def toml_lines(found: Sequence[Setting]) -> list[str]:
    """The lines of a TOML file that gives the same recipe; what is not set is a comment."""
    lines, title = [], ""
    for one in found:
        table, dot, key = one.field.rpartition(".")
        if table != title:
            lines += ["", f"[{table}]"]
            title = table
        name = key if dot == "" or key.isidentifier() else json.dumps(key)
        if one.value is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(f"{name} = {_toml(one.value)}  # {one.source}")
    return lines


def _toml(value: Any) -> str:
    """A value as TOML has it: as JSON does, save for infinity."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """The value with infinity as a word, for JSON has no such number."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return _toml(value) if isinstance(value, float) and math.isinf(value) else value


def _print(found: Sequence[Setting]) -> None:
    out = console(sys.stdout)
    if not found:
        out.print("every field is at its default")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, header_style="bold", overflow="fold")
    for one in found:
        own = one.is_set
        style = "bold" if own else "dim"
        table.add_row(
            Text(one.field, style),
            Text(_word(one.value), "cyan" if own else "dim"),
            Text(one.source, "" if own else "dim"),
        )
    out.print(table)
    number = sum(one.is_set for one in found)
    told = "1 field is set" if number == 1 else f"{number} fields are set"
    out.print(Text(f"\n{told}; the others are defaults", "dim"))


def _word(value: Any) -> str:
    """A value as a recipe file has it."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else _toml(value)
