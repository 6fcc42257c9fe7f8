"""Reporters: they receive the progress of a run."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives the progress of a run."""

    def start(self, purpose: str, rows: int | None) -> None:
        """Report that a pass over this many rows begins; None: the number is unknown."""

    def advance(self, rows: int) -> None:
        """Report that this many more rows are done."""


class SilentReporter:
    """A reporter that prints nothing."""

    def start(self, purpose: str, rows: int | None) -> None:
        """Do nothing."""

    def advance(self, rows: int) -> None:
        """Do nothing."""
