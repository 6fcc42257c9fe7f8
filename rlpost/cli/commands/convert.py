"""`rlpost convert`: dumps of RL frameworks to Parquet."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import name_values
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import option, reads_data
from rlpost.cli.output import check_summary, reporting, write_json
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost convert logs/train_data_step7.jsonl step7.parquet

  rlpost convert dump/train_data rollouts/ --from slime-train

  rlpost convert mine.json out.parquet --from jsonl --rows samples --map reward=scores.total
"""


LAYOUTS = ("response", "padded", "shifted", "compact", "left-padded")


@command(app, epilog=EPILOG)
@reads_data
def convert(
    paths: Annotated[
        list[str] | None,
        argument(
            "IN... OUT", "Dumps, directories or globs; then one .parquet file, or a directory."
        ),
    ] = None,
    source: declared.From = None,
    rows: declared.Rows = None,
    mapped: Annotated[
        list[str] | None,
        option("--map", "ROLE=FIELD", "Field to read for a role, a.b if nested; none: no role."),
    ] = None,
    layout: Annotated[
        str | None,
        option(
            "--layout",
            "|".join(LAYOUTS),
            "Layout of the token lists (default: that of the format).",
        ),
    ] = None,
    group_size: declared.GroupSize = None,
    tokenizer: Annotated[
        str | None,
        option(
            "--tokenizer", "NAME|PATH", "Make token ids and lengths from texts, if there are none."
        ),
    ] = None,
    where: declared.Where = None,
    attempts: Annotated[
        Literal["newest", "all"],
        option("--attempts", "", "Rows of a step or rollout that several attempts wrote."),
    ] = "newest",
    nonfinite: Annotated[
        Literal["keep", "error"],
        option("--nonfinite", "", "NaN or infinite numbers: keep and count, or stop."),
    ] = "keep",
    workers: Annotated[
        int | None,
        option(
            "--workers", "INT", "Processes that read (default: one per core, at most 8).", min=1
        ),
    ] = None,
    overwrite: declared.Overwrite = False,
    how: declared.Output = "table",
    summary_json: declared.SummaryJson = None,
    quiet: declared.Quiet = False,
) -> None:
    """Convert dumps of RL frameworks to Parquet.

    OUT has rlpost's column names and types; its lists have one entry per response token.
    """
    if len(paths or []) < 2:  # noqa: PLR2004
        raise UsageError("IN and OUT are missing", tip="rlpost convert IN... OUT")
    # Pyarrow takes a while to import; a wrong command line is answered before that.
    from rlpost.interface import functions  # noqa: PLC0415
    from rlpost.render import convert as render_convert  # noqa: PLC0415

    assert paths is not None
    check_summary(summary_json)
    *inputs, output = paths
    with reporting(quiet=quiet) as reporter:
        summary = functions.convert(
            inputs,
            output,
            source,
            columns_map=name_values(mapped or [], "--map"),
            layout=layout,
            rows=rows,
            group_size=group_size,
            tokenizer=tokenizer,
            where=where,
            attempts=attempts,
            nonfinite=nonfinite,
            workers=workers,
            overwrite=overwrite,
            progress=reporter,
        )
    write_json(summary, summary_json)
    if (summary_json != "-" or how == "table") and not (quiet and how == "table"):
        from rlpost.display.console import console  # noqa: PLC0415
        from rlpost.display.page import show_result  # noqa: PLC0415

        show_result(summary, render_convert.page, how, console(sys.stderr))
