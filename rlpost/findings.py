"""Findings: how a check is declared, and what it found; of `inspect` and of `replay`.

A check is one function. Its name is the name of its finding; the first paragraph of its docstring
is what the finding is, the others are why it matters and, at last, what to do. A decorator adds it
to a registry, from which lists of checks and the tables of the manual are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

Run = TypeVar("Run", bound=Callable[..., Any])
Level = Literal["error", "warning"]


class Place(NamedTuple):
    """A row of a file, from 0; the whole file if `row` is None.

    >>> str(Place("a.parquet", 3))
    'a.parquet:3'
    """

    file: str
    row: int | None = None

    def __str__(self) -> str:
        """Return `FILE:ROW`, as `rlpost inspect --row` takes it."""
        return self.file if self.row is None else f"{self.file}:{self.row}"


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    check: str
    level: Level
    text: str
    """Where, what came, and what follows from it, with numbers."""
    advice: str
    """What is needed, and what to do."""
    columns: tuple[str, ...] = ()
    """That show it."""
    rows: tuple[Place, ...] = ()
    """The first that show it."""
    option: str = ""
    """To add to the command."""

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "check": self.check,
            "level": self.level,
            "text": f"{self.text}{'. ' if self.advice[:1].isupper() else '; '}{self.advice}",
            "columns": [*self.columns],
            "rows": [str(place) for place in self.rows],
            "option": self.option or None,
        }


@dataclass(frozen=True)
class Check(Generic[Run]):
    """A check, as its function declares it."""

    run: Run

    @property
    def name(self) -> str:
        """The name of the finding."""
        return self.run.__name__

    @property
    def meaning(self) -> str:
        """What the finding is, on one line."""
        return self._paragraphs[0]

    @property
    def advice(self) -> str:
        """Why it matters and what to do, on one line; empty if the finding has its own advice."""
        return " ".join(self._paragraphs[1:])

    @property
    def remedy(self) -> str:
        """What to do: the last paragraph, on one line."""
        return self._paragraphs[-1]

    @property
    def _paragraphs(self) -> list[str]:
        return [" ".join(paragraph.split()) for paragraph in (self.run.__doc__ or "").split("\n\n")]


AnyCheck = TypeVar("AnyCheck", bound=Check[Any])


class Registry(dict[str, AnyCheck]):
    """Checks by the name of their finding, in the order in which they are declared."""

    def add(self, check: AnyCheck) -> None:
        """Add a check whose name no other one has."""
        assert check.name not in self, f"two checks are named {check.name}"
        self[check.name] = check
