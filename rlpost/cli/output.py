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
from rlpost.errors import ReadWriteError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from rlpost.display.reporter import Reporter
    from rlpost.interface.results import View


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


def inputs_and_output(paths: Sequence[str] | None, usage: str) -> tuple[list[str], str]:
    """Return the paths of IN... OUT; raises UsageError with the usage as tip if one is missing."""
    *inputs, output = paths or [""]
    if not inputs:
        raise UsageError(f"{'OUT is' if output else 'IN and OUT are'} missing", tip=usage)
    return inputs, output


def show(result: View, how: str, out: Console | None = None, **options: Any) -> None:
    """Print a result on stdout, or on a console if it is a table; options are those of its page."""
    from rlpost.display.page import show_page  # noqa: PLC0415 - rich
    from rlpost.display.tables import show_json  # noqa: PLC0415

    if how == "json":
        show_json(result.to_dict())
    else:
        show_page(result.page(**options), how, out)


def show_written(result: View, how: str, summary_json: str | None, *, quiet: bool) -> None:
    """Print what a command wrote: a table on stderr, else on stdout; also the summary as JSON."""
    from rlpost.display.console import console  # noqa: PLC0415 - rich

    write_json(result.to_dict(), summary_json)
    if how == "table" and not quiet:
        show(result, how, console(sys.stderr))
    elif how != "table" and summary_json != "-":
        show(result, how)


@contextmanager
def summary_beside(typed: Mapping[str, Any]) -> Iterator[None]:
    """Reserve the path of --summary-json in the block.

    Args:
        typed: the options of a command, by name.

    Raises:
        ReadWriteError: the path can't be written; in the block, it has a file that is no summary.
        UsageError: an option reads it; in the block, it is an input or OUT.
    """
    path = typed.get("summary_json")
    if path in (None, "-"):
        yield
        return
    from rlpost.io.paths import check_beside, written_beside  # noqa: PLC0415 - object stores
    from rlpost.pipeline.output.files import check_writable  # noqa: PLC0415 - pyarrow

    target = Path(path)
    check_writable(target)
    refused = None if typed.get("overwrite") else _refused(target)
    with written_beside("--summary-json", target, refused):
        for name in ("config", "log"):
            check_beside(Path(typed[name]) if typed.get(name) else None, "an input")
        yield


def _refused(target: Path) -> ReadWriteError | None:
    """Return the error for a file that is neither empty nor a summary."""
    from rlpost.io.outputs import file_errors  # noqa: PLC0415

    if not target.is_file():
        return None
    with file_errors(target, "cannot be read"), target.open("rb") as file:
        begin = file.read(3)
        if not begin or (begin == b"{\n " and b'\n "rlpost_version": ' in file.read()):
            return None
    text = f"--summary-json {target}: exists, and is no summary of rlpost"
    return ReadWriteError(text, tip="--overwrite  # replaces it")


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
