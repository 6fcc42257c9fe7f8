"""`rlpost inspect`: contents, statistics and problems of rollout files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.help_screen import EXECUTION, SINGLE, argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import echo, reporting, show
from rlpost.display.reporter import SilentReporter
from rlpost.errors import FindingsError, UsageError
from rlpost.interface import functions
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from rlpost.analysis.inspect.model import Facts
    from rlpost.io.input_paths import Declaration

Json = dict[str, Any]
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
@options_of(functions.inspect, without=("evidence", "details"))
def inspect(
    chosen: Json,
    paths: Annotated[list[str], argument("IN...", "Parquet files, directories or globs.")],
    about: Annotated[
        str | None,
        option("--about", "NAME", "Show a topic, or what a check found; `checks`: which ran."),
    ] = None,
    fail_on: declared.FailOn = None,
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
            "--count -n", "INT", "Responses to show (default: 5; of --prompt all).",
            min=1, panel=SINGLE,
        ),
    ] = None,
    colour: Annotated[
        Literal["logprob", "kl", "advantage"] | None,
        option("--colour", "", "Colour tokens by this value.", panel=SINGLE),
    ] = None,
    verbose: declared.Verbose = False,
    quiet: Annotated[
        bool, option("--quiet -q", "", "Print a line for each finding alone.", panel=EXECUTION)
    ] = False,
) -> None:  # fmt: skip
    """Inspect rollout files: one screen of statistics, problems and a verdict.

    Each problem has its rows as FILE:ROW and what to do; the most severe one is the last. --verbose
    adds every table.
    """
    if about is not None:
        _check_about(about, json=how == "json")
    screens = {"about": about, "verbose": verbose, "quiet": quiet}
    checked = {name: chosen[name] for name in ("ignore", "reward_components")}
    checked["fail_on"] = fail_on
    if prompt is not None or row is not None or top is not None or worst:
        _check_unset("has no effect on single responses (--prompt, --row, --top, --worst)",
                     **screens, unit=chosen["unit"], **checked)  # fmt: skip
        of_rows = {"prompt": prompt, "row": row, "top": top, "worst": worst}
        _show_responses(paths, chosen, count=count, colour=colour, format=how, **of_rows)
        return
    if colour is not None:
        raise UsageError("--colour needs --prompt, --row, --top or --worst")
    _check_screens(how, **screens)
    with reporting(quiet=quiet, bars=how == "table" and not quiet) as reporter:
        result = functions.inspect(
            paths, **chosen, progress=reporter,
            evidence=EVIDENCE if about is None else MOST_EVIDENCE,
            details=verbose or about is not None or how == "json",
        )  # fmt: skip
    if about is not None:
        _show_about(about, result, how)
    elif quiet and how == "table":
        from rlpost.analysis.inspect import render  # noqa: PLC0415

        render.show_findings(result)
    else:
        show(result, how, verbose=verbose)
    if result.failing(fail_on):
        raise typer.Exit(FindingsError.exit_code)


def _check_about(name: str, *, json: bool) -> None:
    """Raise UsageError for a name that is neither topic nor check, or a topic as JSON."""
    from rlpost.analysis.inspect import about  # noqa: PLC0415

    about.check_name(name)
    if json and not about.has_json(name):
        raise UsageError(f"--about {name}: has no effect with --format json, which has everything")


def _check_screens(how: str, **screens: Any) -> None:
    """Raise UsageError if several options choose what is printed, or --verbose has no effect."""
    chosen = [flag_of(name) for name, value in screens.items() if value]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other")
    if screens["verbose"] and how == "json":
        raise UsageError("--verbose: has no effect with --format json, which has everything")


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


def _show_responses(paths: list[str], chosen: Json, **options: Any) -> None:
    """Print single responses; options as of `views.show`."""
    if options["row"] is not None:
        _check_unset("has no effect with --row, which names one row", where=chosen["where"])
    from rlpost.analysis.responses import views  # noqa: PLC0415
    from rlpost.interface.inputs import condition, open_inputs  # noqa: PLC0415

    columns_map = chosen["columns_map"] or {}
    kept, reporter = condition(chosen["where"], columns_map), SilentReporter(echo)
    dumps = _declared(chosen)
    with open_inputs(paths, reporter=reporter, where=kept, declared=dumps) as opened:
        if kept is not None:
            reporter.note(kept.line())
        counting = {name: chosen[name] for name in ("rollout_reward", "failures", "attempts")}
        views.show(opened.paths, made_of=opened, columns_map=opened.columns(columns_map),
                   **counting, **options)  # fmt: skip


def _declared(chosen: Json) -> Declaration:
    """Return what is said of dumps."""
    from rlpost.io.input_paths import Declaration  # noqa: PLC0415

    of_dumps = {name: chosen[name] for name in ("source", "rows", "group_size")}
    return Declaration(**of_dumps, map=chosen["columns_map"] or {})


def _check_unset(why: str, **options: object) -> None:
    """Raise UsageError if an option is set that has no effect."""
    names = [flag_of(name) for name, value in options.items() if value]
    if names:
        raise UsageError(f"{' and '.join(names)}: {why}")
