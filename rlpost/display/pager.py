"""A pager for texts that are longer than the terminal."""

from __future__ import annotations

import os
import shutil
import sys

_LESS = "FRX"  # as git sets it: colours pass through, and a short text ends less at once


def show_text(text: str) -> None:
    """Print a text on stdout, through $PAGER, else `less`, if it is longer than the terminal.

    Pipes, and terminals without cursor movement (TERM=dumb), get it unchanged.
    """
    moves = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    if not moves or text.count("\n") < shutil.get_terminal_size().lines:
        sys.stdout.write(text)
        return
    import pydoc  # noqa: PLC0415 - 20 ms, which only long texts need

    os.environ.setdefault("LESS", _LESS)
    pydoc.pager(text)
