"""The rows that the browser lists: those that fulfil a condition and contain a text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.responses.columns import text_columns, text_of
from rlpost.analysis.responses.index import moments_by, stream_chunks
from rlpost.errors import DataError, UsageError
from rlpost.io.arrow import without_dictionary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.display.reporter import Reporter


COMPUTED = ("row", "length", "kl", "advantage", "group_size", "group_mean", "group_std")
"""Numbers of a response that a condition may name and that no column of scalars has."""


def rows_where(text: str, index: Index) -> NDArray[np.bool_]:
    """Return the rows that fulfil a condition of `--where`, [N].

    Raises:
        UsageError: as `Where` and `matching_rows`.
        DataError: the input lacks the columns of the length, the KL or the advantage.
    """
    from rlpost.formats.selected import matching_rows  # noqa: PLC0415 - imports polars
    from rlpost.formats.where import Where  # noqa: PLC0415 - imports polars

    source, roles = index.source, index.columns
    mapped = {role: name for role, name in roles.columns.items() if roles.how.get(role) == "map"}
    computed = {name: partial(computed_number, index, name) for name in COMPUTED}
    matches = matching_rows(source, Where(text, mapped), roles.columns, computed)
    kept = np.zeros(len(index), dtype=np.bool_)
    for first, rows in zip(source.first_rows, matches, strict=False):
        kept[first + rows] = True
    return kept


def computed_number(index: Index, name: str) -> NDArray[np.float64]:
    """Return one of COMPUTED for each row, [N]; those of a group are of all its rows."""
    if name == "row":
        return np.arange(len(index), dtype=np.float64)
    if name.startswith("group_"):
        units, count = index.counted(np.arange(len(index))), int(index.group.max(initial=-1)) + 1
        groups = index.table.units["group"][units]
        if name == "group_size":
            return np.bincount(groups, minlength=count)[index.group].astype(np.float64)
        moments = moments_by(index.rewards[units], groups, count)
        values = moments.mean if name == "group_mean" else moments.std
        return np.where(moments.number > 0, values, np.nan)[index.group]
    return index.number(name)


def search_rows(text: str, index: Index, reporter: Reporter | None = None) -> NDArray[np.bool_]:
    """Return the rows whose prompts, responses or messages contain a text in any case, [N].

    Raises:
        DataError: the input has no text.
    """
    columns = [*text_columns(index.source.schemas[0], index.names).values()]
    if not columns:
        raise DataError(f"{index.source.name}: there is no text column to search")
    rows = [np.zeros(0, dtype=np.bool_)]
    for chunk in stream_chunks(index.source, columns, columns[0], reporter, "search"):
        matches = [_matches(chunk.table.column(name), text) for name in columns]
        rows.append(np.logical_or.reduce(matches))
    return np.concatenate(rows)


def _matches(array: pa.Array, text: str) -> NDArray[np.bool_]:
    array = without_dictionary(array)
    if pa.types.is_nested(array.type):
        array = pa.array([text_of(value) for value in array.to_pylist()], pa.large_string())
    contains = pc.fill_null(pc.match_substring(array, text, ignore_case=True), False)  # noqa: FBT003
    return np.asarray(contains.to_numpy(zero_copy_only=False), dtype=np.bool_)


FilterKind = Literal["search", "where"]


class RowFilter:
    """A condition, a search text, and the rows that match both.

    Args:
        index: of the input.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self.clear()

    def clear(self) -> None:
        """Remove the condition and the search."""
        self.texts: dict[FilterKind, str] = {"search": "", "where": ""}
        self._kept: dict[FilterKind, NDArray[np.bool_]] = {}

    @property
    def kept(self) -> NDArray[np.bool_]:
        """[N] whether a row matches."""
        kept = np.ones(len(self.index), np.bool_)
        for rows in self._kept.values():
            kept &= rows
        return kept

    def set(self, kind: FilterKind, text: str) -> None:
        """Set the condition or the search; empty matches every row. May stream columns.

        Raises:
            UsageError: the condition is wrong, or no row matches; the old one stays.
            DataError: the input has no text to search, or no column for a number.
        """
        kept = {name: rows for name, rows in self._kept.items() if name != kind}
        if text:
            kept[kind] = (rows_where if kind == "where" else search_rows)(text, self.index)
            if not np.logical_and.reduce([*kept.values()]).any():
                raise UsageError(f"{'--where ' * (kind == 'where')}{text}: no response matches")
        self.texts[kind], self._kept = text, kept
