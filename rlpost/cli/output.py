"""Output of commands beside their tables: lines on stderr, and summaries as JSON."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import typer

from rlpost.display.controls import printable


def echo(text: str) -> None:
    """Print a text on stderr, with visible signs in place of control characters."""
    typer.echo(printable(text), err=True)


def silence_warnings() -> None:
    """Log errors only."""
    logging.getLogger("rlpost").setLevel(logging.ERROR)


def write_json(summary: dict[str, Any], path: str) -> None:
    """Write a summary to a file, or with `-` to stdout; raises as `write_text`."""
    text = json.dumps(summary, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        write_text(text, Path(path))


def write_text(text: str, target: Path) -> None:
    """Write a file, all of it or nothing.

    Raises:
        ReadWriteError: the file can't be written.
    """
    from rlpost.io.publish import write_file  # noqa: PLC0415
    from rlpost.io.staged import file_errors  # noqa: PLC0415

    if target.exists() and not target.is_file():  # a pipe, or /dev/stderr
        with file_errors(target, "cannot be written"):
            target.write_text(text, encoding="utf-8")
    else:
        write_file(target, text.encode())
