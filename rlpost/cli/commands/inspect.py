"""`rlpost inspect`: contents, statistics and problems of rollout files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlpost.cli import options as declared
from rlpost.cli.arguments import components_of, name_values
from rlpost.cli.help_screen import SINGLE, HelpAll, argument, command
from rlpost.cli.options import (
    option,
    reads_data,
)
from rlpost.cli.output import echo, reporting
from rlpost.display.reporter import SilentReporter
from rlpost.errors import FindingsError, UsageError
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts

app = typer.Typer(add_completion=False)
EVIDENCE = 5  # rows of each finding
MOST_EVIDENCE = 1000  # of the finding that --about names

EPILOG = """Examples:

  rlpost inspect in.parquet

  rlpost inspect 'dumps/*.parquet' --map reward=score --fail-on error

  rlpost inspect in.parquet --about groups

  rlpost inspect in.parquet --prompt gsm8k-17 --colour logprob

  rlpost inspect in.parquet --where "reward > 0 and step >= 300"

  rlpost inspect in.parquet --format json | jq .findings
"""


@command(app, epilog=EPILOG)
@reads_data
def inspect(
    paths: Annotated[list[str], argument("IN...", "Parquet files, directories or globs.")],
    roles: declared.Map = None,
    where: declared.Where = None,
    source: declared.From = None,
    rows: declared.Rows = None,
    group_size: declared.GroupSize = None,
    tokens: Annotated[
        bool, option("--tokens/--no-tokens", "", "Read tokens, too (default: yes).")
    ] = True,
    footer: Annotated[
        bool, option("--footer", "", "Read file footers only.", common=False)
    ] = False,
    about: Annotated[
        str | None,
        option("--about", "NAME", "Show a topic, or what a check found; `checks`: which ran."),
    ] = None,
    fail_on: declared.FailOn = None,
    ignore: Annotated[
        list[str] | None, option("--ignore", "CHECK", "Do not run this check; repeatable.")
    ] = None,
    pass_threshold: declared.PassThreshold = 1.0,
    unit: declared.Unit = None,
    rollout_reward: declared.RolloutReward = "equal",
    failures: declared.Failures = "drop",
    attempts: declared.Attempts = "newest",
    reward_components: declared.Components = None,
    component_weights: declared.Weights = None,
    how: declared.Output = "table",
    prompt: Annotated[
        str | None, option("--prompt", "ID", "Show the responses of this group.", panel=SINGLE)
    ] = None,
    row: Annotated[
        str | None,
        option("--row", "[FILE:]INT", "Show the response of a row, from 0.", panel=SINGLE),
    ] = None,
    top: Annotated[
        Literal["reward", "kl", "length", "advantage"] | None,
        option("--top", "", "Show the responses with the highest values.", panel=SINGLE),
    ] = None,
    worst: Annotated[
        bool,
        option(
            "--worst", "", "Show the lowest values of --top (default: of rewards).", panel=SINGLE
        ),
    ] = False,
    count: Annotated[
        int | None,
        option(
            "--count -n",
            "INT",
            "Responses to show (default: 5; of --prompt all).",
            min=1,
            panel=SINGLE,
        ),
    ] = None,
    colour: Annotated[
        Literal["logprob", "kl", "advantage"] | None,
        option("--colour", "", "Colour tokens by this value.", panel=SINGLE),
    ] = None,
    verbose: declared.Verbose = False,
    quiet: Annotated[
        bool,
        option("--quiet -q", "", "Print a line for each finding alone.", panel=declared.EXECUTION),
    ] = False,
    help_all: HelpAll = False,
) -> None:
    """Inspect rollout files: one screen of statistics, problems and a verdict.

    Each problem has its rows as FILE:ROW and what to do; the most severe one is the last. --verbose
    adds every table.
    """
    del help_all  # eager: it ends the program
    if about is not None:
        _check_about(about, json=how == "json")
    columns_map = name_values(roles or [], "--map")
    of_dumps: dict[str, Any] = {"source": source, "rows": rows, "group_size": group_size}
    components = components_of(reward_components, component_weights)
    screens: dict[str, object] = {"about": about, "verbose": verbose, "quiet": quiet}
    checked: dict[str, object] = {
        "fail_on": fail_on, "ignore": ignore, "reward_components": components,
    }  # fmt: skip
    if prompt is not None or row is not None or top is not None or worst:
        _check_unset(
            "has no effect on single responses (--prompt, --row, --top, --worst)",
            **screens,
            footer=footer,
            no_tokens=not tokens,
            unit=unit,
            **checked,
        )
        _show_responses(
            paths, where, of_dumps, columns_map=columns_map, count=count, colour=colour, format=how,
            prompt=prompt, row=row, top=top, worst=worst,
            rollout_reward=rollout_reward, failures=failures, attempts=attempts,
        )  # fmt: skip
        return
    if colour is not None:
        raise UsageError("--colour needs --prompt, --row, --top or --worst")
    if footer:
        no_rows = "has no effect with --footer, which reads no rows"
        _check_unset(no_rows, about=about, verbose=verbose, where=where, **checked)
        _show_footer(paths, of_dumps, columns_map, None if quiet and how == "table" else how)
        return
    _check_screens(how, **screens)
    from rlpost.interface import functions  # noqa: PLC0415 - polars takes a second to import

    table = how == "table"
    with reporting(quiet=quiet, bars=table and not quiet) as reporter:
        result = functions.inspect(
            paths,
            columns_map=columns_map,
            where=where,
            **of_dumps,
            tokens=tokens,
            pass_threshold=pass_threshold,
            unit=unit,
            rollout_reward=rollout_reward,
            failures=failures,
            attempts=attempts,
            reward_components=components,
            ignore=ignore or [],
            evidence=EVIDENCE if about is None else MOST_EVIDENCE,
            details=verbose or about is not None or how == "json",
            progress=reporter,
        )
    _show_facts(result, how, about, verbose=verbose, quiet=quiet)
    if result.failing(fail_on):
        raise typer.Exit(FindingsError.exit_code)


def _check_about(name: str, *, json: bool) -> None:
    """Raise UsageError for a name that is neither topic nor check, or a topic as JSON."""
    from rlpost.analysis.inspect import about  # noqa: PLC0415

    about.check_name(name)
    if json and not about.has_json(name):
        raise UsageError(f"--about {name}: has no effect with --format json, which has everything")


def _check_screens(how: str, **screens: object) -> None:
    """Raise UsageError if several options choose what is printed, or --verbose has no effect."""
    chosen = [flag_of(name) for name, value in screens.items() if value]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other")
    if screens["verbose"] and how == "json":
        raise UsageError("--verbose: has no effect with --format json, which has everything")


def _show_facts(facts: Facts, how: str, about: str | None, *, verbose: bool, quiet: bool) -> None:
    """Print the overview, every table, a topic, or with `quiet` a line for each finding."""
    from rlpost.analysis.inspect import render  # noqa: PLC0415
    from rlpost.display.page import show_page  # noqa: PLC0415

    if about is not None:
        _show_about(about, facts, how)
    elif quiet and how == "table":
        render.show_findings(facts)
    elif how == "json":
        render.show(facts, "json")
    else:
        show_page(render.page(facts, verbose=verbose), how)


def _show_about(name: str, facts: Facts, how: str) -> None:
    """Print the page of a topic or of a check."""
    from rlpost.analysis.inspect import about  # noqa: PLC0415
    from rlpost.analysis.inspect.about import checks  # noqa: PLC0415
    from rlpost.display.page import show_page  # noqa: PLC0415
    from rlpost.display.tables import show_json  # noqa: PLC0415

    if how != "json":
        show_page(about.about(name, facts), how)
    elif name == "checks":
        show_json(checks.checks_json(facts))
    else:
        show_json(checks.check_json(name, facts))


def _show_responses(
    paths: list[str], where: str | None, of_dumps: dict[str, Any], **options: Any
) -> None:
    """Print single responses; options as of `views.show`."""
    if options["row"] is not None:
        _check_unset("has no effect with --row, which names one row", where=where)
    from rlpost.analysis.responses import views  # noqa: PLC0415
    from rlpost.interface.inputs import condition, open_inputs  # noqa: PLC0415
    from rlpost.io.input_paths import Declaration  # noqa: PLC0415

    columns_map = options["columns_map"]
    dumps = Declaration(**of_dumps, map=columns_map)
    kept, reporter = condition(where, columns_map), SilentReporter(echo)
    with open_inputs(paths, reporter=reporter, where=kept, declared=dumps) as opened:
        options["columns_map"] = opened.columns(columns_map)
        if kept is not None:
            reporter.note(kept.line())
        views.show(opened.paths, made_of=opened, **options)


def _show_footer(
    paths: list[str], of_dumps: dict[str, Any], columns_map: dict[str, str], prints: str | None
) -> None:
    """Print what footers have, without reading rows; print nothing if `prints` is None."""
    from rlpost.analysis.inspect import facts, render  # noqa: PLC0415
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415
    from rlpost.io.input_paths import Declaration  # noqa: PLC0415

    dumps = Declaration(**of_dumps, map=columns_map)
    with (
        reporting(bars=False) as reporter,
        open_inputs(paths, reporter=reporter, declared=dumps) as opened,
    ):
        stored = facts.stored(opened.paths, columns_map=opened.columns(columns_map))
    if prints is not None:
        render.show_stored(*stored, prints)


def _check_unset(why: str, **options: object) -> None:
    """Raise UsageError if an option is set that has no effect."""
    names = [flag_of(name) for name, value in options.items() if value]
    if names:
        raise UsageError(f"{' and '.join(names)}: {why}")
