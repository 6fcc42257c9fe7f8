"""`rlpost inspect`: contents, statistics and problems of rollout files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.arguments import Settings, expected, name_values
from rlpost.cli.help_screen import SINGLE, command, usage_of
from rlpost.cli.options import (
    OutputFormat,
    RolloutRewards,
    option,
    reads_data,
    with_component_options,
)
from rlpost.cli.output import reporting
from rlpost.errors import FindingsError, UsageError
from rlpost.recipe.flags import flag_of

app = typer.Typer(add_completion=False)

EPILOG = """Examples:

  rlpost inspect in.parquet

  rlpost inspect 'dumps/*.parquet' --map reward=score --fail-on error

  rlpost inspect in.parquet --prompt gsm8k-17 --colour logprob

  rlpost inspect in.parquet --format json | jq .findings
"""


@command(app, epilog=EPILOG)
@reads_data
@with_component_options
def inspect(
    context: typer.Context,
    settings: Settings,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IN...", help="Parquet files, directories or globs.", show_default=False
        ),
    ] = None,
    roles: declared.Map = None,
    tokens: Annotated[
        bool,
        option("--tokens/--no-tokens", help="Read tokens, too (default: yes)."),
    ] = True,
    footer: Annotated[bool, option("--footer", help="Read file footers only.")] = False,
    checks: Annotated[bool, option("--checks", help="List the checks and what they mean.")] = False,
    fail_on: declared.FailOn = None,
    ignore: Annotated[
        list[str] | None,
        option(
            "--ignore",
            metavar="CHECK",
            complete=completion.checks,
            help="Do not run this check; repeatable.",
        ),
    ] = None,
    expect: declared.Expect = None,
    pass_threshold: declared.PassThreshold = 1.0,
    rollout_id: declared.RolloutId = None,
    rollout_reward: declared.RolloutReward = RolloutRewards.equal,
    how: declared.Output = OutputFormat.table,
    prompt: Annotated[
        str | None,
        option("--prompt", metavar="ID", panel=SINGLE, help="Show the responses of this group."),
    ] = None,
    row: Annotated[
        int | None,
        option("--row", metavar="INT", panel=SINGLE, help="Show the response of this row, from 0."),
    ] = None,
    top: Annotated[
        str | None,
        option(
            "--top",
            metavar="reward|kl|length|advantage",
            panel=SINGLE,
            help="Show the responses with the highest values.",
        ),
    ] = None,
    worst: Annotated[
        bool,
        option(
            "--worst",
            panel=SINGLE,
            help="Show the lowest values of --top (default: of rewards).",
        ),
    ] = False,
    count: Annotated[
        int,
        option(
            "--count", "-n", metavar="INT", min=1, panel=SINGLE, help="Number of responses to show."
        ),
    ] = 5,
    colour: Annotated[
        str | None,
        option(
            "--colour",
            metavar="logprob|kl|advantage",
            panel=SINGLE,
            help="Color tokens by this value.",
        ),
    ] = None,
    quiet: declared.Quiet = False,
) -> None:
    """Inspect rollout files: contents, statistics and problems.

    Findings come first, the most severe one on top: the problem, rows that show it, what to do.

    Then: columns by role, groups, pass@k, rewards, lengths, log-probs, masks, storage.
    """
    if checks:
        from rlpost.analysis.inspect import render  # noqa: PLC0415

        render.show_checks(how.value)
        return
    if not paths:
        raise UsageError("IN... is missing", tip=usage_of(context))
    columns_map, facts = name_values(roles or [], "--map"), expected(expect)
    components = settings.components
    checked: dict[str, object] = {
        "fail_on": fail_on,
        "ignore": ignore,
        "expect": facts,
        "reward_components": components,
    }
    if prompt is not None or row is not None or top is not None or worst:
        _check_unset(
            "apply to the whole input, not to single responses (--prompt, --row, --top, --worst)",
            footer=footer,
            quiet=quiet,
            no_tokens=not tokens,
            rollout_id=rollout_id,
            **checked,
        )
        _show_responses(
            paths,
            columns_map=columns_map,
            prompt=prompt,
            row=row,
            top=top,
            worst=worst,
            count=count,
            colour=colour,
            format=how.value,
        )
        return
    if footer:
        no_rows = "has no effect with --footer, which reads no rows"
        _check_unset(no_rows, **checked)
        _show_footer(paths, columns_map, None if quiet and how is OutputFormat.table else how.value)
        return
    if colour is not None:
        raise UsageError("--colour needs --prompt, --row, --top or --worst")
    from rlpost.analysis.inspect import render  # noqa: PLC0415
    from rlpost.interface import functions  # noqa: PLC0415

    prints = None if quiet and how is OutputFormat.table else how.value
    table = prints == OutputFormat.table.value
    with reporting(quiet=quiet, bars=table) as reporter:
        result = functions.inspect(
            paths,
            columns_map=columns_map,
            tokens=tokens,
            pass_threshold=pass_threshold,
            rollout_id=rollout_id,
            rollout_reward=rollout_reward.value,
            reward_components=components,
            ignore=ignore or [],
            expect=facts,
            progress=reporter,
        )
    if prints is not None:
        render.show(result, prints)
    else:
        render.show_findings(result)
    if result.failing(None if fail_on is None else fail_on.value):
        raise typer.Exit(FindingsError.exit_code)


def _show_responses(paths: list[str], **options: Any) -> None:
    """Print single responses; options as of `views.show`."""
    from rlpost.analysis.responses import views  # noqa: PLC0415
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415

    with reporting(bars=False) as reporter, open_inputs(paths, reporter=reporter) as own:
        views.show(own.paths, names=own.names, **options)


def _show_footer(paths: list[str], columns_map: dict[str, str], prints: str | None) -> None:
    """Print what footers have, without reading rows; print nothing if `prints` is None."""
    from rlpost.analysis.inspect import facts, render  # noqa: PLC0415
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415

    with reporting(bars=False) as reporter, open_inputs(paths, reporter=reporter) as own:
        stored = facts.stored(own.paths, columns_map=columns_map)
    if prints is not None:
        render.show_stored(*stored, prints)


def _check_unset(why: str, **options: object) -> None:
    """Raise UsageError if an option is set that has no effect."""
    names = [flag_of(name) for name, value in options.items() if value]
    if names:
        raise UsageError(f"{' and '.join(names)}: {why}")
