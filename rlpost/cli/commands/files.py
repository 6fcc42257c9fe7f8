"""Commands that write files of other formats: `rlpost convert` and `rlpost export`."""

from __future__ import annotations

from typing import Annotated, Any

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import inputs_and_output, reporting, show_written
from rlpost.errors import UsageError, series
from rlpost.interface import functions

Json = dict[str, Any]


# ---- convert ----


@command()
@options_of(functions.convert)
def convert(
    chosen: Json,
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

    Examples:
      rlpost convert logs/train_data_step7.jsonl step7.parquet
      rlpost convert dump/train_data rollouts/ --from slime-train
      rlpost convert mine.json out.parquet --rows samples --map reward=score.all
    """
    inputs, output = inputs_and_output(paths, "rlpost convert IN... OUT")
    with reporting(quiet=quiet) as reporter:
        summary = functions.convert(inputs, output, **chosen, progress=reporter)
    show_written(summary, how, summary_json, quiet=quiet)


# ---- export ----


@command()
@options_of(functions.export)
def export(
    chosen: Json,
    paths: Annotated[
        list[str] | None,
        argument("IN... OUT", "Parquet files, directories or globs; then what to write."),
    ] = None,
    target: Annotated[
        str | None, option("--to", "NAME", "What is written, as `rlpost list targets` explains.")
    ] = None,
    how: declared.Output = "table",
    summary_json: declared.SummaryJson = None,
    quiet: declared.Quiet = False,
) -> None:
    """Export rollouts to files that a training framework reads.

    Columns that the target cannot hold are listed. rlpost convert reads the files of jsonl and
    slime back. --to verl needs the package verl.

    Examples:
      rlpost export out.parquet out.jsonl --to jsonl
      rlpost export out.parquet samples/ --to slime
    """
    usage = f"rlpost export IN... OUT --to {series([*completion.names('targets')])}"
    inputs, output = inputs_and_output(paths, usage)
    if target is None:
        raise UsageError("--to is missing", tip=usage)
    with reporting(quiet=quiet) as reporter:
        summary = functions.export(inputs, output, target, **chosen, progress=reporter)
    show_written(summary, how, summary_json, quiet=quiet)
