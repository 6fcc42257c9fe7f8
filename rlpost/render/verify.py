"""The page of `rlpost verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import TextTable, show_json
from rlpost.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


Json = dict[str, Any]
EQUAL = "equal"
OTHER_SEMANTICS = "other semantics"
_WRONG = ("DIFFERS", "DAMAGED")


def show(result: Json, how: str, out: Console | None = None) -> None:
    """Print the verdicts on stdout: as a page (`table` or `markdown`), or as `json`."""
    if how == "json":
        show_json(result)
    else:
        show_page(page(result), how, out)


def page(result: Json) -> Page:
    """Return the verdict on each file; of files that differ, that on each of their parts."""
    files = result["files"]
    wrong = [file for file in files if not file["ok"]]
    single = len(files) == 1
    what = str(files[0]["file"]) if single else counted(len(files), "file")
    parts = []
    if not single:
        rows = [
            (file["file"], f"{file['rows']:,}", file["estimator"], _verdict_of(file))
            for file in files
        ]
        headings = ("file", "responses", "recipe", "verdict")
        parts.append(TextTable(headings, rows, text=(0, 2, 3)))
    for file in wrong:
        title = "" if single else str(file["file"])
        verdicts = [
            (name, Text(verdict, "red" if verdict.startswith(_WRONG) else ""))
            for name, verdict in _parts(file)
        ]
        parts.append(TextTable(("part", "verdict"), verdicts, title=title, text=(0, 1)))
    notices = [
        Notice("warning", note, "" if single else str(file["file"]))
        for file in files
        if file["ok"]
        for note in file["notes"]
    ]
    return Page(f"rlpost verify · {what}", (), parts, notices, _verdict_of_all(files, wrong))


def _verdict_of_all(files: list[Json], wrong: list[Json]) -> Notice:
    if len(files) == 1:
        (file,) = files
        responses = f"{counted(file['rows'], 'response')}, {file['estimator']}"
        return Notice("ok" if file["ok"] else "error", f"{responses}: {_verdict_of(file)}")
    if not wrong:
        return Notice("ok", f"{counted(len(files), 'file')} as they were written")
    verb = "differs" if len(wrong) == 1 else "differ"
    return Notice("error", f"{len(wrong)} of {counted(len(files), 'file')} {verb}")


def _verdict_of(file: Json) -> str:
    """Return the verdict on a file."""
    if file["ok"]:
        return _equal(file)
    return "differs from its recomputation"


def _equal(file: Json) -> str:
    """Return the verdict on all columns together."""
    other = [one["column"] for one in file["columns"] if one["verdict"] == OTHER_SEMANTICS]
    equal = [one for one in file["columns"] if one["verdict"] != OTHER_SEMANTICS]
    largest = max((one["largest_difference"] or 0.0 for one in equal), default=0.0)
    precision = f"to within {largest:.1e}" if largest else "bit for bit"
    kept = file["kept_columns"]
    texts = [
        (equal, f"{counted(len(equal), 'column')} {EQUAL} {precision}"),
        (other, f"other values under semantics {file['semantics']}: {', '.join(other)}"),
        (not file["columns"], "not recomputed"),
        (kept, f"{counted(kept or 0, 'kept column')} decoded"),
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
    if column["verdict"] not in ("differs", OTHER_SEMANTICS):
        return str(column["verdict"])
    word = "DIFFERS" if column["verdict"] == "differs" else OTHER_SEMANTICS
    text = f"{word} in {counted(column['rows'], 'row')}, first in row {column['first_row']:,}"
    if column["largest_difference"]:
        text += f", by up to {column['largest_difference']:.3g}"
    if "types" in column:
        text += f": the type is {column['types'][0]}, and should be {column['types'][1]}"
    return text
