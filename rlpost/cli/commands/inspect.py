"""`rlpost inspect`: contents, statistics and problems of rollout files."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli import options as declared  # noqa: TC001 - typer reads annotations
from rlpost.cli.arguments import name_values
from rlpost.cli.help_screen import SINGLE, command
from rlpost.cli.options import OutputFormat, RolloutRewards, option
from rlpost.cli.output import reporting
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)
EXIT_FINDINGS = 1

EPILOG = """Examples:

  rlpost inspect in.parquet

  rlpost inspect 'dumps/*.parquet' --map reward=score --strict

  rlpost inspect in.parquet --prompt gsm8k-17 --colour logprob

  rlpost inspect in.parquet --format json | jq .findings
"""


@command(app, epilog=EPILOG)
def inspect(
    context: typer.Context,
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
    strict: Annotated[
        bool, option("--strict", help="Exit with code 1 if there are findings.")
    ] = False,
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
        context.fail("Missing argument 'IN...'.")
    columns_map = name_values(roles or [], "--map")
    # Polars and pyarrow take half a second to import; a wrong command line is reported before.
    from rlpost.interface.inputs import open_inputs  # noqa: PLC0415

    if prompt is not None or row is not None or top is not None or worst:
        if strict or footer or quiet or not tokens or rollout_id is not None:
            raise UsageError(
                "--strict, --footer, --no-tokens, --quiet and --rollout-id apply to the whole "
                "input, not to single responses (--prompt, --row, --top, --worst)"
            )
        from rlpost.analysis.responses import views  # noqa: PLC0415

        with reporting(bars=False) as reporter, open_inputs(paths, reporter=reporter) as own:
            views.show(
                own.paths,
                names=own.names,
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
    if colour is not None:
        raise UsageError("--colour needs --prompt, --row, --top or --worst")
    from rlpost.analysis.inspect import facts, render  # noqa: PLC0415
    from rlpost.interface import functions  # noqa: PLC0415

    prints = None if quiet and how is OutputFormat.table else how.value
    table = prints == OutputFormat.table.value
    with reporting(quiet=quiet, bars=table and not footer) as reporter:
        if footer:
            with open_inputs(paths, reporter=reporter) as own:
                stored = facts.stored(own.paths, columns_map=columns_map)
            if prints is not None:
                render.show_stored(*stored, prints)
            return
        result = functions.inspect(
            paths,
            columns_map=columns_map,
            tokens=tokens,
            pass_threshold=pass_threshold,
            rollout_id=rollout_id,
            rollout_reward=rollout_reward.value,
            progress=reporter,
        )
    if prints is not None:
        render.show(result, prints)
    if strict and result.findings:
        raise typer.Exit(EXIT_FINDINGS)
