"""Tables and numbers as text: for a terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from rlpost.display.console import console
from rlpost.io.text import escaped, in_line, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


MOST_ROWS = 12  # of a table by step or domain


def number(value: float | None) -> str:
    """Four significant digits, without an exponent where that reads better."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:.4g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.3e}"  # noqa: PLR2004


def percent(share: float) -> str:
    """A share as a percentage with two decimals; what is less than all is never 100.00 %."""
    text = f"{100 * share:.2f}"
    return f"{'99.99' if text == '100.00' and share < 1 else text} %"


def metric_table(*headings: str) -> Table:
    """A table of metrics: the first column names them, the others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", header_style="bold")
    return table


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
