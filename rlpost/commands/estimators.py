"""`rlpost estimators`: what there is."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def estimators() -> None:
    """List the estimators: formula, needed columns, source."""
    from rlpost import render  # noqa: PLC0415
    from rlpost.estimators import ESTIMATORS  # noqa: PLC0415

    render.show_estimators(list(ESTIMATORS.values()))
