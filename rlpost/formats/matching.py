"""Rows of dumps under a condition, whose names are columns, roles or scalar fields of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from rlpost.formats.where import role_columns
from rlpost.io.arrow import CellLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rlpost.formats.records import Row
    from rlpost.formats.where import Where

_FIELD = "where:"
_ENOUGH = 1000  # rows without a name, from which on it is taken to be unknown


class DumpFilter:
    """Keeps the rows of a dump that match.

    `add_fields` writes what a condition names and no column has into a row, as a column of the
    batches that `batches` reads and removes again.

    Args:
        where: the condition.
        path: of the dump, for errors.
    """

    def __init__(self, where: Where, path: Path) -> None:
        self._where, self._path = where, path
        self._missing = {*where.names}
        self._known: set[str] = set()
        self._rows = 0

    def add_fields(self, row: Row) -> None:
        """Add the fields that the condition names and that are no columns of the row."""
        columns = self._where.columns(row.values, role_columns(row.values))
        for name, column in columns.items():
            if column is not None:
                self._missing.discard(name)
                continue
            has, value = _field(row, name)
            if has:
                self._missing.discard(name)
                row.values[_FIELD + name] = self._scalar(row, name, value)
        self._rows += 1
        if self._missing and self._rows <= _ENOUGH:
            self._known |= {*row.values, *role_columns(row.values), *row.scalars}
            self._known |= {*row.record.fields}
            if self._rows == _ENOUGH:
                self._check()

    def _scalar(self, row: Row, name: str, value: Any) -> Any:
        """Return a number as float64, so that 1 and 0.5 are of one type; or a text or bool."""
        if isinstance(value, (list, dict)):
            kind = "a list" if isinstance(value, list) else "an object"
            raise self._where.error(f"{name} is {kind} ({row.where}); a scalar is needed")
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53:
            return float(value)
        return value if value is None or isinstance(value, (bool, float)) else str(value)

    def _check(self) -> None:
        """Raise UsageError for a name that no row had."""
        for name in self._where.names:
            if name in self._missing:
                raise self._where.unknown(name, self._known, str(self._path))

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of batches that match."""
        matches = self._where.matches
        for batch in batches:
            values = self._values(batch)
            kept = self._where.matching(values)
            matches.rows += batch.num_rows
            matches.matched += int(kept.sum())
            columns = [name for name in batch.schema.names if not name.startswith(_FIELD)]
            if kept.any():
                yield batch.select(columns).filter(pa.array(kept))
        if self._missing and self._known:
            self._check()

    def _values(self, batch: pa.RecordBatch) -> dict[str, pl.Series]:
        names = [name for name in batch.schema.names if not name.startswith(_FIELD)]
        roles, values = role_columns(names), {}
        self._known |= {*names, *roles}
        for name, found in self._where.columns(names, roles).items():
            column = found or _FIELD + name
            if column in batch.schema.names:
                self._missing.discard(name)
                place = CellLocation(str(self._path), 0, column)
                values[name] = self._where.values(name, batch.column(column), place)
            else:
                values[name] = pl.Series([None] * batch.num_rows)
        return values


def _field(row: Row, name: str) -> tuple[bool, Any]:
    """Return whether a record has a field, and its value: of what contains it, else its own."""
    if name in row.scalars:
        return True, row.scalars[name]
    value: Any = row.record.fields
    for part in [name] if name in value else name.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value
