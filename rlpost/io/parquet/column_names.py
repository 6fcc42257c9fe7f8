"""Column names of a Parquet file without pyarrow, fast enough for shell completion."""

from __future__ import annotations

import glob
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.io.parquet.footer import FooterError, read_schema_elements, top_level
from rlpost.io.paths import parse_path
from rlpost.io.ranges import opened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.io.paths import AnyPath, PathText

_COLUMNS = {"reward", "response_mask"}  # of responses; a dump has neither under these names


def column_names(words: Iterable[str]) -> list[str]:
    """Return the columns of the first word that is a path to local Parquet; [] if there is none.

    Of a directory it reads the first file, of a glob the first match. Hive partitions of the path
    are columns, too.
    """
    for word in words:
        path = first_table(Path(word).expanduser())
        if path is not None and (names := column_names_of(path)):
            partitions = [part.partition("=") for part in path.parent.parts]
            return [*names, *(key for key, equals, _ in partitions if equals and key)]
    return []


def column_names_of(path: AnyPath) -> list[str]:
    """Return the top-level columns of a Parquet file; [] if it cannot be read as one.

    Raises:
        ReadWriteError: it is remote and cannot be read.
    """
    with suppress(OSError, FooterError), opened(path) as (file, size):
        return [column.name for column in top_level(read_schema_elements(file, size))]
    return []


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
