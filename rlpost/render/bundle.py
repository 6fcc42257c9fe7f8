"""The result of a bundle: its rows and recipe, and the columns in it and left out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rlpost.display.console import console
from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable, labelled, markdown_table, show_json
from rlpost.display.text import counted, size

if TYPE_CHECKING:
    from rich.console import Console


Json = dict[str, Any]
HEADINGS = ("column", "in the bundle", "bytes")


def show_bundle(summary: Json, how: str, *, quiet: bool) -> None:
    """Print a bundle: on stderr, or on stdout as `json` or `markdown`."""
    if how == "json":
        show_json(summary)
    elif how == "markdown":
        facts = [(name, printable_line(text)) for name, text in _facts(summary).items() if text]
        sys.stdout.write(markdown_table(("what", "value"), facts) + "\n")
        sys.stdout.write(markdown_table(HEADINGS, _rows(summary), text=(0, 1)))
    elif not quiet:
        show_bundled(summary)


def show_bundled(summary: Json, out: Console | None = None) -> None:
    """Print what is in a bundle, and what was left out, on stderr or another console."""
    out = out or console(sys.stderr)
    out.print(Text("rlpost bundle", "bold"))
    more = f" and {len(summary['inputs']) - 1} more" if len(summary["inputs"]) > 1 else ""
    out.print(Text(printable_line(f"{summary['inputs'][0]}{more}")))
    out.print(Text(printable_line(f"  → {summary['outputs'][0]}, {size(summary['bytes'])}")))
    out.print()
    out.print(labelled(_facts(summary)))
    out.print()
    out.print(TextTable(HEADINGS, _rows(summary), text=(0, 1)))
    for text in summary["warnings"]:
        out.print(Text(f"! {printable_line(text)}", "yellow"))


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
