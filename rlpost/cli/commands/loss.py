"""`rlpost loss`: diagnostics of policy losses on a dump."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.arguments import Settings, name_values
from rlpost.cli.help_screen import LAYOUT, LOSS, command
from rlpost.cli.options import (
    OutputFormat,
    option,
    reads_data,
    with_loss_options,
    with_recipe_options,
)
from rlpost.cli.output import check_summary, reporting, write_json
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)
_NAME = 11  # characters of the longest name of a loss, and blanks

EPILOG = """Examples:

  rlpost loss in.parquet

  rlpost loss in.parquet --sweep pg_clip=0.1,0.2,0.3 --sweep loss=ppo,cispo

  rlpost loss in.parquet out.parquet --preset verl --format json

  rlpost loss in.parquet --aggregation token-mean --micro-batch 4 --ranks 2

  rlpost loss in.parquet out.parquet --emit loss_weight,loss_gradient
"""


def list_losses(asked: bool) -> None:  # noqa: FBT001 - typer's way
    """Print the losses and the aggregations for --list, and exit."""
    if not asked:
        return
    from textwrap import fill  # noqa: PLC0415

    from rlpost.recipe.loss import (  # noqa: PLC0415
        ABOUT,
        ABOUT_AGGREGATIONS,
        DEFAULTS,
        LossOptions,
        word,
    )

    own, indent = {*LossOptions.model_fields} - {"aggregation"}, " " * _NAME
    for name, about in ABOUT.items():
        values = {key: word(x) for key, x in DEFAULTS[name].items() if key in own}
        if values.get("pg_clip") == values.get("pg_clip_low") == values.get("pg_clip_high"):
            values = {key: x for key, x in values.items() if not key.startswith("pg_clip_")}
        defaults = [f"{key} {value}" for key, value in values.items()]
        typer.echo(f"{name:{_NAME}}{about}")
        text = "; ".join([DEFAULTS[name]["aggregation"], *defaults])
        typer.echo(fill(text, 80, initial_indent=indent, subsequent_indent=indent))
    typer.echo("\nAggregation of token losses:")
    for name, about in ABOUT_AGGREGATIONS.items():
        typer.echo(f"{name}\n{fill(about, 80, initial_indent=indent, subsequent_indent=indent)}")
    raise typer.Exit


@command(app, epilog=EPILOG, allow_extra_args=True)
@reads_data
@with_loss_options
@with_recipe_options
def loss(
    context: typer.Context,
    settings: Settings,
    source: Annotated[
        str,
        typer.Argument(metavar="IN", help="A Parquet file, dump or directory, or a quoted glob."),
    ],
    output: Annotated[
        str | None,
        typer.Argument(metavar="OUT", help="Copy of IN to write, with pg_loss and clip_state."),
    ] = None,
    _list: Annotated[
        bool,
        option(
            "--list",
            panel=LOSS,
            is_eager=True,
            callback=list_losses,
            help="List losses, their options and aggregations.",
        ),
    ] = False,
    sweep: Annotated[
        list[str] | None,
        option(
            "--sweep",
            panel=LOSS,
            metavar="NAME=VALUE,...",
            complete=completion.sweeps,
            help="Compare values of a loss option, or correction; repeatable.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "--against",
            panel=LOSS,
            metavar="NAME=VALUE,...",
            common=False,
            help="Swept values to compare gradients with (default: the first).",
        ),
    ] = None,
    micro_batch: declared.MicroBatch = None,
    micro_batch_tokens: Annotated[
        int | None,
        option(
            "--micro-batch-tokens",
            metavar="INT",
            panel=LAYOUT,
            common=False,
            help="Most tokens of a micro-batch, in place of --micro-batch.",
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        option(
            "--accumulate",
            metavar="INT",
            panel=LAYOUT,
            common=False,
            help="Micro-batches of a rank in an update (default: all).",
        ),
    ] = None,
    ranks: declared.Ranks = None,
    updates: declared.Updates = None,
    agg_level: Annotated[
        str | None,
        option(
            "--agg-level",
            metavar="micro|rank|update|step",
            panel=LAYOUT,
            common=False,
            help="What denominators count over (default: micro).",
        ),
    ] = None,
    how: declared.Output = OutputFormat.table,
    summary_json: declared.SummaryJson = None,
    overwrite: declared.Overwrite = False,
    device: declared.Device = "auto",
    chunk_tokens: declared.ChunkTokens = None,
    workers: declared.Workers = None,
    verbose: declared.Verbose = False,
    quiet: declared.Quiet = False,
) -> None:
    """Compute policy-loss diagnostics: clipping, ratios, KL, zero gradients.

    IN needs log_probs (of the trained policy) and old_log_probs (of the policy that sampled). If it
    has no advantages, they are computed first, with the options of `rlpost advantages`.
    """
    if more := context.args:
        raise UsageError(
            f"{2 + len(more)} paths, {source} to {more[-1]}: one IN and at most one OUT are "
            "needed; pass several inputs as a directory or a quoted glob: "
            "rlpost loss 'dumps/*.parquet' OUT"
        )
    if verbose and (quiet or how is OutputFormat.json):
        raise UsageError(f"--verbose and {'--quiet' if quiet else '--format json'}: one is enough")
    if sweep and output is not None:
        raise UsageError("--sweep and OUT exclude each other: OUT has the loss of one setting")
    settings, emit = settings.with_loss_columns()
    if emit and output is None:
        raise UsageError(f"--emit {','.join(emit)} needs OUT, the file that gets the column")
    recipe, losses = settings.recipe, settings.losses(sweep or [])
    # Torch and pyarrow take a second to import; errors of the command line come first.
    from rlpost.analysis.loss import render as render_loss  # noqa: PLC0415
    from rlpost.analysis.loss import run as loss_run  # noqa: PLC0415
    from rlpost.analysis.loss.layout import layout_of  # noqa: PLC0415
    from rlpost.analysis.loss.summary import unused_options  # noqa: PLC0415
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415
    from rlpost.losses.config import LossConfig  # noqa: PLC0415
    from rlpost.pipeline.options import Options  # noqa: PLC0415

    configs = [LossConfig(*one) for one in losses]
    for config in configs:
        try:
            config.loss.values(config.options)
        except UsageError as error:
            if not config.swept:
                raise
            swept = re.compile(rf"--loss-option (?=({'|'.join(config.swept)})\b)")
            raise error.reworded(partial(swept.sub, "--sweep ")) from None
    base = None if against is None else name_values(against.split(","), "--against")
    layout = layout_of(
        {
            "micro_batch": micro_batch, "micro_batch_tokens": micro_batch_tokens,
            "accumulate": accumulate, "ranks": ranks, "updates": updates, "agg_level": agg_level,
        }
    )  # fmt: skip
    check_summary(summary_json)
    with reporting(quiet=quiet) as reporter:
        run = Options(
            device, chunk_tokens, workers, overwrite, None, reporter, started=context.obj,
        )  # fmt: skip
        with open_inputs(source, output, overwrite=overwrite, reporter=reporter) as own:
            found = loss_run.loss(own.paths, output, recipe, configs, run, layout, emit, base)
            summary = own.result(found) | settings.requested
    summary["warnings"] += unused_options(summary, configs, *settings.fields_set)
    write_json(summary, summary_json)
    if summary_json != "-" and not (quiet and how is OutputFormat.table):
        render_loss.show(summary, how.value, verbose=verbose)
