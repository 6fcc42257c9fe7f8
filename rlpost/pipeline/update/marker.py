"""The marker of a run with --update that publishes its files.

The files of a run become visible one by one. So before the first does, a marker in OUT names them,
with the state file before the run and after it. If the run is killed before all are visible, the
next update publishes the rest; or it repeats the whole run, from the state before it, if a file is
missing. So no batch is missed or counted twice.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from rlpost.errors import DataError, UsageError
from rlpost.io.locks import is_temporary
from rlpost.io.own_files import decode, path_below, read_bytes
from rlpost.io.publish import CompleteFile, publish_files, write_file
from rlpost.io.staged import file_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


MARKER = ".rlpost-update.json"


class MarkedFile(NamedTuple):
    """A complete file: its temporary name, and what renaming leaves as it is."""

    staged: str
    size: int
    changed: int
    """Its time of change, in nanoseconds."""

    @classmethod
    def of(cls, path: Path, staged: str) -> MarkedFile | None:
        """Return a file as it is now, with a temporary name; None without a file."""
        with file_errors(path, "cannot be read"):
            try:
                stat = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return cls(staged, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True)
class SavedState:
    """The state file of a run: its path, and its text before and after the run."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Marker:
    """What a run publishes."""

    files: dict[str, MarkedFile]
    """The complete files, by the path of the output below OUT."""
    state: SavedState | None

    def check(self, output: Path) -> None:
        """Raise ValueError or OSError if a file is not one of an update, below OUT."""
        for name, marked in self.files.items():
            if not is_temporary(marked.staged, path_below(output, name).name):
                raise ValueError(f"{marked.staged!r} is no temporary name of {name!r}")


def mark(output: Path, staged: Mapping[str, Path], state: Path | None, after: str | None) -> None:
    """Write the marker, before the first file of a run is published and the state is saved.

    Args:
        output: OUT.
        staged: the complete files, by the path of the output below OUT.
        state: the state file, if the run has one.
        after: its text after the run.
    """
    files = {name: MarkedFile.of(file, file.name) for name, file in staged.items()}
    saved = None if state is None else SavedState(str(state.absolute()), _text(state), after)
    table = {"files": files, "state": None if saved is None else asdict(saved)}
    write_file(output / MARKER, json.dumps(table).encode(), lock=False)  # the update has it locked


def unmark(output: Path) -> None:
    """Remove the marker: all files of the run are published."""
    (output / MARKER).unlink(missing_ok=True)


def stopped_files(output: Path) -> frozenset[str]:
    """Return the outputs of a killed run that has to be repeated, as paths below OUT.

    They are those of the last run if it was killed while it published them, and one is missing.
    """
    marker = _read_marker(output)
    return (
        frozenset()
        if marker is None or _unpublished(output, marker) is not None
        else frozenset(marker.files)
    )


def recover(output: Path, state: Path | None) -> frozenset[str]:
    """Publish the files of a run that was killed meanwhile, or undo what it did to the state file.

    Args:
        output: OUT, which is locked.
        state: the state file of this run.

    Returns:
        The outputs of the killed run if it has to be repeated, since a file is missing.

    Raises:
        UsageError: that run had another state file, or a later run changed it.
    """
    marker = _read_marker(output)
    if marker is None:
        return frozenset()
    left = _unpublished(output, marker)
    if left != [] and marker.state is not None:
        wanted = marker.state.before if left is None else marker.state.after
        _set_state(output, marker.state, state, wanted)
    if left is None:
        return frozenset(marker.files)
    publish_files(left)
    unmark(output)
    return frozenset()


def _unpublished(output: Path, marker: Marker) -> list[CompleteFile] | None:
    """Return complete files that are not published; None if one is missing."""
    left = []
    for name, marked in marker.files.items():
        target = output / name
        if MarkedFile.of(target, marked.staged) != marked:
            file = CompleteFile(target.with_name(marked.staged), target)
            if MarkedFile.of(file.path, marked.staged) != marked:
                return None
            left.append(file)
    return left


def _set_state(output: Path, saved: SavedState, state: Path | None, wanted: str | None) -> None:
    """Write the state file as it was before or after the killed run."""
    if state is None or str(state.absolute()) != saved.path:
        raise UsageError(
            f"--state {state or 'is missing'}: {output} has files of a run that was killed, and "
            f"it had --state {saved.path}; use that file"
        )
    text = _text(state)
    if text not in (saved.before, saved.after):
        raise UsageError(
            f"--state {state}: was changed after an update of {output} was killed, so that update "
            "cannot be completed; start over with another OUT and state file"
        )
    if wanted is None:
        state.unlink(missing_ok=True)
    elif text != wanted:
        write_file(state, wanted.encode())


def _read_marker(output: Path) -> Marker | None:
    """Return the marker, whose names are all below OUT; DataError if it is damaged."""
    data = read_bytes(output / MARKER)
    if data is None:
        return None
    try:
        marker = decode(data, Marker)
        marker.check(output)
    except (ValueError, OSError) as error:
        raise DataError(
            f"{output / MARKER}: is damaged ({error}), and has the state of an update; start over "
            "with another OUT and state file"
        ) from None
    return marker


def _text(path: Path) -> str | None:
    data = read_bytes(path)
    return None if data is None else data.decode(errors="replace")
