"""Commands that look at rollouts: `rlpost inspect`, `browse`, `report` and `compare`."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path  # noqa: TC003 - typer reads annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import Settings
from rlpost.cli.help_screen import ESTIMATOR, EXECUTION, SINGLE, argument, command
from rlpost.cli.options import option, options_of
from rlpost.cli.output import echo, reporting, show
from rlpost.display.console import is_terminal
from rlpost.display.reporter import SilentReporter
from rlpost.errors import FindingsError, UsageError
from rlpost.interface import functions
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlpost.analysis.inspect.model import Facts
    from rlpost.io.input_paths import Declaration
    from rlpost.recipe.recipe import Recipe

Json = dict[str, Any]
EVIDENCE = 5  # rows of each finding
MOST_EVIDENCE = 1000  # of the finding that --about names
MOST_SIDES = 6
SMALL = 64 << 20  # compressed bytes of columns that browse reads at its start
_STDERR = 2


# ---- inspect ----


@command()
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

    Examples:
      rlpost inspect in.parquet
      rlpost inspect 'dumps/*.parquet' --map reward=score --fail-on error
      rlpost inspect in.parquet --about groups
      rlpost inspect in.parquet --prompt gsm8k-17 --colour logprob
      rlpost inspect in.parquet --where "reward > 0 and step >= 300"
      rlpost inspect in.parquet --format json | jq .findings
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


# ---- browse ----


@command()
@options_of(
    functions.inspect, only=("columns_map", "where", "rollout_reward", "failures", "attempts")
)
def browse(
    chosen: Json,
    paths: Annotated[list[str], argument("IN...", "Parquet files, directories or globs.")],
) -> None:
    """Browse responses in the terminal: steps, groups, responses, tokens.

    Files may be larger than memory: keys, rewards and masks are read first, tokens when displayed.

    Examples:
      rlpost browse rollouts.parquet
      rlpost browse 'dumps/*.parquet' --where 'reward < 0.5 and step >= 300'

    Keys: arrows or hjkl move, enter opens, ] and [ are the next and previous step, ? is help.
    """
    where, columns_map = chosen.pop("where"), chosen.pop("columns_map") or {}
    if not is_terminal():
        raise UsageError("browse needs a terminal; rlpost inspect prints in pipes")
    from rlpost.analysis.browse.app import Browser  # noqa: PLC0415
    from rlpost.analysis.inspect.model import counting_lines  # noqa: PLC0415
    from rlpost.analysis.responses.index import build_index  # noqa: PLC0415
    from rlpost.errors import DataError  # noqa: PLC0415
    from rlpost.interface.inputs import condition, open_inputs  # noqa: PLC0415

    with ExitStack() as until_end:
        with reporting() as reporter:
            kept = condition(where, columns_map)
            opened = until_end.enter_context(open_inputs(paths, reporter=reporter, where=kept))
            index = build_index(opened.paths, columns_map, reporter, **chosen)
            if not len(index):
                raise DataError(f"{index.source.name}: there are no responses to browse")
            for measure in ("kl", "advantage"):
                columns = index.columns_of(measure)
                if columns and index.source.bytes_of(columns) <= SMALL:
                    index.number(measure, reporter)
        index = replace(index, made_of=opened)
        lines = [] if kept is None else [kept.line()]
        with _drawn_on_stdout():
            Browser(index, "; ".join(lines + counting_lines(index.stored_counting))).run()


@contextmanager
def _drawn_on_stdout() -> Iterator[None]:
    """Redirect stderr, where Textual draws, to stdout unless it is a terminal."""
    if sys.stderr.isatty():
        yield
        return
    redirected = os.dup(_STDERR)
    os.dup2(sys.stdout.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(redirected, _STDERR)
        os.close(redirected)


# ---- report ----


@command()
@options_of(functions.report)
def report(
    chosen: Json,
    paths: Annotated[
        list[str],
        argument("IN... OUT", "Parquet files, directories or globs; then the .html to write."),
    ],
    quiet: declared.Quiet = False,
) -> None:
    """Write an HTML report about rollout files, one file that needs no network.

    It has an overview, findings, trends over steps, distributions, groups, engine against trainer,
    and example responses with their tokens.

    Examples:
      rlpost report rollouts.parquet report.html
      rlpost report 'dumps/*.parquet' report.html --map reward=score --examples 12
    """
    *inputs, output = paths
    if not inputs or not output.endswith(".html"):
        text = f"{' '.join(paths)}: OUT is missing, a file that ends with .html"
        raise UsageError(text, tip=shlex.join(["rlpost", "report", *paths, "report.html"]))
    with reporting(quiet=quiet) as reporter:
        facts = functions.report(inputs, output, **chosen, progress=reporter)
    if not quiet:
        from rlpost.analysis.report.run import written_page  # noqa: PLC0415 - slow to import
        from rlpost.display.console import console  # noqa: PLC0415
        from rlpost.display.page import show_page  # noqa: PLC0415

        show_page(written_page(facts, output), "table", console(sys.stderr))


# ---- compare ----


@command()
@options_of(functions.compare, without=("columns_map",), recipe=True)
def compare(
    chosen: Json,
    typed: Json,
    paths: Annotated[list[str], argument("IN...", "Enriched inputs, or one input with recipes.")],
    how: declared.Output = "table",
    config: Annotated[
        list[Path] | None,
        option("--config", "PATH", "Recipe file of one side; repeatable.", panel=ESTIMATOR),
    ] = None,
    preset: Annotated[
        list[str] | None,
        option("--preset", "NAME", "Framework of one side; repeatable.", panel=ESTIMATOR),
    ] = None,
    estimator: Annotated[
        list[str] | None,
        option(
            "--estimator",
            "NAME",
            "Estimator of one side; a single one is for all sides.",
            panel=ESTIMATOR,
        ),
    ] = None,
) -> None:
    """Compare the advantages of files, or of one input under several recipes.

    Prints why they differ, correlations and sign agreement of each pair, over responses and tokens,
    and the largest differences. Responses of files are matched by their keys.

    Examples:
      rlpost compare run-a.parquet run-b.parquet
      rlpost compare in.parquet --estimator grpo --estimator rloo
      rlpost compare in.parquet --preset verl --preset trl --advantage-clip 5
      rlpost compare 'dumps/*.parquet' --config a.toml --config b.toml
    """
    recipes = variants(config, preset, estimator, typed)
    chosen["columns_map"] = Settings({"columns": typed["columns"]}).typed.get("columns")
    with reporting(bars=how == "table") as reporter:
        comparison = functions.compare(paths, recipes, **chosen, progress=reporter)
    show(comparison, how)


def variants(
    configs: Sequence[Path] | None,
    presets: Sequence[str] | None,
    estimators: Sequence[str] | None,
    options: dict[str, Any],
) -> dict[str, Recipe]:
    """Return the recipes to run: each recipe file with each preset and estimator, and their names.

    Args:
        configs: recipe files.
        presets: presets.
        estimators: estimators.
        options: of all recipes, as of `Settings`.

    Raises:
        UsageError: too many; or as the recipes.
    """
    kinds: list[Sequence[Any]] = [configs or [None], presets or [None], estimators or [None]]
    shared = {name: x for name, x in options.items() if name != "estimator"}
    if kinds == [[None]] * 3 and not Settings(shared).typed.keys() - {"columns"}:
        return {}
    vary = [len(kind) > 1 for kind in kinds]
    recipes: dict[str, Recipe] = {}
    for config, preset, estimator in product(*kinds):
        chosen = zip((config and config.stem, preset, estimator), vary, strict=True)
        name = " ".join(str(word) for word, more in chosen if word and (more or not any(vary)))
        name = name or "recipe"
        name = name if name not in recipes else f"{name} ({config or len(recipes) + 1})"
        of_side = {**shared, "estimator": estimator}
        settings = Settings(of_side, config, preset, correction=shared.get("correction"))
        recipes[name] = settings.recipe
    if len(recipes) > MOST_SIDES:
        raise UsageError(f"{len(recipes)} recipes: at most {MOST_SIDES} can be compared at once")
    return recipes
