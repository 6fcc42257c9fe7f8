"""Which rows of an input are in which file of an export: those of a step, or of a rollout."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.targets.base import ExportColumns, ExportTarget
    from rlpost.io.parquet.source import Source

CHUNK_TOKENS = 1 << 16
"""Of the largest column at a time: as Python objects they need 32 bytes each."""
_LONGEST = 60  # characters of a task in the name of a folder
_NO_NAME = re.compile(r"[^A-Za-z0-9.-]+")


def steps_of(source: Source, held: ExportColumns, target: ExportTarget) -> list[int]:
    """Return the step of each row; none if the target writes one file, or the input has no steps.

    Raises:
        DataError: a step is not a whole number.
    """
    if target.layout not in ("steps", "trials") or "batch" not in held.columns:
        return []
    steps = []
    for location, keys in _keys(source, held.columns["batch"]):
        for row, key in enumerate(keys):
            if not str(key).removeprefix("-").isdecimal():
                raise location.error(
                    row, f"is {key!r}", f"--to {target.name} numbers its files by whole steps"
                )
            steps.append(int(key))
    return steps


def trials_of(source: Source, held: ExportColumns, steps: list[int]) -> tuple[list[str], list[int]]:
    """Return the folder of each rollout, in the order of the input, and the number of each row's.

    Args:
        source: the input.
        held: its columns; without one of rollouts, each row is a rollout.
        steps: the step of each row; empty without steps.
    """
    columns = [held.columns.get(name) for name in ("group", "rollout")]
    groups, rollouts = (
        [key for _, keys in _keys(source, column) for key in keys] if column else []
        for column in columns
    )
    trials: dict[tuple[object, ...], int] = {}
    folders: list[str] = []
    numbers = []
    for row in range(source.rows):
        step, group = (of[row] if of else None for of in (steps, groups))
        key = (step, group, rollouts[row] if rollouts else row)
        if key not in trials:
            task = _NO_NAME.sub("-", "task" if group is None else str(group))[:_LONGEST]
            job = "" if step is None else f"step_{step}/"
            trials[key] = len(folders)
            folders.append(f"{job}{task}__{len(folders)}")
        numbers.append(trials[key])
    return folders, numbers


def _keys(source: Source, column: str) -> Iterator[tuple[CellLocation, list[int | str]]]:
    """Yield the keys of each chunk, and where it begins."""
    for chunk in source.read([column], CHUNK_TOKENS, ""):
        path = str(source.files[chunk.file].path)
        location = CellLocation(path, chunk.first_row, column)
        yield location, ragged.key(chunk.table.column(column), location).to_pylist()
