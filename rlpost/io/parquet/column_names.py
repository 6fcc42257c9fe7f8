"""Column names of a Parquet file without pyarrow, fast enough for shell completion."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.io.parquet.footer import MAGIC, TAIL, FileMeta, SchemaElement, Struct, read_footer
from rlpost.io.ranges import read_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_LARGE_FOOTER = 1 << 20  # bytes above which pyarrow is faster, in spite of its import


def column_names(words: Iterable[str]) -> list[str]:
    """Return the columns of the first word that is a path to local Parquet; [] if there is none.

    Of a directory it reads the first file, of a glob the first match. Hive partitions of the path
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
    """Return the top-level columns of a Parquet file; [] if it cannot be read as one."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            tail = read_at(file.fileno(), TAIL, max(size - TAIL, 0))
            if tail.endswith(MAGIC) and int.from_bytes(tail[:4], "little") > _LARGE_FOOTER:
                import pyarrow.parquet as pq  # noqa: PLC0415

                return list(pq.read_schema(path).names)
            elements = read_footer(file.fileno(), size)[0].structs(FileMeta.SCHEMA)
    except (OSError, ValueError):  # errors of pyarrow and FooterErrors are ValueErrors
        return []
    names, index = [], 1
    for _ in range(elements[0].integer(SchemaElement.CHILDREN, 0)):
        names.append(elements[index].binary(SchemaElement.NAME).decode("utf-8", "replace"))
        index = _next_sibling(elements, index)
    return names


def _next_sibling(elements: Sequence[Struct], index: int) -> int:
    """Return the index of the next element on the same level, in depth-first order."""
    left = 1
    while left:
        left += elements[index].integer(SchemaElement.CHILDREN, 0) - 1
        index += 1
    return index
