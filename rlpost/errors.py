"""The errors of rlpost, each with its exit code."""

from __future__ import annotations


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
