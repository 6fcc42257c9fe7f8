"""`rlpost advantages`: the main job."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpost.cli.commands import shard
from rlpost.cli.options import asked_for, recipe_of, with_recipe_options
from rlpost.cli.output import say
from rlpost.errors import ReadWriteError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.io.paths import AnyPath


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
        list[str] | None,
        typer.Argument(
            metavar="IN... OUT", help="Parquet files or dumps, directories, globs; then OUT."
        ),
    ] = None,
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
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with a stopped run; keep complete files if this one stops."
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the output again before it is published.")
    ] = False,
    engine: Annotated[str, shard.ENGINE] = "local",
    ray_address: Annotated[str | None, shard.RAY_ADDRESS] = None,
    state_dir: Annotated[Path | None, shard.STATE_DIR] = None,
    shard_index: Annotated[int | None, shard.SHARD_INDEX] = None,
    num_shards: Annotated[int | None, shard.NUM_SHARDS] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    **options: Any,
) -> None:
    """Post-process rewards, estimate advantages, write enriched Parquet.

    IN keeps all its columns, unchanged; OUT has them and the new ones.
    """
    paths, one = paths or [], shard.asked(state_dir, shard_index, num_shards)
    if one is None and len(paths) < (1 if show_plan else 2):
        raise UsageError("IN and OUT are needed: rlpost advantages IN... OUT")
    recipe, asked = recipe_of(options, config, preset), asked_for(options, config, preset)
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost import api  # noqa: PLC0415
    from rlpost.cli.render import plan as render_plan  # noqa: PLC0415
    from rlpost.display.progress import progress  # noqa: PLC0415
    from rlpost.formats.inputs import canonical_inputs  # noqa: PLC0415
    from rlpost.io.paths import parse_path  # noqa: PLC0415
    from rlpost.pipeline.outputs import check_writable  # noqa: PLC0415

    tell = say if not quiet else None
    if show_plan:
        with canonical_inputs(paths if len(paths) == 1 else paths[:-1], tell=tell) as inputs:
            render_plan.show_plan(api.plan(inputs, recipe))
        return
    check_writable(None if summary_json == "-" else summary_json)
    if one is not None:
        with progress(quiet=quiet) as reporter:
            run = api.Options(
                device, None, workers, overwrite, state, reporter, resume, verify, engine,
                ray_address,
            )  # fmt: skip
            _tell(shard.run(one, paths, recipe, run, quiet=quiet), summary_json, quiet=quiet)
        return
    output = parse_path(paths[-1])
    with (
        canonical_inputs(paths[:-1], output, overwrite=overwrite, tell=tell) as inputs,
        progress(quiet=quiet) as reporter,
        _saying_what_stays(output, resume=resume),
    ):
        if resume and inputs != paths[:-1]:
            raise UsageError("--resume needs Parquet files: rlpost convert makes them of dumps")
        run = api.Options(
            device, chunk_tokens, workers, overwrite, state, reporter, resume, verify, engine,
            ray_address, asked if asked["preset"] else {},
        )  # fmt: skip
        summary = api.advantages(inputs, paths[-1], recipe, run)
    if inputs != paths[:-1]:
        summary["inputs"] = paths[:-1]  # what was converted for this run is gone
    _tell(summary | asked, summary_json, quiet=quiet)


@contextmanager
def _saying_what_stays(output: AnyPath, *, resume: bool) -> Iterator[None]:
    """Where a run with --resume stops with some files complete, say how it goes on."""
    from rlpost.pipeline.outputs import JOURNAL  # noqa: PLC0415

    try:
        yield
    except (KeyboardInterrupt, SystemExit, ReadWriteError):
        if resume and isinstance(output, Path) and (output / JOURNAL).is_file():
            say(f"rlpost: complete files wait in {output}: the same command goes on from there")
        raise


def _tell(summary: dict[str, Any] | None, summary_json: str | None, *, quiet: bool) -> None:
    """Show the summary of a run, and write it where that is asked for."""
    from rlpost.cli.render.summary import show_summary  # noqa: PLC0415

    if summary is None:
        return
    if not quiet:
        show_summary(summary)
    if summary_json is not None:
        write_json(summary, summary_json)


def write_json(summary: dict[str, Any], path: str) -> None:
    """Write a summary to a file, all of it or nothing, or with `-` to stdout.

    Raises:
        ReadWriteError: the file can't be written.
    """
    from rlpost.io.staged import StagedFile, file_errors  # noqa: PLC0415

    text = json.dumps(summary, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    target = Path(path)
    if target.exists() and not target.is_file():  # a pipe, or /dev/stderr
        with file_errors(target, "cannot be written"):
            target.write_text(text, encoding="utf-8")
        return
    staged = StagedFile(target)
    try:
        staged.write(0, text.encode())
        staged.complete()
        staged.publish()
    except BaseException:
        staged.discard()
        raise
