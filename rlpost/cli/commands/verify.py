"""`rlpost verify`: recomputed columns against the stored ones."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import reads_data
from rlpost.cli.output import reporting

app = typer.Typer(add_completion=False)
DIFFERENT = 1

EPILOG = """Examples:

  rlpost verify out.parquet

  rlpost verify enriched/ --format json
"""


@command(app, epilog=EPILOG)
@reads_data
def verify(
    paths: Annotated[
        list[str], argument("FILE...", "Enriched files: all of a run, or its directory.")
    ],
    how: declared.Output = "table",
    estimator: declared.NamedEstimator = None,
    tokenizer: declared.NamedTokenizer = None,
    device: declared.Device = "auto",
    chunk_tokens: declared.ChunkTokens = None,
    workers: declared.Workers = None,
) -> None:
    """Recompute the columns of enriched files and compare them with the stored ones.

    The recipe is read from the file's metadata, the input from the columns that the file kept. All
    columns are decoded. Code and a tokenizer that the metadata names are used only if --estimator
    and --tokenizer name them.

    Exit code 0: all columns are equal; 1: something differs.
    """
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.display.page import show_result  # noqa: PLC0415
    from rlpost.interface import functions  # noqa: PLC0415
    from rlpost.pipeline.options import Options  # noqa: PLC0415
    from rlpost.render import verify as render_verify  # noqa: PLC0415

    with reporting(bars=how == "table") as reporter:
        options = Options(device, chunk_tokens, workers)
        result = functions.verify(
            paths, options, estimator=estimator, tokenizer=tokenizer, progress=reporter
        )
    show_result(result, render_verify.page, how)
    if not result["ok"]:
        raise typer.Exit(DIFFERENT)
