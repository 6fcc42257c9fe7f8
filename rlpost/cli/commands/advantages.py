"""`rlpost advantages`: rewards to advantages, Parquet to enriched Parquet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import EXECUTION, RAY, argument, command
from rlpost.cli.options import option, reads_data, with_recipe_options
from rlpost.cli.output import check_summary, reporting, write_json
from rlpost.errors import SummaryError, UsageError

if TYPE_CHECKING:
    from rlpost.io.input_paths import Declaration
    from rlpost.pipeline.options import Options
    from rlpost.recipe.recipe import Recipe


app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost advantages in.parquet out.parquet --estimator grpo

  rlpost advantages 'dumps/*.parquet' enriched/ --map mask=loss_mask

  rlpost advantages 'dumps/*.parquet' enriched/ --steps 300:320

  rlpost advantages logs/train_data_step7.jsonl step7.parquet --preset nemo-rl
"""


@command(app, epilog=EPILOG)
@reads_data
@with_recipe_options()
def advantages(
    context: typer.Context,
    settings: Settings,
    paths: Annotated[
        list[str] | None,
        argument("IN... OUT", "Parquet files, dumps, directories or globs; then OUT."),
    ] = None,
    steps: Annotated[
        str | None,
        option("--steps", "FIRST:END", "Steps to compute, whole and without END (default: all)."),
    ] = None,
    source: declared.From = None,
    rows: declared.Rows = None,
    group_size: declared.GroupSize = None,
    overwrite: declared.Overwrite = False,
    state: declared.State = None,
    summary_json: declared.SummaryJson = None,
    show_plan: Annotated[
        bool, option("--plan", "", "Print what would be computed; write nothing.")
    ] = False,
    skip_existing: Annotated[
        bool,
        option(
            "--skip-existing",
            "",
            "Write each file by itself; skip those that are up to date.",
            panel=EXECUTION,
        ),
    ] = False,
    device: declared.Device = "auto",
    chunk_tokens: declared.ChunkTokens = None,
    workers: declared.Workers = None,
    fail_on: declared.FailOn = None,
    quiet: declared.Quiet = False,
    verbose: declared.Verbose = False,
    engine: Annotated[
        str,
        option(
            "--engine",
            "local|ray",
            "Compute in this process, or on Ray.",
            panel=RAY,
            common=False,
            variable=True,
        ),
    ] = "local",
    ray_address: Annotated[
        str | None,
        option(
            "--ray-address",
            "ADDRESS",
            "Ray cluster, or auto (default: RAY_ADDRESS or a new cluster).",
            panel=RAY,
            common=False,
        ),
    ] = None,
) -> None:
    """Post-process rewards, estimate advantages, write enriched Parquet.

    OUT has all columns of IN, unchanged, and the new ones.
    """
    paths = paths or []
    if len(paths) < (1 if show_plan else 2):
        raise UsageError("IN and OUT are needed: rlpost advantages IN... OUT")
    recipe, names = settings.recipe, settings.requested
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.interface import functions  # noqa: PLC0415
    from rlpost.pipeline.options import Options  # noqa: PLC0415

    run = Options(
        device, chunk_tokens, workers, overwrite, state,
        engine=engine, ray_address=ray_address, asked=names if names["preset"] else {},
        started=context.obj, skip_existing=skip_existing,
        fail_on=fail_on,
    )  # fmt: skip
    if show_plan:
        from rlpost.io.input_paths import Declaration  # noqa: PLC0415

        dumps = Declaration(source, rows, group_size, recipe.columns)
        _show_plan(paths, recipe, run, steps, dumps, quiet=quiet, verbose=verbose)
        return
    check_summary(summary_json)
    show = partial(_show, summary_json=summary_json, quiet=quiet, verbose=verbose)
    try:
        *inputs, output = paths
        with reporting(quiet=quiet) as reporter:
            summary = functions.advantages(
                inputs, output, recipe, run, steps=steps, source=source, rows=rows,
                group_size=group_size, progress=reporter,
            )  # fmt: skip
    except SummaryError as error:
        show(error.summary | names)
        raise
    show(summary | names)


def _show_plan(
    paths: list[str], recipe: Recipe, run: Options, steps: str | None, dumps: Declaration,
    *, quiet: bool, verbose: bool,
) -> None:  # fmt: skip
    """Print what a run would compute."""
    from rlpost import api  # noqa: PLC0415 - pyarrow
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.interface.inputs import of_steps, open_inputs  # noqa: PLC0415
    from rlpost.io.paths import parse_path  # noqa: PLC0415
    from rlpost.render.plan import plan_page  # noqa: PLC0415

    if run.skip_existing:
        raise UsageError("--plan: excludes --skip-existing, whose files are runs of their own")
    kept = of_steps(steps, recipe, run)
    from rlpost.io.clock import Clock  # noqa: PLC0415
    from rlpost.pipeline.device import AUTO, CPU  # noqa: PLC0415
    from rlpost.pipeline.run import device_for  # noqa: PLC0415

    inputs = paths if len(paths) == 1 else paths[:-1]
    target = None if len(paths) == 1 else parse_path(paths[-1])
    with (
        reporting(quiet=quiet) as reporter,
        open_inputs(inputs, reporter=reporter, where=kept, declared=dumps) as opened,
    ):
        recipe = opened.recipe(recipe)
        plan = api.plan(opened.paths, recipe)
        device = CPU if run.device == AUTO else run.device
        if run.engine == "local":
            device = device_for(run.device, plan.token_bytes, Clock()).name
        page = plan_page(plan, target, device, overwrite=run.overwrite, verbose=verbose)
    show_page(replace(page, title=opened.named(page.title)), "table")


def _show(summary: dict[str, Any], *, summary_json: str | None, quiet: bool, verbose: bool) -> None:
    """Print the summary of a run, and write it as JSON if requested."""
    from rlpost.render.summary import show_summary  # noqa: PLC0415

    if not quiet:
        show_summary(summary, verbose=verbose)
    write_json(summary, summary_json)
