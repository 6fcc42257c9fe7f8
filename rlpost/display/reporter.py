"""Reporters: they receive the progress of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Work(NamedTuple):
    """What a run of several passes has to do."""

    passes: Sequence[float]
    """The work of each pass, in any unit."""
    tokens: int
    """Of the input; 0: unknown."""


class Reporter(Protocol):
    """Receives the progress of a run."""

    def begin(self, work: Callable[[], Work]) -> None:
        """Report that a run of several passes begins; without it, passes are on their own."""

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

    def begin(self, work: Callable[[], Work]) -> None:
        """Do nothing."""

    def start(self, purpose: str, rows: int | None) -> None:
        """Do nothing."""

    def advance(self, rows: int) -> None:
        """Do nothing."""
