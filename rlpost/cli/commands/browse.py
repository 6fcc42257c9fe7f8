"""`rlpost browse`: rollouts in the terminal."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rlpost.cli.options import name_values
from rlpost.errors import UsageError
from rlpost.optional import need

if TYPE_CHECKING:
    from collections.abc import Iterator


app = typer.Typer(add_completion=False)
_STDERR = 2
SMALL = 64 << 20  # compressed bytes that are measured before anyone asks

EPILOG = """Examples:

  rlpost browse rollouts.parquet

  rlpost browse 'dumps/*.parquet' --filter 'reward<0.5 length>=1000'

Keys: arrows or hjkl move, enter opens, ] and [ are the next and previous step, ? is help.
"""


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def browse(
    paths: Annotated[
        list[str], typer.Argument(metavar="IN...", help="Parquet files, directories or globs.")
    ],
    roles: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="ROLE=COLUMN", help="Which column serves a role."),
    ] = None,
    condition: Annotated[
        str, typer.Option("--filter", metavar="CONDITIONS", help="What to list at first.")
    ] = "",
) -> None:
    """Browse responses: steps, the groups of a step, the responses of a group, their tokens.

    Files may be larger than memory: keys, rewards and masks are read first, tokens when looked at.
    """
    columns_map = name_values(roles or [], "--map")
    need("the browser", "browse", "textual")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("browse needs a terminal; rlpost inspect prints in pipes")
    from rlpost.analysis.browse.app import Browser  # noqa: PLC0415
    from rlpost.analysis.responses.index import build  # noqa: PLC0415
    from rlpost.display.progress import progress  # noqa: PLC0415
    from rlpost.errors import DataError  # noqa: PLC0415

    with progress(quiet=False) as reporter:
        index = build(paths, columns_map, reporter)
        if not len(index):
            raise DataError(f"{index.source.name}: there are no rows to browse")
        for measure in ("kl", "advantage"):
            columns = index.columns_for(measure)
            if columns and index.source.bytes_of(columns) <= SMALL:
                index.measure(measure, reporter)
    with _drawn_on_stdout():
        Browser(index, condition).run()


@contextmanager
def _drawn_on_stdout() -> Iterator[None]:
    """Textual draws on stderr; where that is redirected, let it be stdout meanwhile."""
    if sys.stderr.isatty():
        yield
        return
    redirected = os.dup(_STDERR)
    os.dup2(sys.stdout.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(redirected, _STDERR)
        os.close(redirected)
