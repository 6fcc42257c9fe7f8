"""The manual's pages with their generated parts made anew."""

from __future__ import annotations

import ast
import os
import re
import shlex
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from manual.program import ROOT, drawn
from manual.tables import TABLES

HOME = ROOT / "rlpost" / "manual"
PAGES = (ROOT / "README.md", *sorted(HOME.glob("*.md")))
_TABLE = re.compile(r"<!-- generated: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_OUTPUT = re.compile(
    r"<!-- output(?: \(first (\d+) lines\))?: rlpost (.+?) -->\n```text\n(.*?)```", re.DOTALL
)
_CELL = re.compile(
    r"^```python\n(.+?)^```$"
    r"(?:\n\n<!-- result(?: \(first (\d+) lines\))? -->\n```text\n(.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_TIME = re.compile(
    r"\d+\.\d+ s: start-up [\s\S]+?in\s+the\s+passes"
    r"|\d+(\.\d+)?(?= s\b)",
    re.MULTILINE,
)


def masked(text: str) -> str:
    """The text without the times that differ from run to run."""
    return _TIME.sub("…", text)


def refreshed(text: str) -> str:
    """A page with its tables and its examples of output as they are now."""
    text = _TABLE.sub(_with_table, text)
    text = _OUTPUT.sub(_with_output, text)
    return _CELL.sub(partial(_with_result, {}), text) if "<!-- result" in text else text


def result_of(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell of a notebook; its last expression if it is one, else None."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102
    return eval(ast.unparse(last), names) if last else None  # noqa: S307


def _with_result(names: dict[str, Any], found: re.Match[str]) -> str:
    cell, first, before = found.groups()
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        lines = repr(result_of(cell, names)).splitlines()
    now = "".join(f"{line}\n" for line in lines[: int(first) if first else None])
    if before is None or masked(now) == masked(before):
        return found[0]
    return found[0].replace(f"```text\n{before}```", f"```text\n{now}```")


def _with_table(found: re.Match[str]) -> str:
    name = found[1]
    return f"<!-- generated: {name} -->\n\n{TABLES[name]().strip()}\n\n<!-- end -->"


def _with_output(found: re.Match[str]) -> str:
    first, command, before = found.groups()
    lines = _printed(command).splitlines()
    if first:
        lines = lines[: int(first)]
    while lines and not lines[-1]:
        del lines[-1]
    now = "".join(f"{line}\n" for line in lines)
    return (
        found[0]
        if masked(now) == masked(before)
        else found[0].replace(f"```text\n{before}```", f"```text\n{now}```")
    )


@cache
def _printed(command: str) -> str:
    """What a command prints, first on stderr and then on stdout."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "sample_data").symlink_to(ROOT / "sample_data")
        done = drawn(shlex.split(command), Path(folder))
    assert done.code == 0, done.err
    return "\n".join(line.rstrip() for line in (done.err + done.out).splitlines())
