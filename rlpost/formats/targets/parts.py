"""Which rows of an input are in which file of an export: those of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.targets.base import ExportColumns, ExportTarget
    from rlpost.io.parquet.source import Source

CHUNK_TOKENS = 1 << 16
"""Of the largest column at a time: as Python objects they need 32 bytes each."""


def steps_of(source: Source, held: ExportColumns, target: ExportTarget) -> list[int]:
    """Return the step of each row; none if the target writes one file, or the input has no steps.

    Raises:
        DataError: a step is not a whole number.
    """
    if target.layout != "steps" or "batch" not in held.columns:
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


def _keys(source: Source, column: str) -> Iterator[tuple[CellLocation, list[int | str]]]:
    """Yield the keys of each chunk, and where it begins."""
    for chunk in source.read([column], CHUNK_TOKENS, ""):
        path = str(source.files[chunk.file].path)
        location = CellLocation(path, chunk.first_row, column)
        yield location, ragged.key(chunk.table.column(column), location).to_pylist()
