"""`rlpost convert`: other tools' dumps to Parquet that the other commands read."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from rlpost.cli.commands.advantages import write_json
from rlpost.cli.options import FORMAT, Format, name_values
from rlpost.cli.output import be_quiet
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost convert --list

  rlpost convert logs/train_data_step7.jsonl step7.parquet

  rlpost convert dump/train_data rollouts/ --from slime-train

  rlpost convert mine.jsonl out.parquet --from jsonl --map reward=scores.total
"""


class Nonfinite(Enum):
    """What becomes of a conversion with numbers that are not finite."""

    keep = "keep"
    error = "error"


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def convert(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IN... OUT",
            help="Dumps, directories or globs; then a .parquet file for all, or a directory.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="NAME", help="The format; else told by the contents."),
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="ROLE=FIELD", help="Field of a role (a.b nests); none leaves it out."
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Token lists: response, padded, shifted, compact, left-padded."
        ),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(min=1, help="Consecutive records that are one group, where no id says so."),
    ] = None,
    nonfinite: Annotated[
        Nonfinite,
        typer.Option(help="Rewards and log-probs that are NaN or infinite: keep and count them."),
    ] = Nonfinite.keep,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List the formats, what each gives and lacks.")
    ] = False,
    how: Annotated[Format, FORMAT] = Format.table,
    summary_json: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the summary as JSON; - is stdout.")
    ] = None,
) -> None:
    """Convert a framework's rollout dumps to Parquet.

    OUT has rlpost's own column names and types, one entry per response token.
    """
    if not listed and len(paths or []) < 2:  # noqa: PLR2004
        raise UsageError("IN and OUT are needed: rlpost convert IN... OUT, or --list")
    # Pyarrow takes a while to import; a wrong command line is answered before that.
    from rlpost.cli.render import convert as render_convert  # noqa: PLC0415

    if listed and summary_json is not None:
        raise UsageError("--summary-json is of a conversion; --list --format json lists as JSON")
    if listed:
        render_convert.show_formats(how.value)
        return
    from rlpost.formats import convert as work  # noqa: PLC0415
    from rlpost.formats.base import ReadOptions  # noqa: PLC0415
    from rlpost.pipeline.outputs import check_writable  # noqa: PLC0415

    assert paths is not None
    if quiet:
        be_quiet()
    check_writable(None if summary_json == "-" else summary_json)
    chosen = name_values(mapped or [], "--map")
    options = ReadOptions(chosen, layout, group_size, nonfinite.value)
    with render_convert.counting(quiet=quiet) as reporter:
        summary = work.convert(
            paths[:-1], paths[-1], source, options, overwrite=overwrite, reporter=reporter
        )
    if summary_json is not None:
        write_json(summary, summary_json)
    if summary_json != "-" or how is Format.table:
        render_convert.show_conversion(summary, how.value, quiet=quiet)
