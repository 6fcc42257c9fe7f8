"""What commands say on stderr beside their data."""

from __future__ import annotations

import typer

from rlpost.controls import shown


def say(text: str) -> None:
    """Say a line or several; control characters of names and texts are shown, not sent."""
    typer.echo(shown(text), err=True)
