"""`rlpost export`: rollouts as files that a training framework reads."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.arguments import name_values
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import option, reads_data
from rlpost.cli.output import check_summary, reporting, write_json
from rlpost.errors import UsageError, series

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost export out.parquet out.jsonl --to jsonl

  rlpost export out.parquet samples/ --to slime
"""


@command(app, epilog=EPILOG)
@reads_data
def export(
    paths: Annotated[
        list[str] | None,
        argument(
            "IN... OUT",
            "Parquet files, directories or globs; then what to write.",
        ),
    ] = None,
    target: Annotated[
        str | None, option("--to", "NAME", "What is written, as `rlpost list targets` explains.")
    ] = None,
    roles: declared.Map = None,
    lossy: Annotated[bool, option("--lossy", "", "Leave out what the target cannot hold.")] = False,
    overwrite: declared.Overwrite = False,
    how: declared.Output = "table",
    summary_json: declared.SummaryJson = None,
    quiet: declared.Quiet = False,
) -> None:
    """Export rollouts to files that a training framework reads.

    Columns that the target cannot hold are listed before anything is written, as an error without
    --lossy. rlpost convert reads the files of jsonl and slime back. --to verl needs the package
    verl.
    """
    _check_given(paths or [], target)
    # Pyarrow takes a while to import; a wrong command line is answered before that.
    from rlpost.render import export as render_export  # noqa: PLC0415

    assert paths is not None
    assert target is not None
    from rlpost.interface import functions  # noqa: PLC0415

    check_summary(summary_json)
    *inputs, output = paths
    with reporting(quiet=quiet) as reporter:
        summary = functions.export(
            inputs,
            output,
            target,
            columns_map=name_values(roles or [], "--map"),
            lossy=lossy,
            overwrite=overwrite,
            progress=reporter,
        )
    write_json(summary, summary_json)
    if (summary_json != "-" or how == "table") and not (quiet and how == "table"):
        from rlpost.display.console import console  # noqa: PLC0415
        from rlpost.display.page import show_result  # noqa: PLC0415

        show_result(summary, render_export.page, how, console(sys.stderr))


def _check_given(paths: list[str], target: str | None) -> None:
    """Raise UsageError that names the missing ones of IN, OUT and --to, and lists the targets."""
    given = {"IN": bool(paths), "OUT": len(paths) > 1, "--to": target is not None}
    missing = [name for name, is_given in given.items() if not is_given]
    if missing:
        targets = series([*completion.names("export")])
        raise UsageError(
            f"{', '.join(missing)} missing", tip=f"rlpost export IN... OUT --to {targets}"
        )
