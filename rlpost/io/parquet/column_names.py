"""Column names of a Parquet file without pyarrow, fast enough for shell completion."""

from __future__ import annotations

import glob
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.io.parquet.footer import FooterError, read_schema_elements, top_level
from rlpost.io.ranges import close_file, open_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlpost.io.paths import AnyPath


def column_names(words: Iterable[str]) -> list[str]:
    """Return the columns of the first word that is a path to local Parquet; [] if there is none.

    Of a directory it reads the first file, of a glob the first match. Hive partitions of the path
    are columns, too.
    """
    for word in words:
        path = _first_file(word)
        if path is None:
            continue
        names = column_names_of(path)
        if names:
            partitions = [part.partition("=") for part in path.parent.parts]
            return [*names, *(key for key, equals, _ in partitions if equals and key)]
    return []


def _first_file(word: str) -> Path | None:
    path = Path(word).expanduser()
    if path.is_dir():
        return next(path.rglob("*.parquet"), None)
    if path.is_file():
        return path
    if "://" in word or not glob.has_magic(word):
        return None
    return next((Path(match) for match in glob.iglob(word, recursive=True)), None)  # noqa: PTH207


def column_names_of(path: AnyPath) -> list[str]:
    """Return the top-level columns of a Parquet file; [] if it cannot be read as one.

    Raises:
        ReadWriteError: it is remote and cannot be read.
    """
    with suppress(OSError, FooterError):
        file, size = open_file(path)
        try:
            return [column.name for column in top_level(read_schema_elements(file, size))]
        finally:
            close_file(file)
    return []
