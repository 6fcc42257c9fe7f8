"""Stamps: what tells whether a file is still the one that it was."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlpost.errors import DataError, ReadWriteError, UsageError
from rlpost.io.parquet.checks import read_metadata
from rlpost.io.parquet.footer import TAIL
from rlpost.io.ranges import close_file, open_file, read_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.paths import AnyPath


_CHANGED = ("ETag", "etag", "LastModified", "mtime", "last_modified", "updated", "created")


class FileFingerprint(NamedTuple):
    """A file's size in bytes, and when it was last changed: any text that changes with it."""

    size: int
    changed: str


def fingerprint_of(place: AnyPath) -> FileFingerprint | None:
    """The stamp of a file; None where it is gone, or a store tells nothing of when it changed.

    Raises:
        OSError, ReadWriteError: it can't be looked at.
    """
    if isinstance(place, Path):
        try:
            told = place.stat()
        except FileNotFoundError:
            return None
        return FileFingerprint(told.st_size, str(told.st_mtime_ns))
    info = place.info() or {}
    changed = next((str(info[key]) for key in _CHANGED if info.get(key)), None)
    return None if changed is None else FileFingerprint(int(info.get("size") or 0), changed)


def footer_digest(place: AnyPath) -> str:
    """The SHA-256 of a Parquet file's footer, as hexadecimal digits.

    Raises:
        OSError, ReadWriteError: it can't be read.
    """
    file, size = open_file(place)
    try:
        tail = read_at(file, min(TAIL, size), max(size - TAIL, 0))
        length = min(int.from_bytes(tail[:4], "little"), size)
        return sha256(read_at(file, length, max(size - TAIL - length, 0))).hexdigest()
    finally:
        close_file(file)


_MADE = (b"rlpost.recipe", b"rlpost.loss")  # the keys that outputs have, and converted dumps lack


def check_overwritable(targets: Sequence[AnyPath]) -> None:
    """Refuse to overwrite data: Parquet files that `rlpost advantages` or `loss` did not write.

    What is no Parquet file, or a damaged one, may be overwritten.

    Raises:
        UsageError: a target is such a file, most likely an input that was taken for OUT.
    """
    for target in targets:
        if target.is_file() and _is_data(target):
            raise UsageError(
                f"{target}: is Parquet that rlpost did not write, so it looks like an input, and "
                "--overwrite leaves it alone; the last path is OUT: name another one, or remove "
                "the file first. `rlpost loss` takes one IN; a directory or a quoted glob has "
                "several files"
            )


def _is_data(place: AnyPath) -> bool:
    try:
        metadata = read_metadata(place).metadata or {}
    except (DataError, ReadWriteError, OSError, ValueError):  # Arrow's errors are of the last two
        return False
    return not any(key in metadata for key in _MADE)
