"""Rows of an input as an export writes them: vectors of tokens, and plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, is_list, is_number
from rlpost.io.finish_reasons import truncations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source

LENGTH_OF = ("response_token_ids", "mask", "advantages")
"""Items whose lists have an entry per response token; the first that there is sets the length."""


@dataclass(frozen=True)
class Rows:
    """Some rows of one file, decoded."""

    table: pa.RecordBatch
    path: str
    places: NDArray[np.int64]
    """[n] row numbers in the file."""
    numbers: NDArray[np.int64]
    """[n] row numbers in the whole input."""
    columns: Mapping[str, str]
    """As `ExportColumns.columns`."""

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.table.num_rows)

    def __contains__(self, item: str) -> bool:
        """Whether there is a column for an item."""
        return item in self.columns

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        if len(rows) == len(self):
            return self
        table = self.table.take(pa.array(rows))
        return replace(self, table=table, places=self.places[rows], numbers=self.numbers[rows])

    def error(self, row: int, problem: str) -> DataError:
        """Return an error about a row."""
        return DataError(f"{self.path}, row {self.places[row]}: {problem}")

    def plain(self, column: str) -> list[Any]:
        """Return the values of a column: vectors for lists of numbers, else Python objects."""
        array = self.table.column(column)
        if is_list(array.type) and is_number(array.type.value_type) and not array.null_count:
            flat = array.flatten()
            if not flat.null_count and not pa.types.is_boolean(flat.type):
                return _split(*ragged.list_values(array, self._location(column)))
        return list(array.to_pylist())

    def values(self, item: str) -> list[Any]:
        """Return the values of an item as Python objects; None for all if it has no column."""
        return self.plain(self.columns[item]) if item in self else [None] * len(self)

    def keys(self, item: str) -> list[Any]:
        """Return the values of an item that is a key: integers or texts."""
        return list(ragged.key(*self._column(item)).to_pylist())

    def numbers_of(self, item: str) -> NDArray[np.float64]:
        """Return a number per row; lists are summed."""
        return ragged.numbers(*self._column(item))

    def truncated(self) -> list[bool]:
        """Return which responses reached the length limit; False without such a column."""
        if "truncated" not in self:
            return [False] * len(self)
        return list(truncations(*self._column("truncated")).truncated.tolist())

    def lists(self, item: str) -> list[NDArray[Any]]:
        """Return a vector per row: ids of prompts, for example."""
        return _split(*ragged.list_values(*self._column(item)))

    def tokens(self, item: str) -> list[NDArray[Any]]:
        """Return a vector [T] per row, with one number per response token.

        Raises:
            DataError: its length differs from that of the ids, or of the mask.
        """
        values = self.lists(item)
        other = next(name for name in (*LENGTH_OF, item) if name in self)
        for row, pair in enumerate(zip(values, self.lists(other), strict=True)):
            length, expected = map(len, pair)
            if length != expected:
                raise self.error(
                    row,
                    f"`{self.columns[item]}` has {length} values but `{self.columns[other]}` has "
                    f"{expected}; every token column of a row needs the same length",
                )
        return values

    def masks(self, item: str = "mask") -> list[NDArray[np.bool_]]:
        """Return the mask of each row; all tokens without such a column."""
        if item not in self:
            other = next(name for name in LENGTH_OF if name in self)
            return [np.ones(len(tokens), np.bool_) for tokens in self.lists(other)]
        self.tokens(item)  # checks the lengths
        return _split(*ragged.mask(*self._column(item)))

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows the sample mask keeps, [n]."""
        if "sample_mask" not in self:
            return np.ones(len(self), np.bool_)
        return np.asarray(self.numbers_of("sample_mask") != 0)

    def trained(self) -> list[NDArray[np.bool_]]:
        """Return the mask of the tokens to train on: none of a response that is left out."""
        return [mask & kept for mask, kept in zip(self.masks(), self.kept(), strict=True)]

    def _column(self, item: str) -> tuple[pa.Array, CellLocation]:
        name = self.columns[item]
        return self.table.column(name), self._location(name)

    def _location(self, column: str) -> CellLocation:
        return CellLocation(self.path, int(self.places[0]) if len(self) else 0, column)


def read_rows(
    source: Source, names: Sequence[str], columns: Mapping[str, str], tokens: int, sized_by: str
) -> Iterator[Rows]:
    """Yield the rows of an input in pieces.

    Args:
        source: the input.
        names: the columns that are read.
        columns: as `ExportColumns.columns`.
        tokens: of the column `sized_by` in a piece; of rows, if that is "".
        sized_by: a column of lists.
    """
    for chunk in source.read(names, tokens, sized_by):
        places = np.arange(chunk.first_row, chunk.first_row + chunk.table.num_rows)
        path, before = str(source.files[chunk.file].path), source.first_rows[chunk.file]
        yield Rows(chunk.table, path, places, places + before, columns)


def _split(offsets: NDArray[np.int64], values: NDArray[Any]) -> list[NDArray[Any]]:
    return [values[i:j] for i, j in pairwise(offsets.tolist())]


def nonfinite(array: pa.Array) -> int:
    """Return the number of NaN and infinite numbers in a column, in lists and structs, too."""
    if is_list(array.type):
        return nonfinite(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(nonfinite, array.flatten()))
    if not pa.types.is_floating(array.type):
        return 0
    return int((~np.isfinite(ragged.fill_nulls(array, 0.0))).sum())
