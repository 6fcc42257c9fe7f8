"""The errors a user can meet, each with the exit code that a script sees."""

from __future__ import annotations


class RlpostError(Exception):
    """An expected failure: its text says where, what came, what is needed, what to do."""

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
    """An asked-for device or engine is missing on this machine (exit code 5)."""

    exit_code = 5
