"""SQLite databases: the rows of one table as records."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rlpost.errors import DataError
from rlpost.formats.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def _open(path: Path) -> closing[sqlite3.Connection]:
    """Open a database for reading alone; without a log of a writer nothing is locked or written."""
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def database_records(path: Path, table: str) -> Iterator[Record]:
    """Yield the rows of a table, in the order in which they were inserted.

    Raises:
        DataError: the file is no SQLite database, is damaged, or has no such table.
    """
    try:
        with _open(path) as database:
            rows = database.execute(f"SELECT * FROM {_quoted(table)} ORDER BY rowid")  # noqa: S608
            names = [column[0] for column in rows.description]
            for i, values in enumerate(rows):
                yield Record(
                    f"{path}, {table}, row {i}", dict(zip(names, values, strict=True)), path
                )
    except sqlite3.Error as error:
        raise DataError(f"{path}: not a SQLite database with a table `{table}` ({error})") from None


def database_fields(path: Path, table: str) -> Mapping[str, Any]:
    """Return the columns of a table with None; none if the file has no such table."""
    try:
        with _open(path) as database:
            rows = database.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    except sqlite3.Error:
        return {}
    return {row[1]: None for row in rows}
