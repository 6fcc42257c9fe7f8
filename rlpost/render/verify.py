"""The page of `rlpost verify`."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted

Json = dict[str, Any]
OTHER_SEMANTICS = "other semantics"
_NOT_READ = (
    "Columns that the recipe neither reads nor writes are copies of the input's bytes, and are not "
    "decoded."
)


def page(result: Json) -> Page:
    """Return the verdict on each file; of files that differ, that on each of their parts."""
    files = result["files"]
    wrong = [file for file in files if not file["ok"]]
    single = len(files) == 1
    titles = {id(file): "" if single else str(file["file"]) for file in files}
    verdicts = {
        id(file): _equal(file) if file["ok"] else "differs from its recomputation" for file in files
    }
    parts = []
    if not single:
        rows = [
            (file["file"], f"{file['rows']:,}", file["estimator"], verdicts[id(file)])
            for file in files
        ]
        parts.append(TextTable(("file", "responses", "recipe", "verdict"), rows, text=(0, 2, 3)))
    for file in wrong:
        cells = [(column["column"], _verdict(column)) for column in file["columns"]]
        cells += [("summary", f"DIFFERS: {text}") for text in file["summary"]]
        cells += [("note", note) for note in file["notes"]]
        styled = [
            (name, Text(text, "red" if text.startswith("DIFFERS") else "")) for name, text in cells
        ]
        parts.append(TextTable(("part", "verdict"), styled, title=titles[id(file)], text=(0, 1)))
    notices = [
        Notice("warning", note, titles[id(file)])
        for file in files
        if file["ok"]
        for note in file["notes"]
    ]
    count = counted(len(files), "file")
    if single:
        (file,) = files
        what = f"{counted(file['rows'], 'response')}, {file['estimator']}: {verdicts[id(file)]}"
    elif wrong:
        what = f"{len(wrong)} of {count} {'differs' if len(wrong) == 1 else 'differ'}"
    else:
        what = f"{count} as they were written"
    title = f"rlpost verify · {files[0]['file'] if single else count}"
    lines = [_NOT_READ]
    return Page(title, lines, parts, notices, Notice("error" if wrong else "ok", what))


def _equal(file: Json) -> str:
    """Return the verdict on all columns of a file together."""
    other = [column["column"] for column in file["columns"] if column["verdict"] == OTHER_SEMANTICS]
    equal = [column for column in file["columns"] if column["verdict"] != OTHER_SEMANTICS]
    largest = max((column["largest_difference"] or 0.0 for column in equal), default=0.0)
    precision = f"to within {largest:.1e}" if largest else "bit for bit"
    texts = [
        (equal, f"{counted(len(equal), 'column')} equal {precision}"),
        (other, f"other values under semantics {file['semantics']}: {', '.join(other)}"),
        (not file["columns"], "not recomputed"),
    ]
    return "; ".join(text for applies, text in texts if applies)


def _verdict(column: Json) -> str:
    if column["verdict"] == "missing":
        return "DIFFERS: the column is missing"
    if column["verdict"] not in ("differs", OTHER_SEMANTICS):
        return str(column["verdict"])
    word = "DIFFERS" if column["verdict"] == "differs" else OTHER_SEMANTICS
    text = f"{word} in {counted(column['rows'], 'row')}, first in row {column['first_row']:,}"
    if column["largest_difference"]:
        text += f", by up to {column['largest_difference']:.3g}"
    if "types" in column:
        text += f": the type is {column['types'][0]}, and should be {column['types'][1]}"
    return text
