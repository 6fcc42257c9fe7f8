"""Commands that check: `rlpost verify`, `replay` and `doctor`."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings  # noqa: TC001 - typer reads annotations
from rlpost.cli.environment import with_variable
from rlpost.cli.help_screen import argument, command
from rlpost.cli.options import options_of
from rlpost.cli.output import reporting, show
from rlpost.errors import UnavailableError, UsageError
from rlpost.interface import functions
from rlpost.pipeline.options import Options  # noqa: TC001 - typer reads annotations

Json = dict[str, Any]
EXIT_DIFFERS = 1
OF_OUTPUT = ("emit", "emit_only", "replace", "pass_threshold")
"""Fields of a recipe that change no recorded number, so replay has no such options."""


# ---- verify ----


@command()
@options_of(functions.verify, runs=("device", "chunk_tokens", "workers"))
def verify(
    chosen: Json,
    run: Options,
    paths: Annotated[
        list[str], argument("FILE...", "Enriched files: all of a run, or its directory.")
    ],
    how: declared.Output = "table",
) -> None:
    """Recompute the columns of enriched files and compare them with the stored ones.

    The recipe is read from the file's metadata, the input from the columns that the file kept.
    Those that the recipe does not read are not decoded. Code that the metadata names is
    run only if --estimator names it.

    Exit code 0: all columns are equal; 1: something differs.

    Examples:
      rlpost verify out.parquet
      rlpost verify enriched/ --format json
    """
    with reporting(bars=how == "table") as reporter:
        result = functions.verify(paths, run, **chosen, progress=reporter)
    show(result, how)
    if not result["ok"]:
        raise typer.Exit(EXIT_DIFFERS)


# ---- replay ----


@command()
@options_of(functions.replay, without=("fixed", "named", "columns", *OF_OUTPUT), recipe=True)
def replay(
    settings: Settings,
    chosen: Json,
    paths: Annotated[list[str], argument("IN...", "Files with recorded columns.")],
    how: declared.Output = "table",
    verbose: declared.Verbose = False,
) -> None:
    """Compare the numbers that a trainer recorded with those of a recipe.

    Each recorded stage (rewards, KL, token rewards, advantages, returns) is computed from the
    input; the first that differs is named. Without --preset or --config, rlpost searches for the
    recipe. Exit code 0: reproduced; 1: a stage differs.

    Examples:
      rlpost replay dump.parquet --preset verl --estimator grpo
      rlpost replay dump.parquet
      rlpost replay dump.parquet --preset verl --numerics norm_eps=1e-8
      rlpost replay 'steps/*.parquet' --map advantages=adv --preset trl
    """
    if verbose and how == "json":
        raise UsageError("--verbose: has no effect with --format json, which has everything")
    if settings.has_base:
        recipe, named = settings.recipe, shlex.join(settings.words)
    else:
        recipe, named, chosen["fixed"] = None, "", settings.given()
    with reporting(bars=how == "table") as reporter:
        result = functions.replay(paths, recipe, named=named, **chosen, progress=reporter)
    show(result, how, verbose=verbose)
    if not result["reproduced"]:
        raise typer.Exit(EXIT_DIFFERS)


# ---- doctor ----


@command()
@options_of(runs=("device",))
def doctor(context: typer.Context, run: Options, how: declared.Output = "table") -> None:
    """Check the installation, the machine and the devices, for bug reports.

    Prints versions, memory and devices. A self-test computes advantages of made-up tokens on the
    CPU and on every other device (--device: on this one), and compares the results.

    Exit code 0: no problem was found; 5: the self-test differs, or a device is missing.

    Examples:
      rlpost doctor
      rlpost doctor --device cuda
      rlpost doctor --format markdown > report.md
    """
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.doctor import examine  # noqa: PLC0415
    from rlpost.cli.render import doctor as render_doctor  # noqa: PLC0415
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.display.tables import show_json  # noqa: PLC0415

    result = examine(run.device)
    result["problems"] = [with_variable(text, context) for text in result["problems"]]
    if how == "json":
        show_json(result)
    else:
        show_page(render_doctor.page(result), how)
    if not result["ok"]:
        raise typer.Exit(UnavailableError.exit_code)
