"""What commands say on stderr beside their data."""

from __future__ import annotations

import logging

import typer

from rlpost.io.text import printable


def say(text: str) -> None:
    """Say a line or several; control characters of names and texts are shown, not sent."""
    typer.echo(printable(text), err=True)


def be_quiet() -> None:
    """Let no warnings be said that are logged: only errors."""
    logging.getLogger("rlpost").setLevel(logging.ERROR)
