"""File fingerprints: whether a file changed since it was read, and whether rlpost wrote it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.parquet.footer import FooterError, read_footer_bytes
from rlpost.io.ranges import opened
from rlpost.io.stores import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.paths import AnyPath


OUTPUT_KEYS = (b"rlpost.recipe", b"rlpost.loss")
"""Metadata of files with columns that rlpost computed; converted dumps have none of them."""
_LONGEST_LENGTH = 4  # bytes of the length of a value


def fingerprint_of(path: AnyPath) -> ObjectInfo | None:
    """Return a file's size, and time or ETag; None if it does not exist, or its store has neither.

    Raises:
        OSError, ReadWriteError: the metadata cannot be read.
    """
    if isinstance(path, Path):
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        return ObjectInfo(stat.st_size, str(stat.st_mtime_ns))
    info = path.info()
    return info if info and info.changed else None


def local_fingerprint(path: AnyPath) -> ObjectInfo | None:
    """Return a local file's fingerprint; None for remote files: each read checks their size."""
    with suppress(OSError):
        return fingerprint_of(path) if isinstance(path, Path) else None
    return None


def last_entry(path: AnyPath, key: bytes) -> bytes | None:
    """Return the value of a key of a Parquet file's metadata; None if it is not there.

    The footer is searched, not decoded: that takes a twentieth of the time. The key must be the
    last one that `add_entries` added.

    Raises:
        OSError, ReadWriteError: the file cannot be read.
    """
    _, begin, rest = _footer(path).rpartition(_begin_of(key))
    length = shift = 0
    for at, byte in enumerate(rest[:_LONGEST_LENGTH], 1):
        length |= (byte & 127) << shift
        shift += 7
        if begin and byte < 128:  # noqa: PLR2004 - the last byte of a varint
            return rest[at : at + length]
    return None


def _footer(path: AnyPath) -> bytes:
    """Return the encoded footer of a file; nothing if it is no Parquet file, or encrypted."""
    with suppress(FooterError), opened(path) as (file, size):
        return read_footer_bytes(file, size)[0]
    return b""


def _begin_of(key: bytes) -> bytes:
    """Return what a key of the metadata begins with: it and its value are binary fields."""
    return b"\x18" + bytes([len(key)]) + key + b"\x18"


def check_overwritable(targets: Sequence[AnyPath]) -> None:
    """Check that --overwrite would only replace files that rlpost wrote, or that are not Parquet.

    Raises:
        UsageError: a target is a Parquet file without rlpost's metadata, most likely an input.
    """
    for target in targets:
        if target.is_file() and _is_foreign(target):
            raise UsageError(
                f"{target}: OUT is a Parquet file that rlpost did not write, so it may be an "
                "input, and --overwrite does not replace it. OUT is the last path: choose another "
                "one, or remove the file first. Pass several inputs of `rlpost loss` as a "
                "directory or a quoted glob"
            )


def _is_foreign(path: AnyPath) -> bool:
    """Return whether a file is Parquet without rlpost's metadata."""
    try:
        footer = _footer(path)
    except (ReadWriteError, OSError):
        return False
    return bool(footer) and not any(_begin_of(key) in footer for key in OUTPUT_KEYS)
