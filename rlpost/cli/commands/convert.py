"""`rlpost convert`: dumps of RL frameworks to Parquet."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import options_of
from rlpost.cli.output import inputs_and_output, reporting, show_written
from rlpost.interface import functions

app = typer.Typer(add_completion=False)

EPILOG = """Examples:
  rlpost convert logs/train_data_step7.jsonl step7.parquet
  rlpost convert dump/train_data rollouts/ --from slime-train
  rlpost convert mine.json out.parquet --rows samples --map reward=score.all
"""


@command(app, epilog=EPILOG)
@options_of(functions.convert)
def convert(
    chosen: dict[str, Any],
    paths: Annotated[
        list[str] | None,
        argument(
            "IN... OUT", "Dumps, directories or globs; then one .parquet file, or a directory."
        ),
    ] = None,
    how: declared.Output = "table",
    summary_json: declared.SummaryJson = None,
    quiet: declared.Quiet = False,
) -> None:
    """Convert dumps of RL frameworks to Parquet.

    OUT has rlpost's column names and types; its lists have one entry per response token.
    """
    inputs, output = inputs_and_output(paths, "rlpost convert IN... OUT")
    with reporting(quiet=quiet) as reporter:
        summary = functions.convert(inputs, output, **chosen, progress=reporter)
    show_written(summary, how, summary_json, quiet=quiet)
