"""Files that rlpost writes for itself, such as journals; they are read as untrusted data."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlpost.errors import ReadWriteError
from rlpost.io.staged import file_errors

if TYPE_CHECKING:
    from collections.abc import Mapping


T = TypeVar("T")
Json = dict[str, Any]
_SEAL = "seal"


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


def decode(text: bytes | str, kind: type[T]) -> T:
    """Return a value of a type from JSON; raise ValueError if it is of another one.

    Texts may have the escapes of file names that are not UTF-8, which msgspec's parser rejects.
    """
    try:
        return msgspec.convert(json.loads(text), kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def seal(table: Json) -> str:
    """Return a mapping as one line of JSON that has a digest of its content."""
    return json.dumps({_SEAL: _digest(table), **table})


def unseal(text: bytes) -> Json:
    """Return the mapping of `seal`; raise ValueError if the text was changed since."""
    table = parse(text)
    if table.pop(_SEAL, None) != _digest(table):
        raise ValueError("its digest is that of another content")
    return table


def parse(text: bytes) -> Json:
    """Return a mapping from JSON, whatever its digest; raise ValueError if it is none."""
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


def _digest(table: Json) -> str:
    return sha256(json.dumps(table).encode()).hexdigest()[:16]


def path_below(folder: Path, name: str) -> Path:
    """Return the path of a name below a folder.

    Raises:
        ValueError: the name is absolute, has `..`, or leads out of the folder by a symbolic link.
        OSError: a folder cannot be read.
    """
    below = Path(name)
    if below.anchor or ".." in below.parts or not below.name or "\0" in name:
        raise ValueError(f"{name!r} is no path below a folder")
    path = folder / below
    if not is_below(path.parent, folder):
        raise ValueError(f"{name!r} leads out of {folder} by a symbolic link")
    return path


def is_below(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder or below it, by their real paths; raises OSError."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except RuntimeError:  # links that lead to each other
        return False
