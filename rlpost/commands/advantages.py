"""`rlpost advantages`: the main job."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rlpost.commands.options import recipe_of, with_recipe_options
from rlpost.errors import ReadWriteError, UsageError

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost advantages in.parquet out.parquet --estimator grpo

  rlpost advantages in.parquet out.parquet --estimator gae --kl-coef 0.05 --whiten-advantages

  rlpost advantages 'dumps/*.parquet' enriched/ --map mask=loss_mask --summary-json run.json

  rlpost advantages logs/train_data_step7.jsonl step7.parquet --preset nemo-rl
"""


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@with_recipe_options
def advantages(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="IN... OUT", help="Parquet files or dumps, directories, globs; then OUT."
        ),
    ],
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="RLPOST_PRESET",
            help="Give the numbers of a framework; `rlpost presets` lists them.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", envvar="RLPOST_CONFIG", help="Recipe to start from."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    show_plan: Annotated[
        bool, typer.Option("--plan", help="Print the passes and what each reads; write nothing.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(metavar="auto|cpu|cuda[:N]", envvar="RLPOST_DEVICE", help="Where to compute."),
    ] = "auto",
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="RLPOST_CHUNK_TOKENS",
            help="Tokens per piece, about; fitted to the device.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, envvar="RLPOST_WORKERS", help="Threads; default one per core, up to 8."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Running reward moments, kept over calls."),
    ] = None,
    summary_json: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write the summary as JSON; - is stdout.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    **options: Any,
) -> None:
    """Post-process rewards, estimate advantages, write enriched Parquet.

    IN keeps all its columns, unchanged; OUT has them and the new ones.
    """
    if len(paths) < (1 if show_plan else 2):
        raise UsageError("IN and OUT are needed: rlpost advantages IN... OUT")
    recipe = recipe_of(options, config, preset)
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost import api, render  # noqa: PLC0415
    from rlpost.formats.inputs import canonical_inputs  # noqa: PLC0415
    from rlpost.targets import check_writable  # noqa: PLC0415

    tell = partial(typer.echo, err=True) if not quiet else None
    if show_plan:
        with canonical_inputs(paths if len(paths) == 1 else paths[:-1], tell=tell) as inputs:
            render.show_plan(api.plan(inputs, recipe))
        return
    check_writable(None if summary_json == "-" else summary_json)
    output = Path(paths[-1])
    with (
        canonical_inputs(paths[:-1], output, overwrite=overwrite, tell=tell) as inputs,
        render.progress(quiet=quiet) as reporter,
    ):
        run = api.Options(device, chunk_tokens, workers, overwrite, state, reporter)
        summary = api.advantages(inputs, output, recipe, run)
    if inputs != paths[:-1]:
        summary["inputs"] = paths[:-1]  # what was converted for this run is gone
    # A preset may put another estimator, with other norms, in place of the one that was asked for.
    summary |= {"preset": preset, "asked_estimator": options["estimator"] or recipe.estimator}
    if not quiet:
        render.show_summary(summary)
    if summary_json is not None:
        write_json(summary, summary_json)


def write_json(summary: dict[str, Any], path: str) -> None:
    """Write a summary to a file, or with `-` to stdout; raises ReadWriteError."""
    text = json.dumps(summary, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be written: {error.strerror}") from None
