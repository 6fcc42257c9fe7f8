"""`rlpost list`: the estimators, losses, presets, dumps, export targets and checks there are."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli import completion
from rlpost.cli import options as declared
from rlpost.cli.help_screen import argument, command

EPILOG = """Examples:
  rlpost list estimators
  rlpost list estimators gae grpo
  rlpost list presets verl > verl.toml
  rlpost list losses --format json
"""

app = typer.Typer(add_completion=False)


@command(app, name="list", epilog=EPILOG)
def show(
    kind: Annotated[
        str | None, argument("KIND", "What to list (default: the kinds).", completion.kinds)
    ] = None,
    names: Annotated[
        list[str] | None,
        argument("NAME...", "All about these (default: a line for each).", completion.listed),
    ] = None,
    how: declared.Output = "table",
) -> None:
    """List what there is of a kind, or print all about one by its name.

    KIND is estimators, losses, presets (of --preset), dumps (that convert reads), targets (of
    export) or checks (of inspect). A preset is printed as a TOML file for --config; `default` has
    all numerics. Estimators of installed packages are imported only by name.
    """
    from rlpost.cli.render import catalogue  # noqa: PLC0415 - rich takes a while to import

    if kind == "presets" and names:
        for name in names:
            catalogue.show_preset(name, how)
    else:
        catalogue.show(kind, names or [], how)
