"""Commands that compute: `rlpost advantages` and `rlpost loss`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer  # noqa: TC002 - typer reads annotations

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import LOSS, argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import inputs_and_output, reporting, show, write_json
from rlpost.errors import SummaryError, UsageError
from rlpost.interface import functions
from rlpost.pipeline.options import Options  # noqa: TC001 - typer reads annotations

if TYPE_CHECKING:
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
_NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")  # a range that is typed in two words


# ---- advantages ----


@command()
@options_of(
    functions.advantages, recipe=True,
    runs=("overwrite", "state", "device", "chunk_tokens", "workers", "skip_existing", "fail_on",
          "engine", "ray_address"),
)  # fmt: skip
def advantages(
    context: typer.Context,
    settings: Settings,
    chosen: Json,
    run: Options,
    paths: Annotated[
        list[str] | None,
        argument("IN... OUT", "Parquet files, dumps, directories or globs; then OUT."),
    ] = None,
    summary_json: declared.SummaryJson = None,
    show_plan: Annotated[
        bool, option("--plan", "", "Print what would be computed; write nothing.")
    ] = False,
    quiet: declared.Quiet = False,
    verbose: declared.Verbose = False,
) -> None:
    """Post-process rewards, estimate advantages, write enriched Parquet.

    OUT has all columns of IN, unchanged, and the new ones.

    Examples:
      rlpost advantages in.parquet out.parquet --estimator grpo
      rlpost advantages 'dumps/*.parquet' enriched/ --map mask=loss_mask
      rlpost advantages 'dumps/*.parquet' enriched/ --steps 300:320
      rlpost advantages logs/train_data_step7.jsonl step7.parquet --preset nemo-rl
    """
    several = [*(paths or []), *[""] * (show_plan and len(paths or []) == 1)]
    inputs, output = inputs_and_output(several, "rlpost advantages IN... OUT")
    recipe, names = settings.recipe, settings.requested
    run = replace(run, asked=names if names["preset"] else {}, started=context.obj)
    if show_plan:
        _show_plan(inputs, output, recipe, run, chosen, quiet=quiet, verbose=verbose)
        return
    try:
        with reporting(quiet=quiet) as reporter:
            summary = functions.advantages(inputs, output, recipe, run, **chosen, progress=reporter)
    except SummaryError as error:
        _show(error.summary | names, summary_json, quiet=quiet, verbose=verbose)
        raise
    _show(summary | names, summary_json, quiet=quiet, verbose=verbose)
    if not quiet:
        settings.check_rollouts(summary)


def _show_plan(
    paths: list[str], output: str, recipe: Recipe, run: Options, chosen: Json,
    *, quiet: bool, verbose: bool,
) -> None:  # fmt: skip
    """Print what a run would compute; without an output if it is empty."""
    from rlpost import api  # noqa: PLC0415 - slow to import
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.interface.inputs import of_steps, open_inputs  # noqa: PLC0415
    from rlpost.io.clock import Clock  # noqa: PLC0415
    from rlpost.io.input_paths import Declaration  # noqa: PLC0415
    from rlpost.io.paths import parse_path  # noqa: PLC0415
    from rlpost.pipeline.device import AUTO, CPU  # noqa: PLC0415
    from rlpost.pipeline.run import device_for  # noqa: PLC0415
    from rlpost.render.plan import plan_page  # noqa: PLC0415

    if run.skip_existing:
        raise UsageError("--plan: excludes --skip-existing, whose files are runs of their own")
    kept = of_steps(chosen.pop("steps"), recipe, run)
    dumps = Declaration(**chosen, map=recipe.columns)
    with (
        reporting(quiet=quiet) as reporter,
        open_inputs(paths, reporter=reporter, where=kept, declared=dumps) as opened,
    ):
        recipe = opened.recipe(recipe)
        plan = api.plan(opened.paths, recipe)
        device = CPU if run.device == AUTO else run.device
        if run.engine == "local":
            device = device_for(run.device, plan.token_bytes, Clock()).name
        target = parse_path(output) if output else None
        page = plan_page(plan, target, device, overwrite=run.overwrite, verbose=verbose)
    show_page(replace(page, title=opened.named(page.title)), "table")


def _show(summary: Json, summary_json: str | None, *, quiet: bool, verbose: bool) -> None:
    """Print the summary of a run, and write it as JSON if requested."""
    from rlpost.render.summary import show_summary  # noqa: PLC0415

    if not quiet:
        show_summary(summary, verbose=verbose)
    write_json(summary, summary_json)


# ---- loss ----


@command(allow_extra_args=True)
@options_of(
    functions.loss, recipe=True, loss=True,
    runs=("overwrite", "device", "chunk_tokens", "workers"),
)  # fmt: skip
def loss(
    context: typer.Context,
    settings: Settings,
    chosen: Json,
    run: Options,
    source: Annotated[str, argument("IN", "A Parquet file, dump or directory, or a quoted glob.")],
    output: Annotated[
        str | None, argument("OUT", "Copy of IN to write, with pg_loss and clip_state.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        option(
            "--sweep", "NAME=VALUE,...", "Compare values of a loss option; repeatable.", panel=LOSS
        ),
    ] = None,
    how: declared.Output = "table",
    summary_json: declared.SummaryJson = None,
    verbose: declared.Verbose = False,
    quiet: declared.Quiet = False,
) -> None:
    """Compute policy-loss diagnostics: clipping, ratios, KL, zero gradients.

    IN needs log_probs (of the trained policy) and old_log_probs (of the policy that sampled). If it
    has no advantages, they are computed first, with the options of `rlpost advantages`.

    Examples:
      rlpost loss in.parquet
      rlpost loss in.parquet --sweep pg_clip=0.1,0.2,0.3 --sweep loss=ppo,cispo
      rlpost loss in.parquet out.parquet --preset verl --format json
      rlpost loss in.parquet --preset verl --log trainer.jsonl
    """
    if more := context.args:
        raise UsageError(
            f"{2 + len(more)} paths, {source} to {more[-1]}: one IN and at most one OUT are "
            "needed; pass several inputs as a directory or a quoted glob: "
            "rlpost loss 'dumps/*.parquet' OUT"
        )
    if verbose and (quiet or how == "json"):
        raise UsageError(f"--verbose and {'--quiet' if quiet else '--format json'}: one is enough")
    if output is not None and _NUMBER.fullmatch(output):
        tip = f"a range is one word, LOW:HIGH; ./{output} is a file"
        raise UsageError(f"OUT is {output}: a number", tip=tip)
    recipe, configs = settings.recipe, settings.losses(sweep or [])
    run = replace(run, started=context.obj)
    with reporting(quiet=quiet) as reporter:
        result = functions.loss(source, output, recipe, configs, run, **chosen, progress=reporter)
    from rlpost.analysis.loss.summary import unused_options  # noqa: PLC0415 - slow to import

    summary = type(result)(result | settings.requested)
    if not quiet:
        settings.check_rollouts(summary)
    summary["findings"] += unused_options(summary, configs, *settings.fields_set)
    write_json(summary, summary_json)
    if summary_json != "-" and not (quiet and how == "table"):
        show(summary, how, verbose=verbose)
