"""`rlpost export`: rollouts as files that a training framework reads."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.arguments import name_values
from rlpost.cli.help_screen import command
from rlpost.cli.options import Format, option
from rlpost.cli.output import echo, silence_warnings, write_json
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost export --list

  rlpost export out.parquet out.jsonl --to jsonl

  rlpost export out.parquet data.jsonl --to tinker --lossy

  rlpost export out.parquet - --to jsonl > rows.jsonl

  rlpost export out.parquet samples/ --to slime
"""


@command(app, epilog=EPILOG)
def export(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IN... OUT",
            help="Parquet files, directories or globs; then the file or directory to write (- is "
            "stdout, of jsonl and tinker).",
        ),
    ] = None,
    target: Annotated[
        str | None,
        option(
            "--to",
            metavar="NAME",
            complete=lambda: [*completion.names("export").items()],
            help="What is written (see --list).",
        ),
    ] = None,
    roles: declared.Map = None,
    lossy: Annotated[
        bool, option("--lossy", help="Leave out what the target cannot hold.")
    ] = False,
    overwrite: declared.Overwrite = False,
    listed: Annotated[
        bool, option("--list", help="List the targets, and what each holds and loses.")
    ] = False,
    how: declared.Output = Format.table,
    summary_json: declared.SummaryJson = None,
    quiet: declared.Quiet = False,
) -> None:
    """Export rollouts to files that a training framework reads.

    Columns that the target cannot hold are listed before anything is written, as an error without
    --lossy. rlpost convert reads the files of jsonl and slime back.
    """
    if not listed:
        _check_given(paths or [], target)
    # Pyarrow takes a while to import; a wrong command line is answered before that.
    from rlpost.render import export as render_export  # noqa: PLC0415

    if listed and summary_json is not None:
        raise UsageError("--summary-json needs an export; for the list use --list --format json")
    if listed:
        render_export.show_targets(how.value)
        return
    assert paths is not None
    assert target is not None
    _check_streams(paths, summary_json, how, overwrite=overwrite)
    from rlpost.display.progress import progress  # noqa: PLC0415
    from rlpost.formats import export as work  # noqa: PLC0415
    from rlpost.formats.inputs import canonical_inputs  # noqa: PLC0415
    from rlpost.pipeline.output.files import check_writable  # noqa: PLC0415

    if quiet:
        silence_warnings()
    check_writable(None if summary_json == "-" else summary_json)
    chosen = name_values(roles or [], "--map")
    with (
        canonical_inputs(paths[:-1], report=None if quiet else echo) as inputs,
        progress(quiet=quiet or (paths[-1] == "-" and sys.stdout.isatty())) as reporter,
    ):
        summary = work.export(
            inputs,
            paths[-1],
            target,
            chosen,
            lossy=lossy,
            overwrite=overwrite,
            reporter=reporter,
        )
    summary["inputs"] = paths[:-1] if inputs != paths[:-1] else summary["inputs"]
    if summary_json is not None:
        write_json(summary, summary_json)
    if summary_json != "-" or how is Format.table:
        render_export.show_export(summary, how.value, quiet=quiet)


def _check_given(paths: list[str], target: str | None) -> None:
    """Raise UsageError that names the missing ones of IN, OUT and --to, and lists the targets."""
    given = {"IN": bool(paths), "OUT": len(paths) > 1, "--to": target is not None}
    missing = [name for name, is_given in given.items() if not is_given]
    if missing:
        raise UsageError(
            f"{' '.join(['rlpost export', *paths])}: missing: {', '.join(missing)}; needed: "
            f"rlpost export IN... OUT --to NAME (targets: {', '.join(completion.names('export'))}; "
            "rlpost export --list)"
        )


def _check_streams(
    paths: list[str], summary_json: str | None, how: Format, *, overwrite: bool
) -> None:
    """Check that `-` is the output alone, and that nothing else goes to stdout then."""
    if "-" in paths[:-1]:
        raise UsageError("-: rollouts are not read from standard input: name files")
    if paths[-1] != "-":
        return
    if overwrite:
        raise UsageError("--overwrite: has no effect, because OUT is -, which is stdout")
    for flag, is_given in (
        ("--summary-json -", summary_json == "-"),
        (f"--format {how.value}", how is not Format.table),
    ):
        if is_given:
            raise UsageError(
                f"{flag}: stdout has the rows already, because OUT is -; --summary-json PATH "
                "writes the summary to a file"
            )
