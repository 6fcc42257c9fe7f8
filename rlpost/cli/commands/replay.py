"""`rlpost replay`: the numbers that a trainer recorded against those of a recipe."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings, name_values
from rlpost.cli.help_screen import ESTIMATOR, argument, command
from rlpost.cli.options import option, reads_data
from rlpost.cli.output import reporting, write_text
from rlpost.errors import UsageError
from rlpost.recipe.flags import SET

Json = dict[str, Any]
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
@reads_data
def replay(
    paths: Annotated[list[str], argument("IN...", "Files with recorded columns.")],
    roles: declared.Map = None,
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
    tolerance: Annotated[
        float | None,
        option("--tolerance", "FLOAT", "Relative difference of equal numbers (default: 1e-4)."),
    ] = None,
    sample: Annotated[
        int | None,
        option(
            "--sample",
            "TOKENS",
            "Tokens in memory, in whole steps (default: 4,000,000).",
            common=False,
        ),
    ] = None,
    save_config: Annotated[
        Path | None, option("--save-config", "PATH", "Write the found recipe as TOML.")
    ] = None,
    overwrite: Annotated[
        bool, option("--overwrite", "", "Replace the file of --save-config.", common=False)
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
    request = _request(settings, name_values(roles or [], "--map"), tolerance, sample)
    _check_save(save_config, request, overwrite=overwrite)
    result = _replayed(paths, request, bars=how == "table")
    if save_config is not None:
        write_text(result["search"]["best"]["toml"] + "\n", save_config)
    _show(result, how, verbose=verbose)
    if not result["reproduced"]:
        raise typer.Exit(EXIT_DIFFERS)


def _show(result: Json, how: str, *, verbose: bool) -> None:
    from rlpost.analysis.replay.render import page  # noqa: PLC0415 - slow to import
    from rlpost.display.page import show_result  # noqa: PLC0415

    show_result(result, partial(page, verbose=verbose), how)


def _replayed(paths: list[str], request: Json, *, bars: bool) -> Json:
    """Return the result of a comparison."""
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.replay import run as work  # noqa: PLC0415
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415

    with (
        reporting(bars=bars) as reporter,
        open_inputs(paths, reporter=reporter) as opened,
    ):
        result = work.replay(opened.paths, work.ReplayRequest(**request, reporter=reporter))
    result["input"] = ", ".join(opened.inputs) if opened.names else result["input"]
    return result


def _request(
    settings: Settings, roles: dict[str, str], tolerance: float | None, sample: int | None
) -> Json:
    """Return the fields of a Request, without the reporter."""
    set_ = {"tolerance": tolerance, "sample_tokens": sample}
    fields: Json = {name: x for name, x in set_.items() if x is not None}
    if settings.has_base:
        named = shlex.join(settings.words)
        return {**fields, "recipe": settings.recipe, "named": named, "columns_map": roles}
    given = settings.given()
    return {**fields, "columns_map": given.pop("columns", {}) | roles, "given": given}


def _check_save(path: Path | None, request: Json, *, overwrite: bool) -> None:
    """Raise an error before the work if a recipe cannot be saved."""
    from rlpost.pipeline.output.files import check_writable  # noqa: PLC0415

    if path is None:
        if overwrite:
            raise UsageError(
                "--overwrite: nothing is written; add --save-config PATH, or leave it out"
            )
        return
    if "recipe" in request:
        raise UsageError(
            f"--save-config {path}: the recipe of a search is written, and {request['named']} is "
            "not searched for; rlpost config show --format toml prints it"
        )
    check_writable(path)
    if path.exists() and not overwrite:
        raise UsageError(f"--save-config {path}: exists already", tip="--overwrite replaces it")
