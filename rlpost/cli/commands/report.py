"""`rlpost report`: one HTML page about rollout files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpost.cli.options import name_values
from rlpost.cli.output import say
from rlpost.optional import need

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost report rollouts.parquet -o report.html

  rlpost report 'dumps/*.parquet' --map reward=score --examples 12 -o report.html
"""


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def report(
    paths: Annotated[
        list[str], typer.Argument(metavar="IN...", help="Parquet files, directories or globs.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE.html", help="Where the page goes.")
    ],
    roles: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="ROLE=COLUMN", help="Which column serves a role."),
    ] = None,
    pass_threshold: Annotated[
        float, typer.Option(metavar="R", help="A response passes with at least this reward.")
    ] = 1.0,
    examples: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=20, help="Best, worst and random responses, N of each."
        ),
    ] = 6,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the random examples.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Write one HTML page about rollout files, which opens from disk without a network.

    Overview, findings, trends over steps, distributions, groups, engine against trainer, clipping,
    and examples down to the single token.
    """
    columns_map = name_values(roles or [], "--map")
    need("the report", "report", "altair", "vl_convert")
    # Polars, pyarrow and altair take a second to import; a wrong command line is answered before.
    from rlpost.analysis.report import run  # noqa: PLC0415
    from rlpost.display.progress import progress  # noqa: PLC0415

    with progress(quiet=quiet) as reporter:
        facts = run.report(
            paths,
            output,
            columns_map=columns_map,
            pass_threshold=pass_threshold,
            examples=examples,
            seed=seed,
            overwrite=overwrite,
            reporter=reporter,
        )
    if not quiet:
        found = len(facts.findings)
        size = Path(output).stat().st_size / 1e6
        said = f"{found} finding{'' if found == 1 else 's'}" if found else "no findings"
        say(f"{output}: {facts.responses:,} responses, {said}, {size:.1f} MB")
