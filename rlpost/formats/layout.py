"""Token layouts: the lists of a framework -> lists with one entry per response token.

A response begins with the first policy token (mask 1) and ends with the sequence. Tokens between
two turns (tool output, the user's next message) stay, with mask 0. Lists that do not fit their
layout, or each other, are a DataError that names the record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.formats.base import CANONICAL, LENGTH
from rlpost.formats.records import as_float
from rlpost.formats.rows import is_flat, packed, shown, values_of
from rlpost.io.arrow import dtype_of, fill_nulls, is_tokens, is_true, list_values, to_arrow
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadStats
    from rlpost.io.arrow import CellLocation

LAYOUTS = {
    "response": "one entry per response token, without padding (no change)",
    "padded": "prompt, response and padding; entry t belongs to token t",
}
SEQUENCE_LENGTH, SEQUENCE_IDS = "sequence_length", "sequence_token_ids"
"""What declared layouts read besides columns: the length of a sequence without padding, and the ids
of prompt and response."""
_MASK, _IDS, _PROMPT = "response_mask", "response_token_ids", "prompt_token_ids"
Lists = dict[str, "NDArray[Any]"]
_LARGE, _COPIES = 1 << 20, 4  # bytes of a vector, and how often it is in memory
_MASK_NEEDS = "a mask is 1 for policy tokens and 0 for other tokens"


def check_layout(name: str) -> None:
    """Raise UsageError with the known names if a layout is unknown."""
    if name not in LAYOUTS:
        known = f"the layouts are {', '.join(LAYOUTS)}"
        raise UsageError(no_such(f"--layout {name}: no such layout", name, LAYOUTS, known))


def as_vector(where: str, name: str, value: object) -> NDArray[Any]:
    """Return a list (or array, or tensor) of numbers as a vector [T]; null becomes NaN.

    Raises:
        DataError: the value is not a list, is a list of lists, or has other entries than numbers.
        NotEnoughMemoryError: it does not fit into the memory of the run.
    """
    vector = packed(value)
    if isinstance(vector, list) and is_flat(vector):
        vector = np.array([np.nan if x is None else as_float(x) for x in vector])
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind not in "biuf":
        came = f"nested {vector.ndim} deep" if isinstance(vector, np.ndarray) else shown(value)
        raise DataError(
            f"{where}: `{name}` is {came}; a flat list of numbers, one per token, is needed"
        )
    if vector.nbytes > _LARGE:  # of a tensor, it may be more than its file has
        memory_limit().check(_COPIES * vector.nbytes, f"{where}: `{name}`")
    return vector


def check_length(where: str, name: str, array: NDArray[Any], length: int, of: str) -> None:
    """Raise DataError unless the list has that many entries, the number of `of`."""
    if len(array) != length:
        raise DataError(
            f"{where}: `{name}` has {len(array)} entries and {of} has {length}; they must be equal "
            "(--layout sets the layout of the lists)"
        )


class TokenLists(NamedTuple):
    """The lists of some rows: offsets [n+1] into values [T], and which rows have a list."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    valid: NDArray[np.bool_]
    name: str
    """Their field, for errors."""

    def row(self, row: int) -> NDArray[Any]:
        """Return the list of a row."""
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of entries of each row, [n]."""
        return np.diff(self.offsets)


def ragged(array: pa.Array, location: CellLocation, *, mask: bool = False) -> TokenLists:
    """Return the lists of a column; a null in place of a list is an empty one.

    Raises:
        DataError: a value is not a list of numbers; or of 0 and 1, if it is a mask.
    """
    valid = is_true(array.is_valid())
    if pa.types.is_null(array.type):
        return TokenLists(np.zeros(len(array) + 1, np.int64), np.zeros(0), valid, location.column)
    if not is_tokens(array.type):
        cells = values_of(array)
        for row, cell in enumerate(cells):
            if not (cell is None or is_flat(cell)):
                raise location.error(row, f"is {shown(cell)}", "a flat list of numbers is needed")
        floats = ([None if x is None else as_float(x) for x in cell or ()] for cell in cells)
        array = pa.array([*floats], pa.list_(pa.float64()))  # of bools too, or of long integers
    if array.null_count:
        array = array.filter(array.is_valid())
    given, values = list_values(array, location)
    lengths = np.zeros(len(valid), np.int64)
    lengths[valid] = np.diff(given)
    lists = TokenLists(np.append(0, np.cumsum(lengths)), values, valid, location.column)
    if mask:
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise _entry_error(lists, int(wrong[0]), location, _MASK_NEEDS)
        lists = lists._replace(values=values.astype(np.uint8))
    return lists


def _entry_error(lists: TokenLists, at: int, location: CellLocation, needed: str) -> DataError:
    row = int(np.searchsorted(lists.offsets, at, side="right")) - 1
    value = lists.values[at]
    came = "null" if np.isnan(value) else value
    return location.error(row, f"has {came} at token {at - lists.offsets[row]}", needed)


def response_columns(
    layout: str,
    lists: Mapping[str, TokenLists],
    columns: dict[str, pa.Array],
    location: CellLocation,
) -> dict[str, TokenLists]:
    """Return lists in a layout as lists with one entry per response token, row by row.

    With `tail`, and of sequences with a `SEQUENCE_LENGTH`, the ids before the response are those of
    the prompt.

    Args:
        layout: one of `LAYOUTS`, or `tail`: `SEQUENCE_IDS` begin with the prompt, and all other
            lists are of the response alone.
        lists: column -> its lists.
        columns: the other columns; `SEQUENCE_LENGTH` is taken out, and `response_length` becomes 0
            where the mask has no 1.
        location: of the rows.

    Raises:
        DataError: a row's lists do not fit the layout.
    """
    if layout == "response":
        return dict(lists)
    names = {name: column.name for name, column in lists.items()}
    rows = len(next(iter(lists.values())).valid)
    ends = columns.pop(SEQUENCE_LENGTH, pa.nulls(rows)).to_pylist()
    lengths = columns.get(LENGTH, pa.nulls(rows)).to_pylist()
    cut: list[Lists] = []
    for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        where = location.where(row)
        entries = {name: column.row(row) for name, column in lists.items() if column.valid[row]}
        if not entries:
            cut.append({})
        elif layout == "tail":
            cut.append(_tail(where, entries, length, names))
        else:
            if _MASK not in entries:
                column = replace(location, column=names.get(_MASK, _MASK))
                raise column.error(row, "is null", _MASK_NEEDS)
            cut.append(response_lists(where, entries, end, length, names))
            if length is not None and not len(cut[-1][_MASK]):
                lengths[row] = 0  # without mask 1 the response is unknown and becomes empty
    columns |= {LENGTH: pa.array(lengths, pa.int64())} if LENGTH in columns else {}
    columns_of_cut = dict.fromkeys(name for response in cut for name in response)
    return {name: _joined([response.get(name) for response in cut], names.get(name, name))
            for name in columns_of_cut}  # fmt: skip


def _joined(parts: list[NDArray[Any] | None], name: str) -> TokenLists:
    valid = np.array([part is not None for part in parts], np.bool_)
    offsets = np.cumsum([0, *(0 if part is None else len(part) for part in parts)])
    values = [part for part in parts if part is not None]
    return TokenLists(offsets, np.concatenate(values), valid, name)


def _tail(where: str, entries: Lists, length: int | None, names: Mapping[str, str]) -> Lists:
    """Return the lists of a response, and the ids of its prompt; of a mask that is empty, ones."""
    ids = entries.pop(SEQUENCE_IDS, np.zeros(0))
    if length is None or not 0 <= length <= len(ids):
        raise DataError(
            f"{where}: the response length is {length}, but `{names[SEQUENCE_IDS]}`, prompt and "
            f"response together, has {len(ids)} entries"
        )
    start = len(ids) - length
    lists = {name: array for name, array in entries.items() if len(array) or not length}
    for name, array in lists.items():
        check_length(where, names[name], array, length, LENGTH)
    return {_MASK: np.ones(length, np.uint8), **lists, _PROMPT: ids[:start], _IDS: ids[start:]}


def response_lists(
    where: str,
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
    response: int | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Lists:
    """Cut a record's padded lists to one entry per response token.

    A response begins with the first mask 1. It ends with the sequence, or with the last mask 1 if
    the lengths are unknown.

    Args:
        where: the record, for errors.
        lists: name -> entries; `response_mask` among them, 1 for policy tokens.
        length: length of the sequence without padding, if the record has it; the ids before the
            response are those of the prompt then.
        response: the response length, if the record has that instead.
        names: name -> the field, for errors.

    Returns:
        The lists.

    Raises:
        DataError: the lists differ in length, or the mask is 1 outside of the response.
    """
    mask = lists[_MASK]
    for name, array in lists.items():
        check_length(where, names.get(name, name), array, len(mask), "the mask")
    ones = np.flatnonzero(mask)
    begin, last = (int(ones[0]), int(ones[-1]) + 1) if len(ones) else (len(mask), 0)
    end = last if length is None else length
    if length is None and response is not None and len(ones):
        end = begin + response
        if not last <= end <= len(mask):
            raise DataError(
                f"{where}: `response_length` is {response}, but the mask has {len(mask)} entries "
                f"and is 1 from token {begin} to token {last - 1}; if response_length counts "
                "something else, omit it with --map response_length=none"
            )
    if not last <= end <= len(mask):
        raise DataError(
            f"{where}: the sequence length is {end}, but the lists have {len(mask)} entries "
            f"and the mask is 1 up to token {last - 1}"
        )
    cut = slice(min(begin, end), end)
    ids = lists.get(_IDS)
    before = {} if length is None or ids is None else {_PROMPT: ids[: cut.start]}
    return before | {name: array[cut] for name, array in lists.items()}


@dataclass
class TokenColumns:
    """The token columns of the rows of a dump so far: all rows with tokens have the same."""

    names: frozenset[str] | None = None

    def check(self, lists: Mapping[str, TokenLists], location: CellLocation) -> None:
        """Raise DataError for a row with tokens that has other lists than earlier rows."""
        if not lists:
            return
        tokens = np.any([column.lengths > 0 for column in lists.values()], axis=0)
        if not tokens.any():
            return
        if self.names is None:
            first = int(np.argmax(tokens))
            self.names = frozenset(name for name, column in lists.items() if column.valid[first])
        for name in self.names | lists.keys():
            has = lists[name].valid if name in lists else np.zeros_like(tokens)
            wrong = np.flatnonzero(tokens & (has != (name in self.names)))
            if len(wrong):
                less, more = ("lacks", "have") if name in self.names else ("has", "lack")
                raise DataError(
                    f"{location.where(int(wrong[0]))}: {less} {name}, which earlier records {more};"
                    " all or none must have it: remove the record, or omit the role with --map "
                    f"{name}=none"
                )


def list_arrays(
    lists: Mapping[str, TokenLists],
    columns: Mapping[str, pa.Array],
    location: CellLocation,
    seen: TokenColumns,
    types: Mapping[str, pa.DataType],
) -> dict[str, pa.Array]:
    """Return the lists of responses as columns; a row without tokens has empty lists.

    Args:
        lists: column -> its lists.
        columns: the other columns, such as `response_length`.
        location: of the rows.
        seen: the token columns of earlier rows.
        types: of columns that are not canonical; others are float64.

    Raises:
        DataError: lists of a row differ in length, or it has other lists than earlier rows.
    """
    tokens = {name: column for name, column in lists.items() if name != _PROMPT}
    _check_lengths(tokens, columns, location)
    seen.check(tokens, location)
    arrays = {}
    for name, column in lists.items():
        kind = CANONICAL.get(name) or types.get(name) or pa.list_(pa.float64())
        arrays[name] = _array(column, kind, location)
    return arrays


def _array(lists: TokenLists, kind: pa.DataType, location: CellLocation) -> pa.Array:
    """Return lists in the type of their column; ids must fit, and float32 overflow is infinite."""
    values = lists.values
    with np.errstate(over="ignore", invalid="ignore"):
        converted: NDArray[Any] = values.astype(dtype_of(kind.value_type), copy=False)
    if pa.types.is_integer(kind.value_type) and not np.array_equal(converted, values):
        at = int(np.flatnonzero(converted != values)[0])
        needed = "integers of at most 32 bits are needed"
        raise _entry_error(lists, at, replace(location, column=lists.name), needed)
    offsets = pa.py_buffer(lists.offsets.astype(np.int32))
    elements = to_arrow(converted, kind.value_type)
    return pa.Array.from_buffers(kind, len(lists.valid), [None, offsets], children=[elements])


def check_begins(
    lists: Mapping[str, TokenLists],
    columns: Mapping[str, pa.Array],
    location: CellLocation,
    stats: ReadStats,
) -> None:
    """Count masks that begin with 0 and have a 1; raise DataError if the lists have the prompt."""
    mask, prompts = lists[_MASK], lists.get(_PROMPT)
    ones = np.append(np.flatnonzero(mask.values), len(mask.values))
    begins = ones[np.searchsorted(ones, mask.offsets[:-1])] - mask.offsets[:-1]
    late = (begins > 0) & (begins < mask.lengths)
    if LENGTH in columns:
        late &= ~np.equal(mask.lengths, _lengths(columns[LENGTH]))
    given = columns.get("prompt_length")
    lengths = prompts.lengths if prompts is not None else None
    known = lengths if given is None else _lengths(given)
    if known is not None:
        for row in np.flatnonzero(late & (known > 0) & (begins >= known))[:1]:
            raise DataError(
                f"{location.where(int(row))}: the mask is 0 for the first "
                f"{counted(int(begins[row]), 'token')}, and the prompt has {int(known[row])}: if "
                "the lists contain the prompt, use --layout padded; if they do not, use --layout "
                "response"
            )
    stats.begins_with_0 += int(late.sum())


def _lengths(array: pa.Array) -> NDArray[np.float64]:
    """Return a column of lengths; -1 for null."""
    return np.asarray(fill_nulls(array, -1), np.float64)


def _check_lengths(
    lists: Mapping[str, TokenLists], columns: Mapping[str, pa.Array], location: CellLocation
) -> None:
    """Raise DataError unless all lists of a row have the same length, `response_length`."""
    if not lists:
        return
    first, column = next(iter(lists.items()))
    for name, other in lists.items():
        wrong = np.flatnonzero((other.lengths != column.lengths) & column.valid & other.valid)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{location.where(row)}: its token lists differ in length ({first} "
                f"{column.lengths[row]}, {name} {other.lengths[row]}); every list needs one entry "
                "per response token (for jsonl and parquet, --layout sets the layout)"
            )
    if LENGTH in columns:
        lengths = _lengths(columns[LENGTH])
        wrong = np.flatnonzero((lengths >= 0) & (lengths != column.lengths) & column.valid)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{location.where(row)}: `{first}` has {column.lengths[row]} entries and "
                f"`response_length` is {lengths[row]:.0f}; set --layout if the lists contain a "
                "prompt or padding, or --map response_length=none if it counts something else"
            )
