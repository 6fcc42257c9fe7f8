"""Which files an input means: a file, several, a directory with hive partitions, a glob."""

from __future__ import annotations

import glob
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from rlpost.errors import ReadWriteError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class InputFile:
    """One Parquet file of the input."""

    path: Path
    relative: Path
    """Where its twin goes below an output directory."""
    partitions: tuple[tuple[str, str], ...] = ()
    """Hive partitions of its path, `step=3/` as ("step", "3")."""


def find_inputs(inputs: Sequence[str]) -> list[InputFile]:
    """The files that these paths, directories and globs mean, each once, sorted in each.

    Raises:
        ReadWriteError: a path does not exist, or a directory holds no Parquet file.
        UsageError: a glob matches nothing, or two files would have the same output name.
    """
    found: dict[Path, InputFile] = {}
    for text in inputs:
        for file in _expand(text):
            found.setdefault(file.path.resolve(), file)
    files = list(found.values())
    (name, times), *_ = Counter(file.relative for file in files).most_common(1)
    if times > 1:
        raise UsageError(
            f"{times} input files are called {name}, and so would be their outputs: name the "
            "directory above them, whose layout the output keeps"
        )
    return files


def _expand(text: str) -> list[InputFile]:
    path = Path(text)
    try:
        if path.is_dir():
            return _directory(path)
        if path.exists():
            return [InputFile(path, Path(path.name), _partitions(path))]
    except OSError as error:
        raise ReadWriteError(f"{text}: cannot be read: {error.strerror}") from None
    if glob.has_magic(text):
        matches = [Path(match) for match in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207
        files = [match for match in matches if match.is_file()]
        if not files:
            raise UsageError(f"{text}: the pattern matches no file")
        return [InputFile(file, Path(file.name), _partitions(file)) for file in files]
    raise ReadWriteError(f"{text}: no such file or directory")


def _directory(top: Path) -> list[InputFile]:
    files = sorted(
        file
        for file in top.rglob("*.parquet")
        if file.is_file()
        and not any(part.startswith((".", "_")) for part in file.relative_to(top).parts)
    )
    if not files:
        raise ReadWriteError(f"{top}: the directory holds no .parquet file")
    return [InputFile(file, file.relative_to(top), _partitions(file)) for file in files]


def _partitions(path: Path) -> tuple[tuple[str, str], ...]:
    pairs = (part.partition("=") for part in path.parent.parts)
    return tuple((unquote(key), unquote(value)) for key, equals, value in pairs if equals and key)
