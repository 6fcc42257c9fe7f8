"""The state file: running reward statistics that one run saves and the next one loads."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.locks import FileLock
from rlpost.io.staged import StagedFile, file_errors
from rlpost.kernels.rewards import RunningMoments
from rlpost.pipeline.columns import columns_of
from rlpost.recipe import semantics
from rlpost.recipe.semantics import SEMANTICS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.recipe.recipe import Recipe


_VERSION = 1


def load_state(
    path: Path | None, recipe: Recipe, source: Source | TableSource
) -> tuple[dict[str, RunningMoments], list[str]]:
    """Return the statistics of each domain, and warnings.

    There are none if the file does not exist yet, or if it has older semantics and a change since
    then concerns the recipe: a mean over rewards of two definitions has no meaning.

    Args:
        path: of the file; None for no statistics.
        recipe: of the run.
        source: its input.

    Raises:
        ReadWriteError: the file cannot be read.
        DataError: it is not a state file of this version.
        UsageError: the recipe does not fit the input.
    """
    if path is None:
        return {}, []
    try:
        if not path.exists():
            return {}, []
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["version"] != _VERSION:
            raise DataError(f"{path}: state of version {table['version']}; {_VERSION} is needed")
        running = {name: RunningMoments(**values) for name, values in table["running"].items()}
        number = semantics.parse(table.get("semantics"))
    except OSError as error:
        raise ReadWriteError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path}: is not a state file; --state needs a file that rlpost wrote, or a new path"
        ) from None
    if number == SEMANTICS:
        return running, []
    changes = semantics.applying(number, recipe, columns_of(source, recipe).columns)
    text = f"--state {path}: has {semantics.describe(number, changes)}"
    if number < SEMANTICS and not changes:
        return running, [text]
    kept = _older(path, number)
    return {}, [f"{text}; running statistics start anew, and the old ones are kept in {kept}"]


def save_state(path: Path, running: Mapping[str, RunningMoments]) -> None:
    """Write the statistics; the old file stays until the new one is complete.

    A file of other semantics is kept under another name.

    Raises:
        ReadWriteError: the file cannot be written.
    """
    table = {
        "version": _VERSION,
        "semantics": SEMANTICS,
        "running": {name: asdict(moments) for name, moments in running.items()},
    }
    with FileLock([path]), file_errors(path, "cannot be written"):
        staged = StagedFile(path)
        try:
            staged.write(0, (json.dumps(table, indent=1) + "\n").encode())
            staged.complete()
            _keep_older(path)
            staged.publish()
        finally:
            staged.discard()


def _older(path: Path, number: int) -> Path:
    """Return where the statistics of other semantics are kept."""
    return path.with_name(f"{path.name}.semantics-{number}")


def _keep_older(path: Path) -> None:
    """Rename a state file of other semantics."""
    with suppress(FileNotFoundError, ValueError):
        number = semantics.parse(json.loads(path.read_text(encoding="utf-8")).get("semantics"))
        if number != SEMANTICS:
            path.replace(_older(path, number))
