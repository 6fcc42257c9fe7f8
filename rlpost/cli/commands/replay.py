"""`rlpost replay`: the numbers that a trainer recorded against those of a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import command
from rlpost.cli.options import Format, option, with_recipe_options
from rlpost.cli.output import echo, write_text
from rlpost.errors import UsageError
from rlpost.recipe.flags import flag_of

Json = dict[str, Any]
app = typer.Typer(add_completion=False)
EXIT_PARTS = 1
OF_OUTPUT = ("emit", "emit_only", "replace", "pass_threshold")
"""Options of a recipe that change no recorded number."""

EPILOG = """Examples:

  rlpost replay dump.parquet --preset verl --estimator grpo

  rlpost replay dump.parquet

  rlpost replay 'steps/*.parquet' --map advantages=adv --preset trl

  rlpost replay dump.parquet --estimator gae --save-config found.toml
"""


@command(app, epilog=EPILOG)
@with_recipe_options
def replay(
    settings: Settings,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="IN...", help="Files with recorded columns: Parquet or dumps."),
    ],
    tolerance: Annotated[
        float,
        option("--tolerance", metavar="FLOAT", help="Relative difference of equal numbers."),
    ] = 1e-4,
    sample: Annotated[
        int,
        option(
            "--sample", metavar="TOKENS", common=False, help="Tokens in memory, in whole steps."
        ),
    ] = 4_000_000,
    save_config: Annotated[
        Path | None,
        option("--save-config", metavar="PATH", help="Write the found recipe as TOML."),
    ] = None,
    overwrite: Annotated[
        bool,
        option("--overwrite", common=False, help="Replace the file of --save-config."),
    ] = False,
    how: declared.Output = Format.table,
) -> None:
    """Compare the numbers that a trainer recorded with those of a recipe.

    Each recorded stage (rewards, KL, token rewards, advantages, returns) is computed from what was
    recorded before it; the first that parts is named, with examples and what it looks like.

    Without --preset or --config, rlpost searches for the recipe that reproduces the recorded
    columns. Exit code 0: reproduced; 1: a stage parts.
    """
    request = _request(settings, tolerance, sample)
    if save_config is not None:
        _check_save(save_config, request, overwrite=overwrite)
    elif overwrite:
        raise UsageError("--overwrite: nothing is written; add --save-config PATH, or leave it out")
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.replay import render as render_replay  # noqa: PLC0415
    from rlpost.analysis.replay import run as work  # noqa: PLC0415
    from rlpost.display.progress import progress  # noqa: PLC0415
    from rlpost.formats.inputs import canonical_inputs  # noqa: PLC0415

    with (
        canonical_inputs(paths, report=echo) as inputs,
        progress(quiet=how is not Format.table) as reporter,
    ):
        result = work.replay(inputs, work.Request(**request, reporter=reporter))
    result["input"] = ", ".join(paths) if inputs != paths else result["input"]
    if save_config is not None:
        if "search" not in result:
            raise UsageError(
                f"--save-config {save_config}: the recipe of a search is written, and the bundle "
                f"has a recipe: unzip -p {paths[0]} recipe.toml prints it"
            )
        write_text(result["search"]["best"]["toml"] + "\n", save_config)
    render_replay.show(result, how.value)
    if not result["reproduced"]:
        raise typer.Exit(EXIT_PARTS)


def _request(settings: Settings, tolerance: float, sample: int) -> Json:
    """Return the fields of a Request, without the reporter."""
    for name in OF_OUTPUT:
        if name in settings.typed and name not in settings.variables:
            flag = flag_of(name)
            raise UsageError(
                f"{flag}: replay writes no column, so it has no effect; leave {flag} out"
            )
    own = settings.without("columns", *OF_OUTPUT)
    fields: Json = {
        "columns_map": settings.typed.get("columns", {}),
        "tolerance": tolerance,
        "sample_tokens": sample,
    }
    if own.has_base:
        return {**fields, "recipe": own.recipe, "named": shlex.join(own.words)}
    return {**fields, "given": own.typed}


def _check_save(path: Path, request: Json, *, overwrite: bool) -> None:
    """Raise an error before the work if a recipe cannot be saved."""
    from rlpost.pipeline.outputs import check_writable  # noqa: PLC0415

    if "recipe" in request:
        raise UsageError(
            f"--save-config {path}: the recipe of a search is written, and {request['named']} is "
            "not searched for; rlpost config show --format toml prints it"
        )
    check_writable(path)
    if path.exists() and not overwrite:
        raise UsageError(f"--save-config {path}: exists already; --overwrite replaces it")
