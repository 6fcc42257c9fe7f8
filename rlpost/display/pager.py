"""A pager for texts that are longer than the terminal."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

_LESS = "FRX"  # as git sets it: colours pass through, and a short text ends less at once


@contextmanager
def paged(out: Console, *, only_if: bool = True) -> Iterator[None]:
    """Show what the block prints through $PAGER, else `less`, if it is longer than the terminal.

    Pipes, and terminals without cursor movement (TERM=dumb), get it unchanged.

    Args:
        out: the console of stdout that the block prints on.
        only_if: false: never through a pager.
    """
    if not (only_if and out.is_terminal and sys.stdin.isatty()) or out.is_dumb_terminal:
        yield
        return
    with out.capture() as captured:
        yield
    text = captured.get()
    if text.count("\n") < out.height:
        out.file.write(text)
        return
    import pydoc  # noqa: PLC0415 - 20 ms, which only long texts need

    os.environ.setdefault("LESS", _LESS)
    pydoc.pager(text)
