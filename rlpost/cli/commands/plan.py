"""`rlpost plan`, and the shards that `rlpost advantages` then writes."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings, expected
from rlpost.cli.help_screen import SHARDS, command
from rlpost.cli.options import option, reads_data, with_recipe_options
from rlpost.cli.output import echo, reporting, write_json
from rlpost.errors import UsageError

if TYPE_CHECKING:
    from rlpost.pipeline.options import Options
    from rlpost.recipe.recipe import Recipe

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost plan dumps/ enriched/ --estimator gae --state-dir state/

  sbatch --array=0-31 --wrap 'rlpost advantages --state-dir state/
    --num-shards 32 --shard-index $SLURM_ARRAY_TASK_ID'
"""


@command(app, epilog=EPILOG)
@reads_data
@with_recipe_options
def plan(
    context: typer.Context,
    settings: Settings,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN... OUT", help="Parquet files, directories or globs; then OUT."),
    ],
    state_dir: Annotated[
        Path,
        option(
            "--state-dir", metavar="DIR", panel=SHARDS, help="Directory to write for the shards."
        ),
    ],
    overwrite: declared.Overwrite = False,
    state: declared.State = None,
    summary_json: declared.SummaryJson = None,
    device: declared.Device = "auto",
    chunk_tokens: declared.ChunkTokens = None,
    workers: declared.Workers = None,
    fail_on: declared.FailOn = None,
    expect: declared.Expect = None,
    quiet: declared.Quiet = False,
) -> None:
    """Compute response-level statistics for a sharded run.

    Shards do the work per token: `rlpost advantages --state-dir DIR --num-shards N --shard-index
    I` on any machine with DIR, IN and OUT. The last publishes all.
    """
    if len(paths) < 2:  # noqa: PLR2004
        raise UsageError("IN and OUT are needed: rlpost plan IN... OUT --state-dir DIR")
    recipe, facts = settings.recipe, expected(expect)
    from rlpost.display.console import console  # noqa: PLC0415 - rich
    from rlpost.distributed import shards  # noqa: PLC0415 - slow to import
    from rlpost.pipeline.options import Options  # noqa: PLC0415

    with reporting(quiet=quiet) as reporter:
        names = settings.requested
        run = Options(
            device, chunk_tokens, workers, overwrite, state, reporter,
            asked=names if names["preset"] else {}, started=context.obj,
            fail_on=None if fail_on is None else fail_on.value, expect=facts,
        )  # fmt: skip
        summary = shards.plan(paths[:-1], paths[-1], state_dir, recipe, run)
    if not quiet:
        from rlpost.render.plan import shards_page  # noqa: PLC0415

        shards_page(summary, state_dir).show(console(sys.stderr))
    write_json(summary, summary_json)


class Shard(NamedTuple):
    """One shard of a planned run."""

    state_dir: Path
    number: int
    shards: int


def shard_of(state_dir: Path | None, index: int | None, count: int | None) -> Shard | None:
    """Return the requested shard, if there is one; raises UsageError if an option is missing."""
    if state_dir is not None and index is not None and count is not None:
        return Shard(state_dir, index, count)
    values = {"--state-dir": state_dir, "--shard-index": index, "--num-shards": count}
    missing = [name for name, value in values.items() if value is None]
    if len(missing) == len(values):
        return None
    raise UsageError(
        f"{' and '.join(missing)}: a shard needs --state-dir DIR (from `rlpost plan`), "
        "--shard-index I and --num-shards N"
    )


def run_shard(
    shard: Shard, paths: list[str], recipe: Recipe, options: Options, *, quiet: bool
) -> dict[str, Any] | None:
    """Write a shard; return the summary of the run if this was the last one.

    Raises:
        UsageError: there are paths, another recipe or options that belong to `rlpost plan`; or the
            plan names code or a tokenizer, and the options do not.
    """
    from rlpost.distributed import shards  # noqa: PLC0415 - slow to import
    from rlpost.recipe.named import NamedByUser, named_in  # noqa: PLC0415
    from rlpost.recipe.recipe import Recipe  # noqa: PLC0415

    if paths:
        raise UsageError(
            f"{paths[0]}: a shard takes no paths; IN and OUT are those of `rlpost plan`"
        )
    _check_options(options)
    context = shards.planned(shard.state_dir).context
    planned = context.recipe
    if recipe not in (Recipe(), planned, Recipe.of(named_in(planned))):
        raise UsageError(
            f"{shard.state_dir}: planned with another recipe; leave recipe options out"
        )
    NamedByUser(**named_in(recipe)).completed(planned, f"--state-dir {shard.state_dir}")
    summary = shards.shard(*shard, options)
    if summary is None:
        if not quiet:
            which = f"Shard {shard.number} of {shard.shards}"
            echo(f"{which} is written; all files appear with the last one.")
        return None
    names = context.metadata.asked if context.metadata is not None else {}
    return summary | {"preset": None, "requested_estimator": planned.estimator} | names


def _check_options(options: Options) -> None:
    """Raise UsageError for options that a shard would ignore."""
    ignored = {
        "--overwrite": (options.overwrite, "is for `rlpost plan`, which reserves the names"),
        "--state": (options.state is not None, "is for `rlpost plan`, which reads the statistics"),
        "--fail-on": (options.fail_on is not None, "is for `rlpost plan`: the last shard fails"),
        "--expect": (bool(options.expect), "is for `rlpost plan`: the last shard checks it"),
        "--update": (options.update, "is for runs without a plan"),
        "--delete": (options.delete, "is for runs without a plan"),
        "--resume": (options.resume, "is not needed: a shard continues by itself"),
        f"--engine {options.engine}": (options.engine != "local", "is for runs without a plan"),
        "--ray-address": (options.ray_address is not None, "is for runs without a plan"),
    }
    for name, (is_set, why) in ignored.items():
        if is_set:
            raise UsageError(f"{name}: {why}; a shard takes none")
