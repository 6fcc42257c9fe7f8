"""`rlpost replay`: the numbers that a trainer recorded against those of a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import command
from rlpost.cli.options import (
    OutputFormat,
    option,
    reads_data,
    with_recipe_options,
)
from rlpost.cli.output import reporting, write_text
from rlpost.errors import UsageError
from rlpost.recipe.flags import field_of, flag_of

Json = dict[str, Any]
app = typer.Typer(add_completion=False)
EXIT_DIFFERS = 1
OF_OUTPUT = ("emit", "emit_only", "replace", "pass_threshold")
"""Options of a recipe that change no recorded number."""

EPILOG = """Examples:

  rlpost replay dump.parquet --preset verl --estimator grpo

  rlpost replay dump.parquet

  rlpost replay 'steps/*.parquet' --map advantages=adv --preset trl

  rlpost replay dump.parquet --estimator gae --save-config found.toml
"""


@command(app, epilog=EPILOG)
@reads_data
@with_recipe_options()
def replay(
    settings: Settings,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN...", help="Files with recorded columns."),
    ],
    tolerance: Annotated[
        float | None,
        option(
            "--tolerance",
            metavar="FLOAT",
            help="Relative difference of equal numbers (default: 1e-4).",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        option(
            "--sample",
            metavar="TOKENS",
            common=False,
            help="Tokens in memory, in whole steps (default: 4,000,000).",
        ),
    ] = None,
    save_config: Annotated[
        Path | None,
        option("--save-config", metavar="PATH", help="Write the found recipe as TOML."),
    ] = None,
    overwrite: Annotated[
        bool,
        option("--overwrite", common=False, help="Replace the file of --save-config."),
    ] = False,
    how: declared.Output = OutputFormat.table,
    verbose: declared.Verbose = False,
) -> None:
    """Compare the numbers that a trainer recorded with those of a recipe.

    Each recorded stage (rewards, KL, token rewards, advantages, returns) is computed from what was
    recorded before it; the first that differs is named. Without --preset or --config, rlpost
    searches for the recipe. Exit code 0: reproduced; 1: a stage differs.
    """
    _check_outputs(settings)
    if verbose and how is OutputFormat.json:
        raise UsageError("--verbose: has no effect with --format json, which has everything")
    request = _request(settings, tolerance, sample)
    _check_save(save_config, request, overwrite=overwrite)
    result = _replayed(paths, request, bars=how is OutputFormat.table)
    if save_config is not None:
        write_text(result["search"]["best"]["toml"] + "\n", save_config)
    _show(result, how, verbose=verbose)
    if not result["reproduced"]:
        raise typer.Exit(EXIT_DIFFERS)


def _check_outputs(settings: Settings) -> None:
    """Raise UsageError for options of columns that are written."""
    typed = {flag_of(name): settings.typed.get(name) for name in OF_OUTPUT}
    for flag, value in typed.items():
        if value not in (None, [], ()) and field_of(flag) not in settings.variables:
            raise UsageError(f"{flag}: replay writes no column, so it has no effect; leave it out")


def _show(result: Json, how: OutputFormat, *, verbose: bool) -> None:
    from rlpost.analysis.replay.render import page  # noqa: PLC0415 - slow to import
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.display.tables import show_json  # noqa: PLC0415

    if how is OutputFormat.json:
        show_json(result)
    else:
        show_page(page(result, verbose=verbose), how.value)


def _replayed(paths: list[str], request: Json, *, bars: bool) -> Json:
    """Return the result of a comparison."""
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.replay import run as work  # noqa: PLC0415
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415

    with (
        reporting(bars=bars) as reporter,
        open_inputs(paths, reporter=reporter) as own,
    ):
        result = work.replay(own.paths, work.ReplayRequest(**request, reporter=reporter))
    result["input"] = ", ".join(own.inputs) if own.names else result["input"]
    return result


def _request(settings: Settings, tolerance: float | None, sample: int | None) -> Json:
    """Return the fields of a Request, without the reporter."""
    own = settings.without("columns", *OF_OUTPUT)
    set_ = {"tolerance": tolerance, "sample_tokens": sample}
    fields = {name: x for name, x in set_.items() if x is not None}
    fields["columns_map"] = settings.typed.get("columns", {})
    if own.has_base:
        return {**fields, "recipe": own.recipe, "named": shlex.join(own.words)}
    return {**fields, "given": own.given()}


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
