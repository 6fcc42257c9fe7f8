"""`rlpost estimators`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpost.cli.options import FORMAT, Format

app = typer.Typer(add_completion=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def estimators(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ESTIMATOR", help="Only these; all if none.")
    ] = None,
    how: Annotated[Format, FORMAT] = Format.table,
) -> None:
    """List the estimators: formula, needed columns, source."""
    from rlpost.cli.render.catalogue import show_estimators  # noqa: PLC0415
    from rlpost.estimators import (  # noqa: PLC0415
        all_estimators,
        estimator_named,
    )

    found = [estimator_named(name) for name in names] if names else all_estimators()
    show_estimators(found, how.value)
