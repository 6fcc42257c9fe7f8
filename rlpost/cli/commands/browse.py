"""`rlpost browse`: a terminal browser of responses."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import options_of
from rlpost.cli.output import reporting
from rlpost.display.console import is_terminal
from rlpost.errors import UsageError
from rlpost.interface import functions

if TYPE_CHECKING:
    from collections.abc import Iterator


app = typer.Typer(add_completion=False)
_STDERR = 2
SMALL = 64 << 20  # compressed bytes of columns that are read at the start

EPILOG = """Examples:
  rlpost browse rollouts.parquet
  rlpost browse 'dumps/*.parquet' --where 'reward < 0.5 and step >= 300'

Keys: arrows or hjkl move, enter opens, ] and [ are the next and previous step, ? is help.
"""


@command(app, epilog=EPILOG)
@options_of(
    functions.inspect, only=("columns_map", "where", "rollout_reward", "failures", "attempts")
)
def browse(
    chosen: dict[str, Any],
    paths: Annotated[list[str], argument("IN...", "Parquet files, directories or globs.")],
) -> None:
    """Browse responses in the terminal: steps, groups, responses, tokens.

    Files may be larger than memory: keys, rewards and masks are read first, tokens when displayed.
    """
    where, columns_map = chosen.pop("where"), chosen.pop("columns_map") or {}
    if not is_terminal():
        raise UsageError("browse needs a terminal; rlpost inspect prints in pipes")
    from rlpost.analysis.browse.app import Browser  # noqa: PLC0415
    from rlpost.analysis.inspect.model import counting_lines  # noqa: PLC0415
    from rlpost.analysis.responses.index import build_index  # noqa: PLC0415
    from rlpost.errors import DataError  # noqa: PLC0415
    from rlpost.interface.inputs import condition, open_inputs  # noqa: PLC0415

    with ExitStack() as until_end:
        with reporting() as reporter:
            kept = condition(where, columns_map)
            opened = until_end.enter_context(open_inputs(paths, reporter=reporter, where=kept))
            index = build_index(opened.paths, columns_map, reporter, **chosen)
            if not len(index):
                raise DataError(f"{index.source.name}: there are no responses to browse")
            for measure in ("kl", "advantage"):
                columns = index.columns_of(measure)
                if columns and index.source.bytes_of(columns) <= SMALL:
                    index.number(measure, reporter)
        index = replace(index, made_of=opened)
        lines = [] if kept is None else [kept.line()]
        with _drawn_on_stdout():
            Browser(index, "; ".join(lines + counting_lines(index.stored_counting))).run()


@contextmanager
def _drawn_on_stdout() -> Iterator[None]:
    """Redirect stderr, where Textual draws, to stdout unless it is a terminal."""
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
