"""The marker of a run with --update that publishes its files.

The files of a run become visible one by one. So before the first does, a marker in OUT names them,
with the state file before the run and after it. If the run is killed before all are visible, the
next update publishes the rest; or it repeats the whole run, from the state before it, if a file is
missing. So no batch is missed or counted twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError
from rlpost.io.publish import CompleteFile, publish_files, write_file
from rlpost.io.staged import file_errors

if TYPE_CHECKING:
    from collections.abc import Mapping


Json = dict[str, Any]
MARKER = ".rlpost-update.json"


def mark(output: Path, staged: Mapping[str, Path], state: Path | None, after: str | None) -> None:
    """Write the marker, before the first file of a run is published and the state is saved.

    Args:
        output: OUT.
        staged: the complete files, by the path of the output below OUT.
        state: the state file, if the run has one.
        after: its text after the run.
    """
    files = {name: [file.name, *(_facts(file) or ())] for name, file in staged.items()}
    table: Json = {"files": files, "state": None}
    if state is not None:
        texts = {"before": _text(state), "after": after}
        table["state"] = {"path": str(state.absolute()), **texts}
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
        else _names(marker)
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
    if left != [] and marker["state"] is not None:
        _set_state(output, marker["state"], state, "before" if left is None else "after")
    if left is None:
        return _names(marker)
    publish_files(left)
    unmark(output)
    return frozenset()


def _unpublished(output: Path, marker: Json) -> list[CompleteFile] | None:
    """Return complete files that are not published; None if one is missing."""
    left = []
    for name, (staged, *facts) in marker["files"].items():
        target = output / name
        if _facts(target) != facts:
            file = CompleteFile(target.with_name(staged), target)
            if _facts(file.path) != facts:
                return None
            left.append(file)
    return left


def _names(marker: Json) -> frozenset[str]:
    return frozenset(marker["files"])


def _set_state(output: Path, saved: Json, state: Path | None, when: str) -> None:
    """Write the state file as it was before or after the killed run."""
    path, wanted = Path(saved["path"]), saved[when]
    if state is None or state.absolute() != path:
        raise UsageError(
            f"--state {state or 'is missing'}: {output} has files of a run that was killed, and "
            f"it had --state {path}; use that file"
        )
    text = _text(path)
    if text not in (saved["before"], saved["after"]):
        raise UsageError(
            f"--state {path}: was changed after an update of {output} was killed, so that update "
            "cannot be completed; start over with another OUT and state file"
        )
    if wanted is None:
        path.unlink(missing_ok=True)
    elif text != wanted:
        write_file(path, wanted.encode())


def _read_marker(output: Path) -> Json | None:
    text = _text(output / MARKER)
    try:
        table: Json | None = None if text is None else json.loads(text)
    except ValueError:
        raise DataError(
            f"{output / MARKER}: is damaged, and has the state of an update; start over with "
            "another OUT and state file"
        ) from None
    return table


def _facts(path: Path) -> list[int] | None:
    """Return what renaming a file leaves as it is: size and time of change; None without file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _text(path: Path) -> str | None:
    with file_errors(path, "cannot be read"):
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
