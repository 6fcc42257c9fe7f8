"""`rlpost loss`: what policy losses would do to a dump's tokens."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Any

import typer

from rlpost.cli.commands.advantages import write_json
from rlpost.cli.loss_options import given_by_hand, settings_of, with_loss_options
from rlpost.cli.options import FORMAT, Format, asked_for, recipe_of, with_recipe_options
from rlpost.cli.output import say
from rlpost.errors import UsageError
from rlpost.recipe.recipe import Recipe

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost loss in.parquet

  rlpost loss in.parquet --loss gspo --map log_probs=current_logps

  rlpost loss in.parquet --sweep pg_clip=0.1,0.2,0.3 --sweep loss=ppo,cispo

  rlpost loss in.parquet out.parquet --preset verl --format json
"""


def list_losses(asked: bool) -> None:  # noqa: FBT001 - typer's way
    """Print the losses and the aggregations, for --list, and leave."""
    if not asked:
        return
    from rlpost.display.tables import show_list  # noqa: PLC0415
    from rlpost.recipe.loss import (  # noqa: PLC0415
        ABOUT,
        ABOUT_AGGREGATIONS,
        DEFAULTS,
        LossOptions,
        word,
    )

    own = {*LossOptions.model_fields} - {"aggregation"}
    rows = [
        (
            name,
            f"{about} ({DEFAULTS[name]['aggregation']})",
            ", ".join(f"{key} {word(x)}" for key, x in DEFAULTS[name].items() if key in own),
        )
        for name, about in ABOUT.items()
    ]
    show_list(("loss", "what it is (aggregation)", "its options by default"), rows, "table")
    typer.echo()
    show_list(("aggregation", "of the losses of tokens"), [*ABOUT_AGGREGATIONS.items()], "table")
    raise typer.Exit


@app.command(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "allow_extra_args": True},
)
@with_loss_options
@with_recipe_options
def loss(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="One Parquet file or dump; several: their directory, or a quoted glob.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Argument(metavar="OUT", help="New; gets pg_loss and clip_state beside IN's columns."),
    ] = None,
    _list: Annotated[
        bool,
        typer.Option(
            "--list",
            is_eager=True,
            callback=list_losses,
            help="List the losses, their options and the aggregations.",
        ),
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,...",
            help="Compare values of a loss option in one pass; repeated: all their combinations. "
            "Details by position, step and domain are told of one setting alone.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="RLPOST_PRESET",
            help="The loss and the numbers of a framework; `rlpost presets` lists them.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            envvar="RLPOST_CONFIG",
            help="Recipe to start from, and its table of the loss.",
        ),
    ] = None,
    how: Annotated[Format, FORMAT] = Format.table,
    summary_json: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the summary as JSON; - is stdout.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    device: Annotated[
        str,
        typer.Option(metavar="auto|cpu|cuda[:N]", envvar="RLPOST_DEVICE", help="Where to compute."),
    ] = "auto",
    chunk_tokens: Annotated[
        int | None,
        typer.Option(min=1, envvar="RLPOST_CHUNK_TOKENS", help="Tokens per piece, about."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, envvar="RLPOST_WORKERS", help="Threads; default one per core, up to 8."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no table, only errors.")
    ] = False,
    **options: Any,
) -> None:
    """Tell what a policy loss would do: what it clips, what learns nothing, what it comes to.

    IN holds log_probs of the policy being trained and old_log_probs of the one that sampled. Where
    it has no advantages they are made first, as `rlpost advantages` makes them, with its options.
    """
    if more := context.args:
        raise UsageError(
            f"{2 + len(more)} paths, {source} to {more[-1]}: one IN and one OUT are meant; several "
            "inputs are their directory, or a glob in quotes: rlpost loss 'dumps/*.parquet' OUT"
        )
    if sweep and output is not None:
        raise UsageError("--sweep and OUT exclude each other: OUT holds the loss of one setting")
    asked = {name: value for name, value in options.items() if _of_recipe(name)}
    recipe = recipe_of(asked, config, preset)
    chosen = settings_of(options, sweep or [], config, preset)
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.analysis.loss import render as render_loss  # noqa: PLC0415
    from rlpost.analysis.loss import run as loss_run  # noqa: PLC0415
    from rlpost.analysis.loss.summary import unused_options  # noqa: PLC0415
    from rlpost.display.progress import progress  # noqa: PLC0415
    from rlpost.formats.inputs import canonical_inputs  # noqa: PLC0415
    from rlpost.io.paths import parse_path  # noqa: PLC0415
    from rlpost.losses.config import LossConfig  # noqa: PLC0415
    from rlpost.pipeline.options import Options  # noqa: PLC0415
    from rlpost.pipeline.outputs import check_writable  # noqa: PLC0415

    configs = [LossConfig(made, swept) for made, swept in chosen]
    check_writable(None if summary_json == "-" else summary_json)
    tell = say if not quiet else None
    target = None if output is None else parse_path(output)
    with (
        canonical_inputs([source], target, overwrite=overwrite, tell=tell) as inputs,
        progress(quiet=quiet) as reporter,
    ):
        how_run = Options(device, chunk_tokens, workers, overwrite, None, reporter)
        summary = loss_run.loss(inputs, output, recipe, configs, how_run)
    if inputs != [source]:
        summary["inputs"] = [source]  # what was converted for this run is gone
    summary |= asked_for(options, config, preset)
    summary["warnings"] += unused_options(summary, configs, *given_by_hand(options, config))
    if summary_json is not None:
        write_json(summary, summary_json)
    if summary_json != "-" and not (quiet and how is Format.table):
        render_loss.show(summary, how.value)


def _of_recipe(name: str) -> bool:
    return name.removeprefix("no_") in Recipe.model_fields
