"""`rlpost loss`: diagnostics of policy losses on a dump."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import LOSS, argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import reporting, write_json
from rlpost.errors import UsageError
from rlpost.interface import functions
from rlpost.pipeline.options import Options  # noqa: TC001 - typer reads annotations

app = typer.Typer(add_completion=False)

_NUMBER = re.compile(r"-?[\d.]+(e-?\d+)?")  # a range that is typed in two words
EPILOG = """Examples:
  rlpost loss in.parquet
  rlpost loss in.parquet --sweep pg_clip=0.1,0.2,0.3 --sweep loss=ppo,cispo
  rlpost loss in.parquet out.parquet --preset verl --format json
  rlpost loss in.parquet --preset verl --log trainer.jsonl
"""


@command(app, epilog=EPILOG, allow_extra_args=True)
@options_of(
    functions.loss, only=("log", "log_map"), recipe=True, loss=True,
    runs=("overwrite", "device", "chunk_tokens", "workers"),
)  # fmt: skip
def loss(
    context: typer.Context,
    settings: Settings,
    chosen: dict[str, Any],
    run: Options,
    source: Annotated[str, argument("IN", "A Parquet file, dump or directory, or a quoted glob.")],
    output: Annotated[
        str | None, argument("OUT", "Copy of IN to write, with pg_loss and clip_state.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        option(
            "--sweep",
            "NAME=VALUE,...",
            "Compare values of a loss option; repeatable.",
            panel=LOSS,
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
    settings, emit = settings.with_loss_columns()
    recipe, configs = settings.recipe, settings.losses(sweep or [])
    run = replace(run, started=context.obj)
    with reporting(quiet=quiet) as reporter:
        result = functions.losses(
            source, output, recipe, configs, run, swept=bool(sweep), emit=emit, **chosen,
            progress=reporter,
        )  # fmt: skip
    from rlpost.analysis.loss import render as render_loss  # noqa: PLC0415 - slow to import
    from rlpost.analysis.loss.summary import unused_options  # noqa: PLC0415

    summary = result | settings.requested
    if not quiet:
        settings.check_rollouts(summary)
    summary["findings"] += unused_options(summary, configs, *settings.fields_set)
    write_json(summary, summary_json)
    if summary_json != "-" and not (quiet and how == "table"):
        render_loss.show(summary, how, verbose=verbose)
