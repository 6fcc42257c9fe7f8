"""`rlpost estimators`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.commands.options import FORMAT, Format

app = typer.Typer(add_completion=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def estimators(how: Annotated[Format, FORMAT] = Format.table) -> None:
    """List the estimators: formula, needed columns, source."""
    from rlpost import render_lists  # noqa: PLC0415
    from rlpost.estimators import all_estimators  # noqa: PLC0415

    render_lists.show_estimators(all_estimators(), how.value)
