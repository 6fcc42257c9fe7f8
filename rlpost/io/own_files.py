"""Files that rlpost writes for itself, such as state files; they are read as untrusted data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rlpost.errors import ReadWriteError
from rlpost.io.outputs import file_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


Json = dict[str, Any]


def read_bytes(path: Path) -> bytes | None:
    """Return the bytes of a regular file; None if there is none.

    Raises:
        ReadWriteError: it cannot be read, or is a folder or a pipe.
    """
    with file_errors(path, "cannot be read"):
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise ReadWriteError(f"{path}: cannot be read: not a regular file")
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def parse(text: bytes) -> Json:
    """Return a mapping from JSON; raise ValueError if it is none."""
    try:
        table = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(table, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - the text is wrong
    return table


def stored_object(metadata: Mapping[bytes, bytes], key: bytes) -> Json:
    """Return the JSON object under a key of a file's metadata; empty without one.

    A damaged one is empty, too: `rlpost verify` reports it.
    """
    try:
        return parse(metadata.get(key, b"{}"))
    except ValueError:
        return {}
