"""A glance at the columns of a file: fast enough for a shell that waits for it."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.io.parquet.footer import MAGIC, TAIL, FileMeta, SchemaElement, Struct, read_footer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_BIG = 1 << 20  # bytes of a footer that pyarrow reads sooner than we do, its import included


def column_names(words: Iterable[str]) -> list[str]:
    """The columns of the first of these words that means a local Parquet file; none, if none does.

    A directory stands for its first file, a glob for its first match; hive partitions of the path
    are columns, too.
    """
    for word in words:
        path = _first_file(word)
        if path is None:
            continue
        names = _names(path)
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


def _names(path: Path) -> list[str]:
    """The top columns of a Parquet file; none where it is no such file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            tail = os.pread(file.fileno(), TAIL, max(size - TAIL, 0))
            if tail.endswith(MAGIC) and int.from_bytes(tail[:4], "little") > _BIG:
                import pyarrow.parquet as pq  # noqa: PLC0415

                return list(pq.read_schema(path).names)
            elements = read_footer(file.fileno(), size)[0].structs(FileMeta.SCHEMA)
    except (OSError, ValueError):  # pyarrow's errors are ValueErrors, as a FooterError is
        return []
    found, place = [], 1
    for _ in range(elements[0].integer(SchemaElement.CHILDREN, 0)):
        found.append(elements[place].binary(SchemaElement.NAME).decode("utf-8", "replace"))
        place = _behind(elements, place)
    return found


def _behind(elements: Sequence[Struct], place: int) -> int:
    """Where the next element on the same level stands; the list has each before those below it."""
    left = 1
    while left:
        left += elements[place].integer(SchemaElement.CHILDREN, 0) - 1
        place += 1
    return place
