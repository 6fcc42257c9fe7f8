"""`rlpost replay`: the numbers that a trainer recorded against those of a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import Annotated, Any

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings, name_values
from rlpost.cli.help_screen import LOSS, command
from rlpost.cli.options import (
    OutputFormat,
    option,
    reads_data,
    with_loss_options,
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

  rlpost replay dump.parquet --metrics log.jsonl --preset verl --pg-clip-high 0.28
"""


@command(app, epilog=EPILOG)
@reads_data
@with_loss_options
@with_recipe_options
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
            help="Relative difference of equal numbers (default: 1e-4, metrics 1e-5).",
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
    metrics: Annotated[
        Path | None,
        option("--metrics", metavar="PATH", help="Compare this log: JSONL, CSV or console."),
    ] = None,
    micro_batch: declared.MicroBatch = None,
    ranks: declared.Ranks = None,
    updates: declared.Updates = None,
    map_metric: Annotated[
        list[str] | None,
        option(
            "--map-metric",
            metavar="METRIC=KEY",
            panel=LOSS,
            common=False,
            help="Key of the log for a metric (default: found by its name).",
        ),
    ] = None,
    how: declared.Output = OutputFormat.table,
    verbose: declared.Verbose = False,
) -> None:
    """Compare the numbers that a trainer recorded with those of a recipe.

    Each recorded stage (rewards, KL, token rewards, advantages, returns) is computed from what was
    recorded before it; the first that differs is named. Without --preset or --config, rlpost
    searches for the recipe. --metrics compares a log with the loss of --preset, --config or options
    of the loss. Exit code 0: reproduced; 1: a stage, or a metric, differs.
    """
    _check_outputs(settings)
    if verbose and how is OutputFormat.json:
        raise UsageError("--verbose: has no effect with --format json, which has everything")
    if str(metrics) == "-":
        raise UsageError("--metrics -: a log is not read from standard input: name a file")
    of_log: Json = {
        "micro_batch": micro_batch, "ranks": ranks, "updates": updates, "map_metric": map_metric,
    }  # fmt: skip
    if metrics is not None:
        others = {
            "--sample": sample,
            "--save-config": save_config,
            "--overwrite": overwrite or None,
        }
        _reject(others, "no effect with --metrics; leave one of them out")
        request = _metric_request(settings, metrics, tolerance, of_log)
        result = _replayed(paths, request, metrics=True, bars=how is OutputFormat.table)
    else:
        _check_no_metrics(settings, of_log)
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
    own = {flag: x for flag, x in typed.items() if field_of(flag) not in settings.variables}
    _reject(own, "replay writes no column, so it has no effect; leave it out")


def _check_no_metrics(settings: Settings, of_log: Json) -> None:
    """Raise UsageError for options of a log or of the loss, without a log."""
    loss = {flag_of(name): name for name in sorted(settings.loss_typed)}
    typed = {flag_of(name): x for name, x in of_log.items()} | loss
    _reject(typed, "it is of the loss, which a log has; add --metrics PATH, or leave it out")


def _reject(options: Json, why: str) -> None:
    """Raise UsageError for the first option that is set, by its flag."""
    for flag, value in options.items():
        if value not in (None, [], ()):
            raise UsageError(f"{flag}: {why}")


def _show(result: Json, how: OutputFormat, *, verbose: bool) -> None:
    from rlpost.analysis.replay.render import page  # noqa: PLC0415 - slow to import
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.display.tables import show_json  # noqa: PLC0415

    if how is OutputFormat.json:
        show_json(result)
    else:
        show_page(page(result, verbose=verbose), how.value)


def _replayed(paths: list[str], request: Json, *, metrics: bool = False, bars: bool) -> Json:
    """Return the result of a comparison."""
    # Torch and pyarrow take a second to import; a wrong command line is answered before that.
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415

    with (
        reporting(bars=bars) as reporter,
        open_inputs(paths, reporter=reporter) as own,
    ):
        if metrics:
            from rlpost.analysis.replay.metrics import run as metric_run  # noqa: PLC0415

            result = metric_run.replay_log(own.paths, metric_run.MetricRequest(**request))
        else:
            from rlpost.analysis.replay import run as work  # noqa: PLC0415

            result = work.replay(own.paths, work.ReplayRequest(**request, reporter=reporter))
    result["input"] = ", ".join(own.inputs) if own.names else result["input"]
    return result


def _metric_request(
    settings: Settings, metrics: Path, tolerance: float | None, of_log: Json
) -> Json:
    """Return the fields of a MetricRequest."""
    own = settings.without("columns", *OF_OUTPUT)
    keys = name_values(of_log.pop("map_metric") or [], "--map-metric")
    stated = frozenset(own.fields_set[1])
    if own.preset is None and not stated:
        raise UsageError(
            f"--metrics {metrics}: no configuration of the loss; a preset, a recipe file with a "
            "preset or a table [loss], or an option of the loss is needed; add --preset verl, or "
            "--loss ppo --pg-clip 0.2"
        )
    fields = {"metrics": metrics, "columns_map": settings.typed.get("columns", {}), "keys": keys}
    fields |= {"recipe": own.recipe, "loss": own.losses([])[0][0], "stated": stated}
    fields["split"] = {name: x for name, x in of_log.items() if x is not None}
    return fields | ({} if tolerance is None else {"tolerance": tolerance})


def _request(settings: Settings, tolerance: float | None, sample: int | None) -> Json:
    """Return the fields of a Request, without the reporter."""
    own = settings.without("columns", *OF_OUTPUT)
    set_ = {"tolerance": tolerance, "sample_tokens": sample}
    fields = {name: x for name, x in set_.items() if x is not None}
    fields["columns_map"] = settings.typed.get("columns", {})
    if own.has_base:
        return {**fields, "recipe": own.recipe, "named": shlex.join(own.words)}
    own.check_any_preset()
    return {**fields, "given": own.typed}


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
