"""`rlpost join`: new columns from a sidecar, beside the columns of the input."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.help_screen import command
from rlpost.cli.options import option, reads_data
from rlpost.cli.output import check_summary, reporting, write_json

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost advantages in.parquet side.parquet --emit-only

  rlpost join in.parquet side.parquet out.parquet

  rlpost join rollouts/ labels.parquet labelled/ --on prompt_id
"""


@command(app, epilog=EPILOG)
@reads_data
def join(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Parquet file, directory, glob or URL.")
    ],
    sidecar: Annotated[
        str, typer.Argument(metavar="SIDECAR", help="Parquet with new columns of IN's rows.")
    ],
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="The joined file; a directory for several.")
    ],
    on: Annotated[
        str | None,
        option(
            "--on",
            metavar="A,B,...",
            complete=completion.column_list,
            help="Key of a row of SIDECAR (default: order of rows).",
        ),
    ] = None,
    replace: Annotated[
        bool, option("--replace", help="Use SIDECAR's columns if IN has them, too.")
    ] = False,
    overwrite: declared.Overwrite = False,
    summary_json: declared.SummaryJson = None,
    quiet: declared.Quiet = False,
) -> None:
    """Add columns from a sidecar file.

    OUT has all columns of IN, unchanged, and those of SIDECAR that IN lacks. Both are copied
    without decoding if the files have the same row groups. Ids, steps and other keys that both
    have must be equal in each row.
    """
    # Pyarrow takes a while to import; a wrong command line is answered before that.
    from rlpost.interface import functions  # noqa: PLC0415
    from rlpost.render.join import show_join  # noqa: PLC0415

    check_summary(summary_json)
    names = [name.strip() for name in (on or "").split(",") if name.strip()]
    with reporting(quiet=quiet) as reporter:
        summary = functions.join(
            source, sidecar, output, names, replace=replace, overwrite=overwrite, progress=reporter
        )
    if not quiet:
        show_join(summary)
    write_json(summary, summary_json)
