"""Outputs of an update whose inputs were not found, and whether it is proven that they are gone.

An input is gone if the run listed the directory that it was in: that is IN, or below it, and has
other entries. A directory that is missing or empty may belong to a file system that is not mounted.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.own_files import stored_object
from rlpost.io.parquet.checks import read_metadata
from rlpost.io.paths import PathText, is_url, list_files, parse_path
from rlpost.pipeline.output.metadata import RUN_KEY
from rlpost.pipeline.update.entry import Entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rlpost.pipeline.update.entry import UpdateFile


class Vanished(NamedTuple):
    """An output whose input was not found."""

    output: Path
    input: str
    """The path or URL of its input."""
    unproven: str
    """Why it is not proven that the input is gone; empty if it is."""


def vanished_outputs(
    output: Path, files: Sequence[UpdateFile], inputs: Sequence[PathText]
) -> Iterator[Vanished]:
    """Yield the outputs of earlier updates whose input was not found.

    Args:
        output: OUT.
        files: of IN.
        inputs: IN, as named by the user.

    Raises:
        ReadWriteError: OUT cannot be listed.
    """
    names = {found.name for found in files}
    own = {found.path.absolute() for found in files if isinstance(found.path, Path)}
    listed = _Listed(files, inputs)
    for file, relative in list_files(output) if output.is_dir() else []:
        name = relative.as_posix()
        hidden = any(part.startswith(".") for part in relative.parts)
        if not isinstance(file, Path) or file.suffix != ".parquet" or name in names or hidden:
            continue
        entry = None if file.absolute() in own else Entry.read(file)
        if entry is None or entry.name != name:
            continue
        if is_url(entry.file):
            if listed.lacks(entry.file):
                yield Vanished(file, entry.file, "")
            continue
        with suppress(OSError, RuntimeError, ValueError):  # a path that no file can have
            path = file.absolute().parent.resolve() / entry.file
            path = path.parent.resolve() / path.name
            unproven = listed.why_unproven(path)
            if unproven is not None:
                yield Vanished(file, str(path), unproven)


class _Listed:
    """What a run listed: the directories of IN."""

    def __init__(self, files: Sequence[UpdateFile], inputs: Sequence[PathText]) -> None:
        paths = [parse_path(one) for one in inputs]
        local = [path for path in paths if isinstance(path, Path) and path.is_dir()]
        self._folders = {path.resolve() for path in local}
        self._remote = [path for path in paths if not isinstance(path, Path)]
        self._urls = {str(found.path) for found in files}

    def lacks(self, url: str) -> bool:
        """Return whether a directory of IN that has other objects lacks an object."""
        if url in self._urls:
            return False
        return any(
            url.startswith(folder) and any(own.startswith(folder) for own in self._urls)
            for path in self._remote
            if path.is_dir()
            for folder in [f"{str(path).rstrip('/')}/"]
        )

    def why_unproven(self, path: Path) -> str | None:
        """Return why it is not proven that a file is gone: empty if it is, None if it exists."""
        try:
            path.lstat()
        except FileNotFoundError:
            return self._why_not_listed(path.parent)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        return None

    def _why_not_listed(self, folder: Path) -> str:
        if self._folders.isdisjoint((folder, *folder.parents)):
            return f"{folder} is no directory of IN"
        try:
            with os.scandir(folder) as entries:
                empty = next(entries, None) is None
        except FileNotFoundError:
            return f"{folder} does not exist; it may be of a file system that is not mounted"
        except OSError as error:
            return f"{folder} cannot be listed: {error.strerror}"
        return f"{folder} is empty; its file system may not be mounted" if empty else ""


def outputs_of_runs(outputs: Collection[Path], of: Collection[Path]) -> list[Path]:
    """Return the outputs that were computed in one run with others."""
    runs = {_run_of(path) for path in of} - {None}
    return [output for output in outputs if _run_of(output) in runs] if runs else []


def _run_of(output: Path) -> str | None:
    """Return the name of the run of an output; None if it has no other file, or is not readable."""
    try:
        run = stored_object(read_metadata(output).metadata or {}, RUN_KEY.encode())
        return str(run["run"]) if run["files"] > 1 else None
    except (DataError, ReadWriteError, OSError, ValueError, LookupError, TypeError):
        return None
