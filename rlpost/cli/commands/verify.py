"""`rlpost verify`: whether enriched files are what they claim."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli.options import FORMAT, Format

app = typer.Typer(add_completion=False)
DIFFERENT = 1

EPILOG = """Examples:

  rlpost verify out.parquet

  rlpost verify enriched/ --format json
"""


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def verify(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Enriched files; all of a run, or its directory."),
    ],
    device: Annotated[
        str,
        typer.Option(metavar="auto|cpu|cuda[:N]", envvar="RLPOST_DEVICE", help="Where to compute."),
    ] = "auto",
    chunk_tokens: Annotated[
        int | None,
        typer.Option(min=1, envvar="RLPOST_CHUNK_TOKENS", help="Tokens per piece, about."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, envvar="RLPOST_WORKERS", help="Threads; default one per core, up to 8."
        ),
    ] = None,
    how: Annotated[Format, FORMAT] = Format.table,
) -> None:
    """Make the columns of enriched files again, and say whether they are what they claim.

    The recipe is the one in the file's metadata, the input the columns that the file holds. These
    kept columns are decoded, too; nothing in the file says what they were when it was written.

    Exit code 0: it is what it claims; 1: it differs.
    """
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.verify import verify as verified  # noqa: PLC0415
    from rlpost.cli.render import verify as render_verify  # noqa: PLC0415
    from rlpost.display.progress import progress  # noqa: PLC0415
    from rlpost.pipeline.options import Options  # noqa: PLC0415

    with progress(quiet=how is not Format.table) as reporter:
        options = Options(device, chunk_tokens, workers, reporter=reporter)
        found = verified(paths, options)
    render_verify.show(found, how.value)
    if not found["ok"]:
        raise typer.Exit(DIFFERENT)
