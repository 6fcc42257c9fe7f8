"""Output of commands beside their tables: lines on stderr, and summaries as JSON."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rlpost.display import first
from rlpost.display.controls import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.display.reporter import Reporter


def echo(text: str) -> None:
    """Print a text on stderr, with visible signs in place of control characters."""
    first.clear()
    typer.echo(printable(text), err=True)


@contextmanager
def reporting(*, quiet: bool = False, bars: bool = True) -> Iterator[Reporter]:
    """Yield a reporter that prints notes on stderr, and draws progress bars there.

    Args:
        quiet: do neither, and log errors only.
        bars: draw progress bars.
    """
    from rlpost.display.progress import progress  # noqa: PLC0415 - rich takes a while to import

    if quiet:
        silence_warnings()
    with progress(quiet=quiet or not bars, print_note=None if quiet else echo) as reporter:
        yield reporter


def silence_warnings() -> None:
    """Log errors only."""
    logging.getLogger("rlpost").setLevel(logging.ERROR)


def check_summary(path: str | None) -> None:
    """Raise an error before the work if a summary can't be written to a path."""
    from rlpost.pipeline.output.files import check_writable  # noqa: PLC0415 - pyarrow

    check_writable(None if path == "-" else path)


def write_json(summary: dict[str, Any], path: str | None) -> None:
    """Write a summary to a file, with `-` to stdout, with None nowhere; raises as `write_text`."""
    if path is None:
        return
    from rlpost.display.tables import json_of  # noqa: PLC0415 - rich

    first.clear()
    text = json.dumps(json_of(summary), indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        write_text(text, Path(path))


def write_text(text: str, target: Path) -> None:
    """Write a file, all of it or nothing.

    Raises:
        ReadWriteError: the file can't be written.
    """
    from rlpost.io.outputs import file_errors, write_file  # noqa: PLC0415

    if target.exists() and not target.is_file():  # a pipe, or /dev/stderr
        with file_errors(target, "cannot be written"):
            target.write_text(text, encoding="utf-8")
    else:
        write_file(target, text.encode())
