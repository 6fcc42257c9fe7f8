"""`rlpost report`: an HTML report about rollout files."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import reporting
from rlpost.errors import UsageError
from rlpost.interface import functions

app = typer.Typer(add_completion=False)

EPILOG = """Examples:
  rlpost report rollouts.parquet report.html
  rlpost report 'dumps/*.parquet' report.html --map reward=score --examples 12
"""


@command(app, epilog=EPILOG)
@options_of(functions.report)
def report(
    chosen: dict[str, Any],
    paths: Annotated[list[str], argument("IN... [OUT]", "Parquet files, directories or globs.")],
    output: Annotated[
        str | None, option("--output -o", "PATH", "HTML file to write (default: OUT, *.html).")
    ] = None,
    quiet: declared.Quiet = False,
) -> None:
    """Write an HTML report about rollout files, one file that needs no network.

    It has an overview, findings, trends over steps, distributions, groups, engine against trainer,
    and example responses with their tokens.
    """
    paths, output = _output_of(paths, output)
    with reporting(quiet=quiet) as reporter:
        facts = functions.report(paths, output, **chosen, progress=reporter)
    if not quiet:
        from rlpost.analysis.report.run import written_page  # noqa: PLC0415 - slow to import
        from rlpost.display.console import console  # noqa: PLC0415
        from rlpost.display.page import show_page  # noqa: PLC0415

        show_page(written_page(facts, output), "table", console(sys.stderr))


def _output_of(paths: list[str], output: str | None) -> tuple[list[str], str]:
    """Return the inputs and the output, which is the last path if no option has it."""
    if output is not None:
        return paths, output
    *inputs, last = paths
    if not inputs or not last.endswith(".html"):
        raise UsageError(
            f"{' '.join(paths)}: OUT is missing, a file that ends with .html",
            tip=f"rlpost report {shlex.join(paths)} report.html",
        )
    return inputs, last
