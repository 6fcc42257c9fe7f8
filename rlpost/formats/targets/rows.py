"""Rows of an input as an export writes them: vectors of tokens, and plain values."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, is_list, is_number
from rlpost.io.finish_reasons import truncations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import RowChunk

_LENGTH_OF = ("response_token_ids", "mask", "advantages")


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

    @classmethod
    def of(cls, chunk: RowChunk, path: str, before: int, columns: Mapping[str, str]) -> Rows:
        """Return a chunk of a file that has `before` rows of the input before it."""
        places = np.arange(chunk.first_row, chunk.first_row + chunk.table.num_rows)
        return cls(chunk.table, path, places, places + before, columns)

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.table.num_rows)

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return some of the rows."""
        if len(rows) == len(self):
            return self
        table = self.table.take(pa.array(rows))
        return replace(self, table=table, places=self.places[rows], numbers=self.numbers[rows])

    def error(self, row: int, problem: str) -> DataError:
        """Return an error about a row."""
        return DataError(f"{self.path}, row {self.places[row]}: {problem}")

    def __contains__(self, item: str) -> bool:
        """Whether there is a column for an item."""
        return item in self.columns

    def token_count(self) -> int:
        """Return the number of response tokens; 0 if no item sets the lengths."""
        item = next((name for name in _LENGTH_OF if name in self.columns), None)
        return 0 if item is None else sum(map(len, self.lists(item)))

    def values(self, item: str) -> list[Any]:
        """Return the values of an item as Python objects; None for all if it has no column."""
        if item not in self.columns:
            return [None] * len(self)
        return self.plain(self.columns[item])

    def plain(self, column: str) -> list[Any]:
        """Return the values of a column: vectors for lists of numbers, else Python objects."""
        array = self.table.column(column)
        if is_list(array.type) and is_number(array.type.value_type) and not array.null_count:
            flat = array.flatten()
            if not flat.null_count and not pa.types.is_boolean(flat.type):
                return self._split(*ragged.list_values(array, self._location(column)))
        return list(array.to_pylist())

    def keys(self, item: str) -> list[Any]:
        """Return the values of an item that is a key: integers or texts."""
        column = self.columns[item]
        return list(ragged.key(self.table.column(column), self._location(column)).to_pylist())

    def numbers_of(self, item: str) -> NDArray[np.float64]:
        """Return a number per row; lists are summed."""
        column = self.columns[item]
        return ragged.numbers(self.table.column(column), self._location(column))

    def truncated(self) -> list[bool]:
        """Return which responses reached the length limit; False without such a column."""
        if "truncated" not in self.columns:
            return [False] * len(self)
        column = self.columns["truncated"]
        array = self.table.column(column)
        if pa.types.is_integer(array.type):
            return [bool(value) for value in array.to_pylist()]
        return list(truncations(array, self._location(column)).truncated.tolist())

    def lists(self, item: str) -> list[NDArray[Any]]:
        """Return a vector per row: ids of prompts, for example."""
        column = self.columns[item]
        return self._split(*ragged.list_values(self.table.column(column), self._location(column)))

    def tokens(self, item: str) -> list[NDArray[Any]]:
        """Return a vector [T] per row, with one number per response token.

        Raises:
            DataError: its length differs from that of the ids, or of the mask.
        """
        found = self.lists(item)
        other = next(name for name in (*_LENGTH_OF, item) if name in self.columns)
        if other != item:
            for row, (own, expected) in enumerate(zip(found, self.lists(other), strict=True)):
                if len(own) != len(expected):
                    raise self.error(
                        row,
                        f"`{self.columns[item]}` has {len(own)} values but "
                        f"`{self.columns[other]}` has {len(expected)}; every token column of a "
                        "row needs the same length",
                    )
        return found

    def masks(self, item: str = "mask") -> list[NDArray[np.bool_]]:
        """Return the mask of each row; all tokens without such a column."""
        if item not in self.columns:
            other = next(name for name in _LENGTH_OF if name in self.columns)
            return [np.ones(len(own), np.bool_) for own in self.lists(other)]
        self.tokens(item)  # checks the lengths
        column = self.columns[item]
        return self._split(*ragged.mask(self.table.column(column), self._location(column)))

    def kept(self) -> NDArray[np.bool_]:
        """Return which rows the sample mask keeps, [n]."""
        if "sample_mask" not in self.columns:
            return np.ones(len(self), np.bool_)
        return np.asarray(self.numbers_of("sample_mask") != 0)

    def trained(self) -> list[NDArray[np.bool_]]:
        """Return the mask of the tokens to train on: none of a response that is left out."""
        return [own & kept for own, kept in zip(self.masks(), self.kept(), strict=True)]

    def where(self, item: str, masks: list[NDArray[np.bool_]]) -> list[NDArray[np.float32]]:
        """Return float32 vectors that are 0 outside of a mask.

        Raises:
            DataError: a number where the mask is 1 is not finite.
        """
        found = []
        for row, (own, mask) in enumerate(zip(self.tokens(item), masks, strict=True)):
            values = np.where(mask, own, 0).astype(np.float32)
            if not np.isfinite(values).all():
                token = int(np.flatnonzero(~np.isfinite(values))[0])
                raise self.error(
                    row,
                    f"`{self.columns[item]}` is {values[token]} at token {token}; a policy token "
                    "needs a finite number: mask it, or compute it again",
                )
            found.append(values)
        return found

    def _location(self, column: str) -> CellLocation:
        return CellLocation(self.path, int(self.places[0]) if len(self) else 0, column)

    def _split(self, offsets: NDArray[np.int64], values: NDArray[Any]) -> list[NDArray[Any]]:
        bounds = offsets.tolist()
        return [values[i:j] for i, j in itertools.pairwise(bounds)]


def nonfinite(array: pa.Array) -> int:
    """Return the number of NaN and infinite numbers in a column, in lists and structs, too."""
    if is_list(array.type):
        return nonfinite(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(nonfinite(part) for part in array.flatten())
    if not pa.types.is_floating(array.type):
        return 0
    return int((~np.isfinite(ragged.fill_nulls(array, 0.0))).sum())
