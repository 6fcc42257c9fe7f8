"""Inputs that are Parquet files of responses, whatever the dump formats are."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.io.parquet.column_names import column_names_of
from rlpost.io.paths import parse_path

if TYPE_CHECKING:
    from rlpost.io.paths import AnyPath, PathText

_COLUMNS = {"reward", "response_mask"}  # of responses; a dump has neither under these names


def is_canonical(table: AnyPath) -> bool:
    """Return whether a Parquet file, local or remote, has rewards or a mask under their own names.

    Raises:
        ReadWriteError: it is remote and cannot be read.
    """
    return not _COLUMNS.isdisjoint(column_names_of(table))


def first_table(path: PathText) -> Path | None:
    """Return the Parquet file whose columns decide what a local input is; None if it has none.

    It is the file itself, the first one of a directory, or the one of a glob's first match.
    """
    location = parse_path(path)
    if not isinstance(location, Path):
        return None
    if location.is_dir():
        files = sorted(location.rglob("*.parquet"))
        return next((file for file in files if file.suffix and file.is_file()), None)
    if not location.exists() and glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
        return first_table(matches[0]) if matches else None
    return location if location.suffix == ".parquet" and location.is_file() else None
