"""The result of a bundle: its rows and recipe, and the columns in it and left out."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from rlpost.display.console import console
from rlpost.display.page import Notice, Page, show_page
from rlpost.display.tables import TextTable, show_json
from rlpost.display.text import counted, first_two, size

if TYPE_CHECKING:
    from rich.console import Console


Json = dict[str, Any]
HEADINGS = ("column", "in the bundle", "bytes")


def show_bundle(summary: Json, how: str, *, quiet: bool) -> None:
    """Print a bundle: as a page on stderr, or on stdout as `json` or `markdown`."""
    if how == "json":
        show_json(summary)
    elif how == "markdown":
        show_page(page(summary), how)
    elif not quiet:
        show_bundled(summary)


def show_bundled(summary: Json, out: Console | None = None) -> None:
    """Print the page of a bundle on stderr or another console."""
    show_page(page(summary), "table", out or console(sys.stderr))


def page(summary: Json) -> Page:
    """Return what is in a bundle, and what was left out."""
    output = summary["outputs"][0]
    return Page(
        f"rlpost bundle · {first_two(summary['inputs'])} → {output}",
        (),
        [
            TextTable((), [*_facts(summary).items()], text=(0, 1)),
            TextTable(HEADINGS, _rows(summary), text=(0, 1)),
        ],
        [Notice("warning", text) for text in summary["warnings"]],
        Notice("ok", f"{output} written: {size(summary['bytes'])}"),
        [f"next: rlpost replay {shlex.quote(output)}"],
    )


def _rows(summary: Json) -> list[tuple[str, str, str]]:
    """Return a row for each column, those that are left out last."""
    kept = [(one["column"], one["what"] or "as it is", one) for one in summary["contents"]]
    return [
        (name, text if one["kept"] else f"– left out: {text}", f"{one['bytes']:,}")
        for name, text, one in sorted(kept, key=lambda entry: not entry[2]["kept"])
    ]


def _facts(summary: Json) -> dict[str, str]:
    rows = summary["rows"]
    counts = [counted(rows["responses"], "response")]
    counts += [counted(rows["groups"], "prompt group")] if rows["groups"] else []
    counts += [counted(rows["steps"], "step")]
    named = [f"preset {summary['preset']}"] if summary["preset"] else []
    named += (
        [f"estimator {summary['requested_estimator']}"] if summary["requested_estimator"] else []
    )
    origin = "of the metadata of the input" if summary["recipe_of_file"] else ""
    recipe = ", ".join([*named, *([origin] if origin else [])]) or "of the options"
    return {
        "content": ", ".join(counts),
        "rows": f"{rows['numbers']} of {rows['of']:,}: {rows['why']}",
        "recipe": recipe if summary["recipe"] else "none",
        "recorded": ", ".join(
            column if stage == column else f"{stage} = {column}"
            for stage, column in summary["recorded"].items()
        )
        or "none",
        "texts, ids": "kept" if summary["with_texts"] else "left out; --with-texts keeps them",
    }
