"""The errors of rlpost, each with its exit code; warnings."""

from __future__ import annotations

import sys
import warnings


class RlpostError(Exception):
    """An expected error; its text has where, what came, what is needed, and what to do."""

    exit_code = 2


class UsageError(RlpostError):
    """The command line or the recipe is wrong (exit code 2)."""

    exit_code = 2


class DataError(RlpostError):
    """The data is bad: a missing column, a wrong type, ragged rows, NaN (exit code 3)."""

    exit_code = 3


class ReadWriteError(RlpostError):
    """A file could not be read or written (exit code 4)."""

    exit_code = 4


class UnavailableError(RlpostError):
    """A requested device, engine or library is missing on this machine (exit code 5)."""

    exit_code = 5


def warn_caller(text: str) -> None:
    """Issue a UserWarning at the line outside this package that called it."""
    level, frame = 2, sys._getframe().f_back  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rlpost."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
