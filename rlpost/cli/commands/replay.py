"""`rlpost replay`: the numbers that a trainer recorded against those of a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings
from rlpost.cli.help_screen import ESTIMATOR, argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import reporting, show, write_text
from rlpost.errors import UsageError
from rlpost.interface import functions
from rlpost.recipe.flags import SET

app = typer.Typer(add_completion=False)
EXIT_DIFFERS = 1
OF_OUTPUT = ("emit", "emit_only", "replace", "pass_threshold")
"""Fields of a recipe that change no recorded number."""

EPILOG = """Examples:
  rlpost replay dump.parquet --preset verl --estimator grpo
  rlpost replay dump.parquet
  rlpost replay dump.parquet --preset verl --set numerics.norm_eps=1e-8
  rlpost replay 'steps/*.parquet' --map advantages=adv --preset trl
  rlpost replay dump.parquet --estimator gae --save-config found.toml
"""


@command(app, epilog=EPILOG)
@options_of(functions.replay, without=("fixed", "named"))
def replay(
    chosen: dict[str, Any],
    paths: Annotated[list[str], argument("IN...", "Files with recorded columns.")],
    preset: declared.Preset = None,
    config: declared.Config = None,
    estimator: Annotated[
        str | None,
        option(
            "--estimator",
            "NAME",
            "Estimator of the recipe, or of those that are searched.",
            panel=ESTIMATOR,
        ),
    ] = None,
    assigned: declared.Assigned = None,
    save_config: Annotated[
        Path | None, option("--save-config", "PATH", "Write the found recipe as TOML.")
    ] = None,
    overwrite: Annotated[
        bool, option("--overwrite", "", "Replace the file of --save-config.")
    ] = False,
    how: declared.Output = "table",
    verbose: declared.Verbose = False,
) -> None:
    """Compare the numbers that a trainer recorded with those of a recipe.

    Each recorded stage (rewards, KL, token rewards, advantages, returns) is computed from what was
    recorded before it; the first that differs is named. Without --preset or --config, rlpost
    searches for the recipe. Exit code 0: reproduced; 1: a stage differs.
    """
    settings = Settings({"estimator": estimator, "assigned": assigned}, config, preset)
    if unread := [name for name in OF_OUTPUT if name in settings.typed]:
        raise UsageError(f"{SET} {unread[0]}: replay writes no column; leave it out")
    if verbose and how == "json":
        raise UsageError("--verbose: has no effect with --format json, which has everything")
    if settings.has_base:
        recipe, named = settings.recipe, shlex.join(settings.words)
    else:
        recipe, named, chosen["fixed"] = None, "", settings.given()
        columns = chosen["fixed"].pop("columns", {})
        chosen["columns_map"] = columns | (chosen["columns_map"] or {})
    _check_save(save_config, named, overwrite=overwrite)
    with reporting(bars=how == "table") as reporter:
        result = functions.replay(paths, recipe, named=named, **chosen, progress=reporter)
    if save_config is not None:
        write_text(result["search"]["best"]["toml"] + "\n", save_config)
    show(result, how, verbose=verbose)
    if not result["reproduced"]:
        raise typer.Exit(EXIT_DIFFERS)


def _check_save(path: Path | None, named: str, *, overwrite: bool) -> None:
    """Raise an error before the work if a recipe cannot be saved."""
    from rlpost.pipeline.output.files import check_writable  # noqa: PLC0415

    if path is None:
        if overwrite:
            raise UsageError(
                "--overwrite: nothing is written; add --save-config PATH, or leave it out"
            )
        return
    if named:
        raise UsageError(
            f"--save-config {path}: the recipe of a search is written, and {named} is "
            "not searched for; rlpost config show --format toml prints it"
        )
    check_writable(path)
    if path.exists() and not overwrite:
        raise UsageError(f"--save-config {path}: exists already", tip="--overwrite replaces it")
