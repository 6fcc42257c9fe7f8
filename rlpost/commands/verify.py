"""`rlpost verify`: whether enriched files are what they claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpost.commands.options import FORMAT, Format

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(add_completion=False)
DIFFERENT = 1

EPILOG = """Examples:

  rlpost verify out.parquet

  rlpost verify enriched/ --format json
"""
HEADINGS = ("file", "rows", "what", "verdict")


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

    The recipe is the one in the file's metadata, the input the columns that the file holds. Exit
    code 0: it is what it claims; 1: it differs, and where.
    """
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost import render, render_lists  # noqa: PLC0415
    from rlpost.run_options import Options  # noqa: PLC0415
    from rlpost.verify import verify as verified  # noqa: PLC0415

    with render.progress(quiet=how is not Format.table) as reporter:
        options = Options(device, chunk_tokens, workers, reporter=reporter)
        found = verified(paths, options)
    if how is Format.json:
        render_lists.show_json(found)
    else:
        render_lists.show_list(HEADINGS, list(_lines(found)), how.value)
    if not found["ok"]:
        raise typer.Exit(DIFFERENT)


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """A line a file that is what it claims; else one for each part of it."""
    for file in found["files"]:
        rows = f"{file['rows']:,}"
        if file["ok"]:
            yield file["file"], rows, file["estimator"], _good(file)
            continue
        for column in file["columns"]:
            yield file["file"], rows, column["column"], _verdict(column)
        for text in file["summary"]:
            yield file["file"], rows, "summary", f"DIFFERS: {text}"


def _good(file: dict[str, Any]) -> str:
    """What can be said of all columns together."""
    count = len(file["columns"])
    largest = max((one["largest_difference"] or 0.0 for one in file["columns"]), default=0.0)
    if largest:
        return f"is what it claims: {count} columns, equal to {largest:.1e}"
    return f"is what it claims: {count} columns, bit for bit"


def _verdict(column: dict[str, Any]) -> str:
    if column["verdict"] == "missing":
        return "MISSING"
    if column["verdict"] != "differs":
        return str(column["verdict"])
    text = f"DIFFERS in {column['rows']:,} rows, first in row {column['first_row']:,}"
    if column["largest_difference"]:
        text += f", by up to {column['largest_difference']:.3g}"
    if "types" in column:
        text += f": it is {column['types'][0]}, and should be {column['types'][1]}"
    return text
