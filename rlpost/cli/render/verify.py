"""The verdicts of `rlpost verify`, for terminals, pipes and programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import show_json, show_markdown
from rlpost.display.text import counted
from rlpost.io.text import printable_line

if TYPE_CHECKING:
    from collections.abc import Iterator


Json = dict[str, Any]
HEADINGS = ("file", "responses", "part", "verdict")
EQUAL = "equal"
_WRONG = ("DIFFERS", "DAMAGED")


def show(result: Json, how: str) -> None:
    """Print the verdicts on stdout: as lines (`table`), as `json` or as `markdown`."""
    if how == "json":
        show_json(result)
    elif how == "markdown":
        show_markdown(HEADINGS, list(_rows(result)))
    else:
        out = console(sys.stdout)
        for file in result["files"]:
            out.print(_text(file), soft_wrap=True)


def _text(file: Json) -> Text:
    """Return a line for a file; if it differs, also a line for each of its parts."""
    text = Text(f"{printable_line(file['file'])}: ", style="bold")
    responses = counted(file["rows"], "response")
    text.append(f"{responses}, {printable_line(file['estimator'])}: ", style="not bold")
    if file["ok"]:
        text.append(_equal(file), style="not bold green")
        for note in file["notes"]:
            text.append(f"\n  note: {printable_line(note)}", style="not bold yellow")
        return text
    text.append("differs from its recomputation", style="bold red")
    parts = list(_parts(file))
    width = max(len(printable_line(name)) for name, _ in parts) + 2
    for name, verdict in parts:
        wrong = verdict.startswith(_WRONG)
        text.append(f"\n  {printable_line(name).ljust(width)}", style="not bold")
        text.append(printable_line(verdict), style="not bold red" if wrong else "not bold dim")
    return text


def _rows(result: Json) -> Iterator[tuple[str, str, str, str]]:
    for file in result["files"]:
        notes = [("note", note) for note in file["notes"]]
        parts = [(file["estimator"], _equal(file)), *notes] if file["ok"] else _parts(file)
        for name, verdict in parts:
            yield file["file"], f"{file['rows']:,}", name, verdict


def _equal(file: Json) -> str:
    """Return the verdict on all columns together."""
    largest = max((one["largest_difference"] or 0.0 for one in file["columns"]), default=0.0)
    columns = f"{counted(len(file['columns']), 'column')} {EQUAL}"
    precision = f"to within {largest:.1e}" if largest else "bit for bit"
    kept = file["kept_columns"]
    decoded = f"; {counted(kept, 'kept column')} decoded" if kept else ""
    return f"{columns} {precision}{decoded}"


def _parts(file: Json) -> Iterator[tuple[str, str]]:
    """Yield the verdict on each column, the differences of the summary, and the notes."""
    for column in file["columns"]:
        yield column["column"], _verdict(column)
    for text in file["summary"]:
        yield "summary", f"DIFFERS: {text}"
    for note in file["notes"]:
        yield "note", note


def _verdict(column: Json) -> str:
    if column["verdict"] == "missing":
        return "DIFFERS: the column is missing"
    if column["verdict"] == "damaged":
        return f"DAMAGED: it does not decode: {column['why']}"
    if column["verdict"] != "differs":
        return str(column["verdict"])
    text = f"DIFFERS in {counted(column['rows'], 'row')}, first in row {column['first_row']:,}"
    if column["largest_difference"]:
        text += f", by up to {column['largest_difference']:.3g}"
    if "types" in column:
        text += f": the type is {column['types'][0]}, and should be {column['types'][1]}"
    return text
