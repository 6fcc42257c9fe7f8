"""Which files an update writes, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.display.page import Notice, Page
from rlpost.display.tables import TextTable
from rlpost.display.text import counted
from rlpost.pipeline.update.entry import REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator


Json = dict[str, Any]
_FEW = 5  # files that are named
_OTHERS = {
    "incomplete": ("file", "not complete yet"),
    "waiting": ("file", "after an incomplete one: the next update writes it"),
    "skipped": ("file", "of no format that rlpost reads"),
    "empty": ("file", "without rows yet"),
    "blocked": ("output", "kept: damaged, or not written by rlpost advantages"),
    "missing_inputs": ("input", "gone; the output is kept (--delete deletes it)"),
    "deleted": ("output", "deleted, since the input is gone"),
    "computed_with_deleted": ("output", "computed with a deleted one: delete it to write it anew"),
}
"""Other files of an update: what they are, and why they are not written."""


def update_page(facts: Json) -> Page:
    """Return the page of an update that writes nothing, or of its plan."""
    files, chosen = counted(facts["files"], "file"), facts["chosen"]
    text = f"{chosen:,} of {files} to write" if chosen else f"nothing to write: {files} up to date"
    notices = [*update_notices(facts)]
    if not chosen and notices:
        text = f"nothing to write, of {files}"
    title = f"rlpost advantages --update · {files}"
    return Page(title, parts=update_parts(facts), notices=notices, verdict=Notice("ok", text))


def update_line(facts: Json) -> str:
    """Return how many files an update wrote, and why."""
    why = [f"{number:,} {REASONS[name]}" for name, number in facts["reasons"].items() if number]
    return f"{facts['written']:,} of {counted(facts['files'], 'file')} to write: {', '.join(why)}"


def update_parts(facts: Json) -> list[TextTable]:
    """Return the table of the files to write, or of how many there are."""
    names = facts["names"]
    if 0 < facts["chosen"] <= _FEW:
        rows = [(name, REASONS[why]) for name, why in names.items()]
    else:
        rows = [(f"{n:,}", REASONS[why]) for why, n in facts["reasons"].items() if n]
    return [TextTable(("file" if names else "files", "why"), rows, text=(0, 1))] if rows else []


def update_notices(facts: Json) -> Iterator[Notice]:
    """Yield what an update did not write."""
    for name, (noun, why) in _OTHERS.items():
        if paths := facts[name]:
            more = f" and {len(paths) - 2:,} more" if len(paths) > 2 else ""  # noqa: PLR2004
            text = f"{counted(len(paths), noun)} {why}"
            yield Notice("warning", text, places=", ".join(paths[:2]) + more)
    if unproven := facts["unproven"]:
        text = f"{counted(len(unproven), 'output')} kept, though no input was found"
        yield Notice("warning", text, "", next(iter(unproven.values())), next(iter(unproven)))
