"""Reporters: they receive the progress of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Reporter(Protocol):
    """Receives the progress of a run."""

    def begin(self, passes: int) -> None:
        """Report that a run of so many passes begins; without it, passes are on their own."""

    def start(self, purpose: str, rows: int | None) -> None:
        """Report that a pass over this many rows begins; None: the number is unknown."""

    def advance(self, rows: int) -> None:
        """Report that this many more rows are done."""

    def note(self, text: str) -> None:
        """Report a fact about the input: the format of a dump."""


class SilentReporter:
    """A reporter that draws nothing.

    Args:
        print_note: is called with each note; None: notes are dropped.
    """

    def __init__(self, print_note: Callable[[str], None] | None = None) -> None:
        self._print_note = print_note

    def note(self, text: str) -> None:
        """Print the note, if notes are printed."""
        if self._print_note is not None:
            self._print_note(text)

    def begin(self, passes: int) -> None:
        """Do nothing."""

    def start(self, purpose: str, rows: int | None) -> None:
        """Do nothing."""

    def advance(self, rows: int) -> None:
        """Do nothing."""
