"""The verdicts of `rlpost verify`, for terminals, pipes and programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import show_json, show_markdown
from rlpost.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


Json = dict[str, Any]
HEADINGS = ("file", "responses", "part", "verdict")
EQUAL = "equal"
OTHER_SEMANTICS = "other semantics"
_WRONG = ("DIFFERS", "DAMAGED", "CHANGED")


def show(result: Json, how: str, out: Console | None = None) -> None:
    """Print the verdicts on stdout: as lines (`table`), as `json` or as `markdown`."""
    if how == "json":
        show_json(result)
    elif how == "markdown":
        show_markdown(HEADINGS, list(_rows(result)))
    else:
        out = out or console(sys.stdout)
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
    verdicts = {one["verdict"] for one in file["columns"]} - {"identical", "equal to rounding"}
    changed = verdicts == {"changed"} and not file["summary"]
    what = "changed since it was written" if changed else "differs from its recomputation"
    text.append(what, style="bold red")
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
    other = [one["column"] for one in file["columns"] if one["verdict"] == OTHER_SEMANTICS]
    equal = [one for one in file["columns"] if one["verdict"] != OTHER_SEMANTICS]
    largest = max((one["largest_difference"] or 0.0 for one in equal), default=0.0)
    precision = f"to within {largest:.1e}" if largest else "bit for bit"
    kept, checked = file["kept_columns"], file["checksums"] is not None
    texts = [
        (equal, f"{counted(len(equal), 'column')} {EQUAL} {precision}"),
        (other, f"other values under semantics {file['semantics']}: {', '.join(other)}"),
        (not file["columns"], "not recomputed"),
        (kept, f"{counted(kept or 0, 'kept column')} {'as written' if checked else 'decoded'}"),
    ]
    return "; ".join(text for applies, text in texts if applies)


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
        return f"DAMAGED: it does not decode: {column['reason']}"
    if column["verdict"] == "changed":
        return _changed(column["chunks"])
    if column["verdict"] not in ("differs", OTHER_SEMANTICS):
        return str(column["verdict"])
    word = "DIFFERS" if column["verdict"] == "differs" else OTHER_SEMANTICS
    text = f"{word} in {counted(column['rows'], 'row')}, first in row {column['first_row']:,}"
    if column["largest_difference"]:
        text += f", by up to {column['largest_difference']:.3g}"
    if "types" in column:
        text += f": the type is {column['types'][0]}, and should be {column['types'][1]}"
    return text


def _changed(chunks: list[Json]) -> str:
    """Return where the bytes of a column differ from what was written."""
    first = chunks[0]
    more = f", and {counted(len(chunks) - 1, 'more row group')}" if chunks[1:] else ""
    return (
        f"CHANGED since it was written: row group {first['row_group']}, bytes "
        f"{first['begin']:,} to {first['end'] - 1:,}{more}"
    )
