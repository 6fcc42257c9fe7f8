"""The command line in this process: its commands and their options, and what a command prints."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import typer

from rlpost.cli.app import COMMANDS, app, main
from rlpost.display.reporter import SilentReporter

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
WIDTH = "100"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(words: Sequence[str], folder: Path) -> Ran:
    """`rlpost WORDS` as a terminal of 100 columns shows it, without colours and progress."""
    silent = mock.patch(
        "rlpost.display.progress._bars", lambda note: nullcontext(SilentReporter(note))
    )
    with silent:
        ran = run(words, folder, Terminal)
    return Ran(ran.code, *(re.sub(r"\x1b\[[0-9;]*m", "", text) for text in ran[1:]))


def run(words: Sequence[str], folder: Path = ROOT, stream: type = io.StringIO) -> Ran:
    """`rlpost WORDS` in this process, in a folder, without colours."""
    out, err = stream(), stream()
    argv = ["rlpost", *words]
    quiet = {name: x for name, x in os.environ.items() if not name.startswith("RLPOST_")}
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.dict(os.environ, {**quiet, "COLUMNS": WIDTH, "NO_COLOR": "1"}, clear=True),
        chdir(folder),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            return Ran(int(end.code or 0), out.getvalue(), err.getvalue())
    return Ran(0, out.getvalue(), err.getvalue())


@cache
def commands() -> dict[str, typer.core.TyperCommand]:
    """Return every command by what is typed, those of groups (`config show`) too."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="rlpost")
    found = {}
    for name in COMMANDS:
        found[name] = group.get_command(context, name)
        for inner, one in getattr(found[name], "commands", {}).items():
            found[f"{name} {inner}"] = one
    return found
