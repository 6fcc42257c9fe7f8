"""Stamps: what tells whether a file is still the one that it was."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlpost.io.parquet.footer import TAIL
from rlpost.io.ranges import close_file, open_file, read_at

if TYPE_CHECKING:
    from rlpost.io.places import AnyPath


_CHANGED = ("ETag", "etag", "LastModified", "mtime", "last_modified", "updated", "created")


class Stamp(NamedTuple):
    """A file's size in bytes, and when it was last changed: any text that changes with it."""

    size: int
    changed: str


def stamp_of(place: AnyPath) -> Stamp | None:
    """The stamp of a file; None where it is gone, or a store tells nothing of when it changed.

    Raises:
        OSError, ReadWriteError: it can't be looked at.
    """
    if isinstance(place, Path):
        try:
            told = place.stat()
        except FileNotFoundError:
            return None
        return Stamp(told.st_size, str(told.st_mtime_ns))
    info = place.info() or {}
    changed = next((str(info[key]) for key in _CHANGED if info.get(key)), None)
    return None if changed is None else Stamp(int(info.get("size") or 0), changed)


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
