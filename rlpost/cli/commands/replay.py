"""`rlpost replay`: the numbers that a trainer recorded against those of a recipe."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings
from rlpost.cli.help_screen import ESTIMATOR, argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import reporting, show
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
    how: declared.Output = "table",
    verbose: declared.Verbose = False,
) -> None:
    """Compare the numbers that a trainer recorded with those of a recipe.

    Each recorded stage (rewards, KL, token rewards, advantages, returns) is computed from the
    input; the first that differs is named. Without --preset or --config, rlpost searches for the
    recipe. Exit code 0: reproduced; 1: a stage differs.
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
    with reporting(bars=how == "table") as reporter:
        result = functions.replay(paths, recipe, named=named, **chosen, progress=reporter)
    show(result, how, verbose=verbose)
    if not result["reproduced"]:
        raise typer.Exit(EXIT_DIFFERS)
