"""`rlpost plan`: all of a run but the last pass, for shards that write."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Any

import typer

from rlpost.cli.commands.advantages import write_json
from rlpost.cli.options import asked_for, recipe_of, with_recipe_options
from rlpost.cli.output import say
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost plan dumps/ enriched/ --estimator gae --state-dir state/

  sbatch --array=0-31 --wrap 'rlpost advantages --state-dir state/ --num-shards 32 --shard-index $SLURM_ARRAY_TASK_ID'
"""  # noqa: E501


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@with_recipe_options
def plan(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN... OUT", help="Parquet files, directories, globs; then OUT."),
    ],
    state_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Where shards find what was settled.")
    ],
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", envvar="RLPOST_PRESET", help="Numbers of a framework."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", envvar="RLPOST_CONFIG", help="Recipe to start from."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT, and a plan in DIR.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(metavar="cpu|cuda[:N]", envvar="RLPOST_DEVICE", help="Where to compute."),
    ] = "cpu",
    chunk_tokens: Annotated[
        int | None,
        typer.Option(min=1, envvar="RLPOST_CHUNK_TOKENS", help="Tokens per piece, about."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, envvar="RLPOST_WORKERS", help="Threads; default one per core."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Running reward moments, kept over calls."),
    ] = None,
    summary_json: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the plan as JSON; - is stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    **options: Any,
) -> None:
    """Settle all responses of a run, and leave to shards what is done per token.

    A shard is `rlpost advantages --state-dir DIR --num-shards N --shard-index I`.

    It may run at any time, on any machine that sees DIR, IN and OUT.

    All files appear when the last shard ends.
    """
    if len(paths) < 2:  # noqa: PLR2004
        raise UsageError("IN and OUT are needed: rlpost plan IN... OUT --state-dir DIR")
    recipe = recipe_of(options, config, preset)
    from rlpost.display.progress import progress  # noqa: PLC0415
    from rlpost.distributed import shards  # noqa: PLC0415 - torch takes a second to import
    from rlpost.pipeline.options import Options  # noqa: PLC0415

    with progress(quiet=quiet) as reporter:
        asked = asked_for(options, config, preset)
        run = Options(
            device, chunk_tokens, workers, overwrite, state, reporter,
            asked=asked if asked["preset"] else {},
        )  # fmt: skip
        found = shards.plan(paths[:-1], paths[-1], state_dir, recipe, run)
    if not quiet:
        say(_told(found, state_dir))
    if summary_json is not None:
        write_json(found, summary_json)


def _told(found: dict[str, Any], state_dir: Path) -> str:
    tables = f"{found['tables']:,} tables" if found["tables"] > 1 else "one table"
    why = f": {found['together']}" if found["together"] else ""
    lots = f"{found['lots']:,}"
    return "\n".join(
        [
            f"{state_dir}: {found['responses']:,} responses of {found['files']:,} files settled",
            f"  on {tables}{why}; {found['bytes'] / 1e6:,.1f} MB",
            f"Up to {lots} shards can write at once, each I from 0 to N - 1:",
            f"  rlpost advantages --state-dir {state_dir} --num-shards N --shard-index I",
        ]
    )
