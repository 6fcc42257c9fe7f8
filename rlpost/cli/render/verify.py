"""What `rlpost verify` found, for people and for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.tables import show_json, show_markdown
from rlpost.io.text import printable_line

if TYPE_CHECKING:
    from collections.abc import Iterator


Json = dict[str, Any]
HEADINGS = ("file", "responses", "part", "verdict")
GOOD = "is what it claims"
_WRONG = ("DIFFERS", "DAMAGED")


def show(found: Json, how: str) -> None:
    """The verdicts on stdout: as lines (`table`), as `json` or as `markdown`."""
    if how == "json":
        show_json(found)
    elif how == "markdown":
        show_markdown(HEADINGS, list(_rows(found)))
    else:
        out = console(sys.stdout)
        for file in found["files"]:
            out.print(_told(file), soft_wrap=True)


def _told(file: Json) -> Text:
    """A line for a file; for one that differs, a line for each of its parts, too."""
    text = Text(f"{printable_line(file['file'])}: ", style="bold")
    about = f"{file['rows']:,} responses, {printable_line(file['estimator'])}: "
    text.append(about, style="not bold")
    if file["ok"]:
        text.append(_good(file), style="not bold green")
        for note in file["notes"]:
            text.append(f"\n  note: {printable_line(note)}", style="not bold yellow")
        return text
    text.append("is not what it claims", style="bold red")
    parts = list(_parts(file))
    width = max(len(printable_line(name)) for name, _ in parts) + 2
    for name, verdict in parts:
        wrong = verdict.startswith(_WRONG)
        text.append(f"\n  {printable_line(name).ljust(width)}", style="not bold")
        text.append(printable_line(verdict), style="not bold red" if wrong else "not bold dim")
    return text


def _rows(found: Json) -> Iterator[tuple[str, str, str, str]]:
    for file in found["files"]:
        rows = f"{file['rows']:,}"
        noted = [("note", note) for note in file["notes"]]
        good = [(file["estimator"], _good(file)), *noted]
        parts = good if file["ok"] else _parts(file)
        for name, verdict in parts:
            yield file["file"], rows, name, verdict


def _good(file: Json) -> str:
    """What can be said of all columns together."""
    count = len(file["columns"])
    largest = max((one["largest_difference"] or 0.0 for one in file["columns"]), default=0.0)
    columns = f"{count} column{'s' if count != 1 else ''}"
    kept = f"; {file['kept_columns']} kept, which decode" if file["kept_columns"] else ""
    if largest:
        return f"{GOOD}: {columns}, equal to within {largest:.1e}{kept}"
    return f"{GOOD}: {columns}, bit for bit{kept}"


def _parts(file: Json) -> Iterator[tuple[str, str]]:
    """What there is to say of each column, of the summary where it differs, and of the file."""
    for column in file["columns"]:
        yield column["column"], _verdict(column)
    for text in file["summary"]:
        yield "summary", f"DIFFERS: {text}"
    for note in file["notes"]:
        yield "note", note


def _verdict(column: Json) -> str:
    if column["verdict"] == "missing":
        return "DIFFERS: it is missing"
    if column["verdict"] == "damaged":
        return f"DAMAGED: it does not decode: {column['why']}"
    if column["verdict"] != "differs":
        return str(column["verdict"])
    rows = f"{column['rows']:,} row{'s' if column['rows'] != 1 else ''}"
    text = f"DIFFERS in {rows}, first in row {column['first_row']:,}"
    if column["largest_difference"]:
        text += f", by up to {column['largest_difference']:.3g}"
    if "types" in column:
        text += f": it is {column['types'][0]}, and should be {column['types'][1]}"
    return text
