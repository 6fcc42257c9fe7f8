"""`rlpost inspect`: what is in rollout files, and what would hurt training on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from rlpost.cli.options import FORMAT, Format, name_values
from rlpost.cli.output import be_quiet, say
from rlpost.errors import UsageError

app = typer.Typer(add_completion=False)
FOUND = 1
SINGLE = "Single responses"

EPILOG = """Examples:

  rlpost inspect in.parquet

  rlpost inspect 'dumps/*.parquet' --map reward=score --strict

  rlpost inspect in.parquet --prompt gsm8k-17 --colour logprob

  rlpost inspect in.parquet --format json | jq .findings
"""


@app.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def inspect(
    paths: Annotated[
        list[str], typer.Argument(metavar="IN...", help="Parquet files, directories or globs.")
    ],
    roles: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="ROLE=COLUMN", help="Which column serves a role."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens/--no-tokens", help="Read log-probs, values and texts.")
    ] = True,
    footer: Annotated[
        bool, typer.Option("--footer", help="Only what the footers tell: no row is read.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where there are findings.")
    ] = False,
    pass_threshold: Annotated[
        float, typer.Option(metavar="R", help="A response passes with at least this reward.")
    ] = 1.0,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="ID", rich_help_panel=SINGLE, help="The responses of a group."),
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=SINGLE, help="One response, from 0."),
    ] = None,
    top: Annotated[
        str | None,
        typer.Option(
            metavar="reward|kl|length|advantage",
            rich_help_panel=SINGLE,
            help="The responses where it is highest.",
        ),
    ] = None,
    worst: Annotated[
        bool,
        typer.Option(
            "--worst",
            rich_help_panel=SINGLE,
            help="Where it is lowest; of rewards without --top.",
        ),
    ] = False,
    count: Annotated[
        int,
        typer.Option("-n", "--count", min=1, rich_help_panel=SINGLE, help="How many of them."),
    ] = 5,
    colour: Annotated[
        str | None,
        typer.Option(
            metavar="logprob|kl|advantage",
            rich_help_panel=SINGLE,
            help="What colours the tokens of shown responses.",
        ),
    ] = None,
    how: Annotated[Format, FORMAT] = Format.table,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no table, only errors; for --strict.")
    ] = False,
) -> None:
    """Say what is in rollout files, and what would hurt training on them.

    First of all findings, the worst first: what is wrong, rows that show it, what to do.

    Then columns by role, groups, pass@k, rewards, lengths, log-probs, masks, and what is stored.
    """
    columns_map = name_values(roles or [], "--map")
    if quiet:
        be_quiet()
    # Pyarrow takes its time to import; a wrong command line is answered before.
    from rlpost.formats.inputs import canonical_inputs  # noqa: PLC0415

    if prompt is not None or row is not None or top is not None or worst:
        if strict or footer or quiet or not tokens:
            raise UsageError(
                "--strict, --footer, --no-tokens and --quiet are about the whole input; "
                "--prompt, --row, --top and --worst show single responses"
            )
        from rlpost.analysis.responses import views  # noqa: PLC0415

        with canonical_inputs(paths, tell=say) as inputs:
            views.show(
                inputs,
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
        raise UsageError("--colour is for single responses: --prompt, --row, --top or --worst")
    with canonical_inputs(paths, tell=None if quiet else say) as inputs:
        shown = None if quiet and how is Format.table else how
        _whole(inputs, paths, columns_map, shown, (tokens, footer, strict, pass_threshold))


def _whole(
    paths: list[str],
    named: list[str],
    columns_map: dict[str, str],
    how: Format | None,
    asked: tuple[bool, bool, bool, float],
) -> None:
    """Facts of the whole input, which the user calls `named`: dumps are converted somewhere.

    With no `how` nothing is printed: the exit code is all that is asked for.
    """
    # Polars and pyarrow take half a second to import; a wrong command line is answered before.
    from rlpost.analysis.inspect import facts  # noqa: PLC0415
    from rlpost.analysis.inspect import render as render_inspect  # noqa: PLC0415

    tokens, footer, strict, pass_threshold = asked
    if footer:
        found_stored = facts.stored(paths, columns_map=columns_map)
        if how is not None:
            render_inspect.show_stored(*found_stored, how.value)
        return
    found = facts.inspect(
        paths, columns_map=columns_map, tokens=tokens, pass_threshold=pass_threshold
    )
    if how is not None:
        render_inspect.show(replace(found, inputs=named), how.value)
    if strict and found.findings:
        raise typer.Exit(FOUND)
