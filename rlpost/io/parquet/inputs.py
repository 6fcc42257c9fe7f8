"""Which files an input means: a file, several, a directory with hive partitions, a glob; a URL."""

from __future__ import annotations

import glob
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from rlpost.errors import ReadWriteError, UsageError
from rlpost.io.places import Remote, absence, below, files_below, matching, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlpost.io.places import AnyPath


@dataclass(frozen=True)
class InputFile:
    """One Parquet file of the input."""

    path: AnyPath
    relative: Path
    """Where its twin goes below an output directory."""
    partitions: tuple[tuple[str, str], ...] = ()
    """Hive partitions of its path, `step=3/` as ("step", "3")."""


def find_inputs(inputs: Sequence[str]) -> list[InputFile]:
    """The files that these paths, URLs, directories and globs mean, each once, sorted in each.

    Raises:
        ReadWriteError: a path does not exist, a glob matches nothing, or a directory holds no
            Parquet file.
        UsageError: two files would have the same output name.
    """
    found: dict[AnyPath, InputFile] = {}
    for text in inputs:
        for file in _expand(text):
            found.setdefault(file.path.resolve(), file)
    files = list(found.values())
    (name, times), *_ = Counter(file.relative for file in files).most_common(1)
    if times > 1:
        raise UsageError(
            f"{times} input files are called {name}, and so would be their outputs: name the "
            "directory above them, or quote a glob of them: the output keeps the folders"
        )
    return files


def _expand(text: str) -> list[InputFile]:
    path = place_of(text)
    if isinstance(path, Remote):
        path.forget()
    try:
        if path.is_dir():
            return _directory(path)
        if isinstance(path, Path) and path.exists() and not path.is_file():
            raise ReadWriteError(f"{text}: cannot be read: it is no regular file")
        if path.exists():
            return [InputFile(path, Path(path.name), _partitions(path))]
    except OSError as error:
        raise ReadWriteError(f"{text}: cannot be read: {error.strerror}") from None
    if glob.has_magic(text):
        files = matching(path)
        if not files:
            raise ReadWriteError(f"{text}: the pattern matches no file")
        return [InputFile(file, below(path, file), _partitions(file)) for file in files]
    raise ReadWriteError(f"{text}: {absence(path)}")


def _directory(top: AnyPath) -> list[InputFile]:
    files = [
        InputFile(file, relative, _partitions(file))
        for file, relative in files_below(top)
        if file.suffix == ".parquet" and not any(p.startswith((".", "_")) for p in relative.parts)
    ]
    if not files:
        raise ReadWriteError(f"{top}: the directory holds no .parquet file")
    return files


def _partitions(path: AnyPath) -> tuple[tuple[str, str], ...]:
    pairs = (part.partition("=") for part in path.parts[:-1])
    return tuple((unquote(key), unquote(value)) for key, equals, value in pairs if equals and key)
