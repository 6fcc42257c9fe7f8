"""The errors of rlpost, each with its exit code; warnings."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, Self

from rlpost.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable


class RlpostError(Exception):
    """An expected error; its text has where, what came, what is needed, and what to do.

    URLs in it, also those that a library's error has, are printed without their secrets.
    """

    exit_code = 2

    def __init__(self, text: str) -> None:
        super().__init__(without_secrets(text))

    def reworded(self, change: Callable[[str], str]) -> Self:
        """Return the same error with its texts changed, such as names of temporary files."""
        return type(self)(change(str(self)))


class UsageError(RlpostError):
    """The command line or the recipe is wrong (exit code 2)."""

    exit_code = 2


class FindingsError(RlpostError):
    """A run has findings that fail it, so nothing was published (exit code 1)."""

    exit_code = 1

    def __init__(self, text: str, summary: dict[str, Any]) -> None:
        super().__init__(text)
        self.summary = summary
        """As of a run that is published, but without outputs."""

    def reworded(self, change: Callable[[str], str]) -> Self:
        """Return the same error with its texts changed, those of the summary, too."""
        return type(self)(change(str(self)), _reworded(self.summary, change))


class DataError(RlpostError):
    """The data is bad: a missing column, a wrong type, ragged rows, NaN (exit code 3)."""

    exit_code = 3


class ReadWriteError(RlpostError):
    """A file could not be read or written (exit code 4)."""

    exit_code = 4


class UnavailableError(RlpostError):
    """A requested device, engine or library is missing on this machine (exit code 5)."""

    exit_code = 5


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
