"""Token lists of a dump -> lists with one entry per response token, and checks of their lengths.

A response begins with the first policy token (mask 1) and ends with the sequence. Tokens between
two turns (tool output, the user's next message) stay, with mask 0. Lists that do not fit their
layout, or each other, are a DataError that names the record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import CANONICAL, LENGTH
from rlpost.formats.records import as_float
from rlpost.formats.rows import gathered, is_flat, list_column, shown, values_of
from rlpost.io.arrow import dtype_of, fill_nulls, is_tokens, is_true, list_values, to_arrow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.io.arrow import CellLocation

SEQUENCE_LENGTH, SEQUENCE_IDS = "sequence_length", "sequence_token_ids"
"""What declared layouts read besides columns: the length of a sequence without padding, and the ids
of prompt and response."""
MASK, IDS, PROMPT = "response_mask", "response_token_ids", "prompt_token_ids"
_MASK_NEEDS = "a mask is 1 for policy tokens and 0 for other tokens"


class TokenLists(NamedTuple):
    """The lists of some rows: offsets [n+1] into values [T], and which rows have a list."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    valid: NDArray[np.bool_]
    name: str
    """Their field, for errors."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of entries of each row, [n]."""
        return np.diff(self.offsets)

    def row(self, row: int) -> NDArray[Any]:
        """Return the list of a row."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def cut(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> TokenLists:
        """Return the entries of each row from its begin to its end; a row without a list stays."""
        lengths = np.where(self.valid, ends - begins, 0)
        offsets = np.append(0, np.cumsum(lengths))
        shifts = self.offsets[:-1] + begins - offsets[:-1]
        chosen = np.arange(offsets[-1]) + np.repeat(shifts, lengths)
        return self._replace(offsets=offsets, values=self.values[chosen])

    def check(
        self, lengths: NDArray[np.int64], what: str, location: CellLocation, tip: str = ""
    ) -> None:
        """Raise DataError for a row with another number of entries than that of `what`."""
        wrong = np.flatnonzero(self.valid & (lengths >= 0) & (self.lengths != lengths))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{location.where(row)}: `{self.name}` has {self.lengths[row]} entries and {what} "
                f"has {lengths[row]}; every token list of a response needs one entry per token",
                tip=tip,
            )

    def entry_error(self, at: int, location: CellLocation, needed: str) -> DataError:
        """Return the error for an entry."""
        row = int(np.searchsorted(self.offsets, at, side="right")) - 1
        came = "null" if np.isnan(self.values[at]) else self.values[at]
        place = replace(location, column=self.name)
        return place.error(row, f"has {came} at token {at - self.offsets[row]}", needed)


def ragged(array: pa.Array, location: CellLocation, *, mask: bool = False) -> TokenLists:
    """Return the lists of a column; a null in place of a list is an empty one.

    Raises:
        DataError: a value is not a list of numbers; or of 0 and 1, if it is a mask.
    """
    valid = is_true(array.is_valid())
    if not is_tokens(array.type):
        cells = values_of(array)
        for row, cell in enumerate(cells):
            if not (cell is None or is_flat(cell)):
                raise location.error(row, f"is {shown(cell)}", "a flat list of numbers is needed")
        floats = [cell if cell is None else np.array(
            [np.nan if x is None else as_float(x) for x in cell]) for cell in cells]  # fmt: skip
        array = gathered(floats).cast(pa.list_(pa.float64()))  # of bools too, or of long integers
    given, values = list_values(array if valid.all() else array.filter(array.is_valid()), location)
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = np.diff(given)
    lists = TokenLists(np.append(0, np.cumsum(lengths)), values, valid, location.column)
    if not mask:
        return lists
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        raise lists.entry_error(int(wrong[0]), location, _MASK_NEEDS)
    return lists._replace(values=values.astype(np.uint8))


def of_responses(
    layout: str,
    lists: Mapping[str, TokenLists],
    columns: Mapping[str, pa.Array],
    location: CellLocation,
) -> dict[str, TokenLists]:
    """Return lists in a layout as lists with one entry per response token.

    Of `tail`, and of sequences with a length, the ids before the response are those of the prompt.

    Args:
        layout: `padded`: prompt, response and padding, where entry t belongs to token t; or `tail`:
            `SEQUENCE_IDS` begin with the prompt, and all other lists are of the response alone.
        lists: column -> its lists.
        columns: the other columns.
        location: of the rows.

    Raises:
        DataError: a row's lists do not fit the layout.
    """
    return _tail(lists, columns, location) if layout == "tail" else _cut(lists, columns, location)


def _cut(
    lists: Mapping[str, TokenLists], columns: Mapping[str, pa.Array], location: CellLocation
) -> dict[str, TokenLists]:
    mask = lists[MASK]
    for column in lists.values():
        column.check(mask.lengths, f"`{mask.name}`", location)
    ones = np.flatnonzero(mask.values)
    first, last = np.searchsorted(ones, mask.offsets[:-1]), np.searchsorted(ones, mask.offsets[1:])
    padded, filled = np.append(ones, 0), last > first
    begins = np.where(filled, padded[first] - mask.offsets[:-1], mask.lengths)
    lasts = np.where(filled, padded[last - 1] + 1 - mask.offsets[:-1], 0)
    given = lengths_of(columns.get(SEQUENCE_LENGTH), len(mask.valid))
    ends = np.where(given < 0, lasts, given)
    for row in np.flatnonzero(mask.valid & ~((lasts <= ends) & (ends <= mask.lengths)))[:1]:
        raise DataError(
            f"{location.where(row)}: the sequence length is {ends[row]}, but the lists have "
            f"{mask.lengths[row]} entries and the mask is 1 up to token {lasts[row] - 1}"
        )
    begins = np.minimum(begins, ends)
    response = {name: column.cut(begins, ends) for name, column in lists.items()}
    if SEQUENCE_LENGTH in columns and IDS in lists:
        response[PROMPT] = lists[IDS].cut(np.zeros_like(begins), begins)
    return response


def _tail(
    lists: Mapping[str, TokenLists], columns: Mapping[str, pa.Array], location: CellLocation
) -> dict[str, TokenLists]:
    sequences = lists[SEQUENCE_IDS]
    lengths = lengths_of(columns[LENGTH], len(sequences.valid))
    for row in np.flatnonzero((lengths < 0) | (lengths > sequences.lengths))[:1]:
        raise DataError(
            f"{location.where(row)}: the response length is {lengths[row]}, but `{sequences.name}`,"
            f" prompt and response together, has {sequences.lengths[row]} entries"
        )
    starts = sequences.lengths - lengths
    response = {PROMPT: sequences.cut(np.zeros_like(starts), starts),
                IDS: sequences.cut(starts, sequences.lengths)}  # fmt: skip
    for name, column in lists.items():
        if name != SEQUENCE_IDS:  # a list without entries is none
            given = column._replace(valid=column.valid & ((column.lengths > 0) | (lengths == 0)))
            given.check(lengths, "the response", location)
            response[name] = given
    ones, mask = np.ones(lengths.sum(), np.uint8), response.get(MASK)
    if mask is not None:  # without a mask, all tokens are of the policy
        ones[np.repeat(mask.valid, lengths)] = mask.values
    return {**response, MASK: response[IDS]._replace(values=ones, name=mask.name if mask else MASK)}


def lengths_of(array: pa.Array | None, rows: int) -> NDArray[np.int64]:
    """Return a column of lengths [n]; -1 where they are unknown."""
    if array is None or pa.types.is_null(array.type):
        return np.full(rows, -1)
    return np.asarray(fill_nulls(array, -1), np.int64)


def list_arrays(
    lists: Mapping[str, TokenLists],
    columns: Mapping[str, pa.Array],
    location: CellLocation,
    types: Mapping[str, pa.DataType],
) -> dict[str, pa.Array]:
    """Return the lists of responses as columns; a row without tokens has empty lists.

    Args:
        lists: column -> its lists.
        columns: the other columns, such as `response_length`.
        location: of the rows.
        types: of columns that are not canonical; others are float64.

    Raises:
        DataError: lists of a row differ in length, or some rows with tokens alone have a list.
    """
    tokens = {name: column for name, column in lists.items() if name != PROMPT}
    for first in [*tokens.values()][:1]:
        lengths = np.where(first.valid, first.lengths, -1)
        for column in tokens.values():
            column.check(lengths, f"`{first.name}`", location)
        given = lengths_of(columns.get(LENGTH), len(first.valid))
        tip = f"--map {LENGTH}=none  # if it counts something else"
        first.check(given, f"`{LENGTH}`", location, tip)
        _check_even(tokens, location)
    kinds = {name: pa.list_(pa.float64()) for name in lists} | {**types} | CANONICAL
    return {name: _array(column, kinds[name], location)
            for name, column in lists.items() if column.valid.any()}  # fmt: skip


def _check_even(lists: Mapping[str, TokenLists], location: CellLocation) -> None:
    """Raise DataError for a row with tokens that has other lists than the first one."""
    tokens = np.any([column.lengths > 0 for column in lists.values()], axis=0)
    for name, column in lists.items():
        has = column.valid[tokens][:1]
        for row in np.flatnonzero(tokens & (column.valid != has))[:1] if len(has) else ():
            less, more = ("lacks", "have") if has else ("has", "lack")
            raise DataError(
                f"{location.where(row)}: {less} {name}, which earlier records {more}; all or none "
                "must have it: remove the record, or omit the role",
                tip=f"--map {name}=none",
            )


def _array(lists: TokenLists, kind: pa.DataType, location: CellLocation) -> pa.Array:
    """Return lists in the type of their column; ids must fit, and float32 overflow is infinite."""
    values = lists.values
    with np.errstate(over="ignore", invalid="ignore"):
        converted: NDArray[Any] = values.astype(dtype_of(kind.value_type), copy=False)
    if pa.types.is_integer(kind.value_type) and not np.array_equal(converted, values):
        at = int(np.flatnonzero(converted != values)[0])
        raise lists.entry_error(at, location, "integers of at most 32 bits are needed")
    return list_column(lists.lengths, to_arrow(converted, kind.value_type))
