"""The marker of a run with --update that publishes its files.

The files of a run become visible one by one. So before the first does, a marker in OUT names them,
with the state file before the run and after it. If the run is killed before all are visible, the
next update repeats it from the state before it, so that no batch is missed or counted twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.errors import UsageError
from rlpost.io.staged import StagedFile, file_errors

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
    facts = {name: _facts(file) for name, file in staged.items()}
    table: Json = {"files": facts, "state": None}
    if state is not None:
        texts = {"before": _text(state), "after": after}
        table["state"] = {"path": str(state.absolute()), **texts}
    _write(output / MARKER, json.dumps(table))


def unmark(output: Path) -> None:
    """Remove the marker: all files of the run are published."""
    (output / MARKER).unlink(missing_ok=True)


def stopped_files(output: Path) -> frozenset[str]:
    """Return the outputs of a run that was killed while it published them, as paths below OUT."""
    marker = _read_marker(output)
    return (
        frozenset()
        if marker is None or _is_published(output, marker)
        else frozenset(marker["files"])
    )


def recover(output: Path, state: Path | None) -> frozenset[str]:
    """Return the names of the outputs of a run that was killed while it published them.

    Its state file is again as it was before that run. If all of its files were published, there
    is nothing to repeat.

    Raises:
        UsageError: that run had another state file, or a later run changed it.
    """
    marker = _read_marker(output)
    if marker is None:
        return frozenset()
    if _is_published(output, marker):
        unmark(output)
        return frozenset()
    if marker["state"] is not None:
        _restore(output, marker["state"], state)
    return frozenset(marker["files"])


def _restore(output: Path, saved: Json, state: Path | None) -> None:
    path = Path(saved["path"])
    if state is None or state.absolute() != path:
        raise UsageError(
            f"--state {state or 'is missing'}: {output} has files of a run that was killed, and "
            f"it had --state {path}; use that file"
        )
    text = _text(path)
    if text == saved["before"]:
        return
    if text != saved["after"]:
        raise UsageError(
            f"--state {path}: was changed after an update of {output} was killed, so that update "
            "cannot be repeated; start over with another OUT and state file"
        )
    if saved["before"] is None:
        path.unlink()
    else:
        _write(path, saved["before"])


def _read_marker(output: Path) -> Json | None:
    text = _text(output / MARKER)
    table: Json | None = None if text is None else json.loads(text)
    return table


def _is_published(output: Path, marker: Json) -> bool:
    return all(_facts(output / name) == facts for name, facts in marker["files"].items())


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


def _write(path: Path, text: str) -> None:
    """Write a whole file, or leave it as it is."""
    staged = StagedFile(path)
    try:
        staged.write(0, text.encode())
        staged.complete()
        staged.publish()
    finally:
        staged.discard()
