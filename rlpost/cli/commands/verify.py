"""`rlpost verify`: recomputed columns against the stored ones."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import options_of
from rlpost.cli.output import reporting, show
from rlpost.interface import functions
from rlpost.pipeline.options import Options  # noqa: TC001 - typer reads annotations

app = typer.Typer(add_completion=False)
DIFFERENT = 1

EPILOG = """Examples:
  rlpost verify out.parquet
  rlpost verify enriched/ --format json
"""


@command(app, epilog=EPILOG)
@options_of(functions.verify, runs=("device", "chunk_tokens", "workers"))
def verify(
    chosen: dict[str, Any],
    run: Options,
    paths: Annotated[
        list[str], argument("FILE...", "Enriched files: all of a run, or its directory.")
    ],
    how: declared.Output = "table",
) -> None:
    """Recompute the columns of enriched files and compare them with the stored ones.

    The recipe is read from the file's metadata, the input from the columns that the file kept.
    Those that the recipe does not read are not decoded. Code and a tokenizer that the metadata
    names are used only if --estimator and --tokenizer name them.

    Exit code 0: all columns are equal; 1: something differs.
    """
    with reporting(bars=how == "table") as reporter:
        result = functions.verify(paths, run, **chosen, progress=reporter)
    show(result, how)
    if not result["ok"]:
        raise typer.Exit(DIFFERENT)
