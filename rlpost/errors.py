"""The errors of rlpost, each with its exit code; warnings."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from rlpost.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


SIMILAR = 0.6
"""Similarity of two names, 0 to 1, from which one is suggested for the other."""
_LONGEST = 200  # characters of a name that is compared with others: it takes their square
_NEAR = 0.12
"""How much less similar than the closest name another one may be."""


@dataclass(frozen=True)
class ErrorPart:
    """One thing that is wrong, in one sentence; the names that could be meant, and what to do.

    >>> print(ErrorPart("no option --gama", ("--gamma",)))
    no option --gama; did you mean --gamma?
    >>> ErrorPart("no reward column", ("scores", "rew"), "--map reward=COLUMN").advice
    ['candidates: scores, rew', 'tip: --map reward=COLUMN']
    """

    text: str
    """Where, what came, what is needed."""
    candidates: tuple[str, ...] = ()
    """Names that exist and could be meant, the closest first."""
    tip: str = ""
    """What to do."""
    caret: int = -1
    """The character of the text below which a caret is printed; -1: none."""

    @property
    def advice(self) -> list[str]:
        """The lines below the sentence."""
        if not self.candidates:
            return [f"tip: {self.tip}"] if self.tip else []
        if self.tip:
            return [f"candidates: {', '.join(self.candidates)}", f"tip: {self.tip}"]
        return [f"did you mean {series(self.candidates)}?"]

    def __str__(self) -> str:
        return "; ".join([self.text, *(line.removeprefix("tip: ") for line in self.advice)])

    def changed(self, change: Callable[[str], str]) -> ErrorPart:
        """Return the part with its texts changed."""
        names = tuple(map(change, self.candidates))
        text = change(self.text)
        return ErrorPart(text, names, change(self.tip), self.caret if text == self.text else -1)


def closest(
    name: str, known: Iterable[str], prefix: str = "", least: float = SIMILAR
) -> tuple[str, ...]:
    """Return at most three names that are similar to a name, the closest first.

    A name is left out if it is much less similar than the closest.

    Args:
        name: the unknown name.
        known: names that exist.
        prefix: of each result.
        least: similarity of a result, 0 to 1.
    """
    import difflib  # noqa: PLC0415 - only errors need it

    names = [one for one in dict.fromkeys(map(str, known)) if len(one) <= _LONGEST]
    if len(name) > _LONGEST:
        return ()
    first, *others = difflib.get_close_matches(name, names, n=3, cutoff=least) or [""]
    if not first:
        return ()
    bound = difflib.SequenceMatcher(None, first, name).ratio() - _NEAR
    near = difflib.get_close_matches(name, others, n=2, cutoff=max(bound, least))
    return tuple(prefix + match for match in (first, *near))


def no_such(text: str, name: str, known: Iterable[str], otherwise: str = "") -> ErrorPart:
    """Return the part of an error that a name does not exist, with the closest names.

    Args:
        text: the sentence.
        name: the unknown name.
        known: names that exist.
        otherwise: what to do if none is close.
    """
    candidates = closest(name, known)
    return ErrorPart(text, candidates, "" if candidates else otherwise)


class OptionValueError(ValueError):
    """A wrong value in a validator of pydantic, which accepts a ValueError only."""

    def __init__(self, part: ErrorPart) -> None:
        super().__init__(str(part))
        self.part = part


def series(words: Sequence[str], joint: str = "or") -> str:
    """Return words as one reads them.

    >>> series(["a"]), series(["a", "b"]), series(["a", "b", "c"], "and")
    ('a', 'a or b', 'a, b and c')
    """
    *first, last = words or [""]
    return f"{', '.join(first)} {joint} {last}" if first else last


class RlpostError(Exception):
    """An expected error; its parts have where, what came, what is needed, and what to do.

    Its text has a line for each part. URLs in it, also those that a library's error has, are
    printed without their secrets.
    """

    exit_code = 2

    def __init__(
        self, *parts: str | ErrorPart, candidates: Iterable[str] = (), tip: str = ""
    ) -> None:
        """Store the parts.

        Args:
            parts: each an `ErrorPart`, or a text with a line for each.
            candidates: of the last part.
            tip: of the last part.
        """
        self.parts = tuple(part for one in parts for part in _split(one))
        if candidates or tip:
            *first, last = self.parts
            last = replace(last, candidates=(*last.candidates, *candidates), tip=tip or last.tip)
            self.parts = (*first, last)
        self.parts = tuple(part.changed(without_secrets) for part in self.parts)
        super().__init__(*self.parts)

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts))

    def with_parts(self, parts: Iterable[ErrorPart]) -> Self:
        """Return an error of the same kind with other parts."""
        return type(self)(*parts)

    def after(self, where: str) -> Self:
        """Return the same error; each sentence begins with its place, such as `--preset: `."""
        return self.with_parts(
            replace(one, text=f"{where}{one.text}", caret=-1) for one in self.parts
        )

    def reworded(self, change: Callable[[str], str]) -> Self:
        """Return the same error with its texts changed, such as names of temporary files."""
        return self.with_parts(one.changed(change) for one in self.parts)


def _split(problem: str | ErrorPart) -> list[ErrorPart]:
    """Return the parts that a problem, or a text with a line for each, stands for."""
    if isinstance(problem, ErrorPart):
        return [problem]
    return [ErrorPart(line) for line in problem.splitlines()] or [ErrorPart("")]


class UsageError(RlpostError):
    """The command line or the recipe is wrong (exit code 2)."""

    exit_code = 2


class SummaryError(RlpostError):
    """The error of a run that has a summary."""

    def __init__(self, *parts: str | ErrorPart, summary: dict[str, Any]) -> None:
        super().__init__(*parts)
        self.summary = summary
        """As of a run without an error."""

    def __reduce__(self) -> Any:
        return _summary_error, (type(self), self.parts, self.summary)

    def with_parts(self, parts: Iterable[ErrorPart]) -> Self:
        """Return the same findings with other parts."""
        return type(self)(*parts, summary=self.summary)

    def reworded(self, change: Callable[[str], str]) -> Self:
        """Return the same error with its texts changed, those of the summary, too."""
        parts = (one.changed(change) for one in self.parts)
        return type(self)(*parts, summary=_reworded(self.summary, change))


def _summary_error(
    kind: type[SummaryError], parts: Sequence[ErrorPart], summary: dict[str, Any]
) -> SummaryError:
    return kind(*parts, summary=summary)


class FindingsError(SummaryError):
    """A run has findings that fail it; its summary has no outputs (exit code 1)."""

    exit_code = 1


class DataError(RlpostError):
    """The data is bad: a missing column, a wrong type, ragged rows, NaN (exit code 3)."""

    exit_code = 3


class InputsError(SummaryError, DataError):
    """Some inputs are bad, and the others were written (exit code 3)."""


class ReadWriteError(RlpostError):
    """A file could not be read or written (exit code 4)."""

    exit_code = 4


class UnavailableError(RlpostError):
    """A requested device, engine or library is missing on this machine (exit code 5)."""

    exit_code = 5


class NotEnoughMemoryError(UnavailableError):
    """Data needs more memory than `--max-memory` permits, or than there is (exit code 5)."""


def _reworded(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _reworded(one, change) for key, one in value.items()}
    return [_reworded(one, change) for one in value] if isinstance(value, list) else value


def warn_caller(text: str) -> None:
    """Issue a UserWarning at the line outside this package that called it."""
    level, frame = 2, sys._getframe().f_back  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rlpost."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
