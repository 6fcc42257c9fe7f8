"""`rlpost advantages --shard-index I --num-shards N`: one shard of a run that was planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from rlpost.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rlpost.pipeline.options import Options
    from rlpost.recipe.recipe import Recipe


ENGINE = typer.Option(
    metavar="local|ray", envvar="RLPOST_ENGINE", help="Who computes: this process or Ray."
)
RAY_ADDRESS = typer.Option(
    metavar="ADDRESS",
    help="A Ray cluster, auto for that of this machine; default RAY_ADDRESS, else a new one.",
)
STATE_DIR = typer.Option(metavar="DIR", help="What `rlpost plan` left for shards.")
SHARD_INDEX = typer.Option(
    min=0, metavar="I", help="Write the I-th shard, from 0; see --state-dir."
)
NUM_SHARDS = typer.Option(min=1, metavar="N", help="How many shards there are.")


class Which(NamedTuple):
    """Which shard of which run."""

    state_dir: Path
    number: int
    shards: int


def asked(state_dir: Path | None, index: int | None, count: int | None) -> Which | None:
    """The shard that is asked for, if one is; raises UsageError where options for it lack."""
    if state_dir is not None and index is not None and count is not None:
        return Which(state_dir, index, count)
    given = {"--state-dir": state_dir, "--shard-index": index, "--num-shards": count}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    raise UsageError(
        f"{' and '.join(missing)}: a shard needs --state-dir DIR (from `rlpost plan`), "
        "--shard-index I and --num-shards N"
    )


def run(
    one: Which, paths: list[str], recipe: Recipe, options: Options, *, quiet: bool
) -> dict[str, Any] | None:
    """Write one shard; the summary where no other has to be waited for.

    Raises:
        UsageError: paths, another recipe or options are given that are the plan's, or of no use.
    """
    from rlpost.distributed import shards  # noqa: PLC0415 - torch takes a second to import
    from rlpost.recipe.recipe import Recipe  # noqa: PLC0415

    if paths:
        raise UsageError(f"{paths[0]}: `rlpost plan` has read IN and OUT; a shard takes neither")
    _check_options(options)
    work = shards.planned(one.state_dir).work
    planned = work.recipe
    if recipe not in (Recipe(), planned):
        raise UsageError(f"{one.state_dir}: planned with another recipe; a shard takes none")
    summary = shards.shard(*one, options)
    if summary is None:
        if not quiet:
            typer.echo(
                f"Shard {one.number} of {one.shards} is written; all files appear with the last.",
                err=True,
            )
        return None
    asked = work.whole.asked if work.whole is not None else {}
    return summary | {"preset": None, "asked_estimator": planned.estimator} | asked


def _check_options(options: Options) -> None:
    """Raise UsageError where options are given that a shard would ignore."""
    given = {
        "--overwrite": (options.overwrite, "is for `rlpost plan`, which claims the names"),
        "--state": (options.state is not None, "is for `rlpost plan`, which reads the moments"),
        "--resume": (options.resume, "is not needed: a shard goes on where it was stopped"),
        f"--engine {options.engine}": (options.engine != "local", "is for runs without a plan"),
        "--ray-address": (options.ray_address is not None, "is for runs without a plan"),
    }
    for name, (is_given, why) in given.items():
        if is_given:
            raise UsageError(f"{name}: {why}; a shard takes none")
