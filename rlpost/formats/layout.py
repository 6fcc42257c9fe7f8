"""Token layouts: the lists of a framework -> lists with one entry per response token.

A response begins with the first policy token (mask 1) and ends with the sequence. Tokens between
two turns (tool output, the user's next message) stay, with mask 0. Every layout function checks
its record: lists that do not fit the layout are a DataError that names the record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.formats.base import CANONICAL, LENGTH
from rlpost.formats.records import as_float, describe
from rlpost.formats.rows import is_flat, packed, shown, values_of
from rlpost.io.arrow import dtype_of, fill_nulls, is_tokens, is_true, list_values, to_arrow
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.io.arrow import CellLocation


_LARGE, _COPIES = 1 << 20, 4  # bytes of a vector, and how often it is in memory


def response_start(mask: NDArray[np.uint8]) -> int:
    """Return the index of the first token with mask 1; the length if there is none."""
    return int(mask.argmax()) if mask.any() else len(mask)


def check_prompt(where: str, begin: int, prompt: int | None) -> None:
    """Check that lists of a response alone do not begin with the prompt.

    Args:
        where: the record.
        begin: index of the first mask 1.
        prompt: number of prompt tokens; None: unknown.

    Raises:
        DataError: the mask is 0 for at least as many tokens as the prompt has.
    """
    if prompt and begin >= prompt:
        raise DataError(
            f"{where}: the mask is 0 for the first {counted(begin, 'token')}, and the prompt has "
            f"{prompt}: if the lists contain the prompt, use --layout padded, shifted, compact or "
            "left-padded; if they do not, use --layout response"
        )


_IDS, _PROMPT = "response_token_ids", "prompt_token_ids"
Lists = dict[str, "NDArray[Any]"]

LAYOUTS = {
    "response": "one entry per response token, without padding (no change)",
    "padded": "prompt, response and padding; entry t belongs to token t",
    "shifted": "prompt, response and padding; entry t belongs to token t + 1, so these lists have "
    "one entry less than the mask or the ids",
    "compact": "one entry per token with mask 1; the mask covers the sequence",
    "left-padded": "padding, then the response, which ends the list",
}


def check_layout(name: str) -> str:
    """Return the layout's name; raise UsageError with the known names if it is unknown."""
    if name not in LAYOUTS:
        every = f"the layouts are {', '.join(LAYOUTS)}"
        raise UsageError(no_such(f"--layout {name}: no such layout", name, LAYOUTS, every))
    return name


def as_vector(where: str, name: str, value: object) -> NDArray[Any]:
    """Return a list (or array, or tensor) of numbers as a vector [T]; null becomes NaN.

    Raises:
        DataError: the value is not a list, is a list of lists, or has other entries than numbers.
        NotEnoughMemoryError: it does not fit into the memory of the run.
    """
    needed = "a flat list of numbers, one per token, is needed"
    value = packed(value)
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, (list, tuple)):
        try:
            array = np.asarray(value)
            if array.dtype == object and {type(x) for x in value} <= {float, int, type(None)}:
                array = np.asarray(value, np.float64)
        except (ValueError, OverflowError):
            raise DataError(f"{where}: `{name}` is a list of lists; {needed}") from None
    else:
        raise DataError(f"{where}: `{name}` is {describe(value)}; {needed}")
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        what = f"nested {array.ndim} deep" if array.ndim != 1 else "not a list of numbers"
        raise DataError(f"{where}: `{name}` is {what}; {needed}")
    if array.nbytes > _LARGE:  # of a tensor, it may be more than its file has
        memory_limit().check(_COPIES * array.nbytes, f"{where}: `{name}`")
    return array


def as_mask(where: str, name: str, value: object) -> NDArray[np.uint8]:
    """Return a list of 0 and 1 (ints, floats or bools) as uint8 [T].

    Raises:
        DataError: as `as_vector`, or an entry is neither 0 nor 1.
    """
    array = as_vector(where, name, value)
    if array.dtype == np.uint8 and array.max(initial=0) <= 1:
        return array
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if len(wrong):
        at = int(wrong[0])
        came = "null" if isinstance(value, list) and value[at] is None else array[at]
        raise DataError(
            f"{where}: `{name}` has {came} at token {at}; a mask is 1 for policy tokens and 0 for "
            "other tokens"
        )
    return array.astype(np.uint8)


def check_length(where: str, name: str, array: NDArray[Any], length: int, of: str) -> None:
    """Raise DataError unless the list has that many entries, the number of `of`."""
    if len(array) != length:
        raise DataError(
            f"{where}: `{name}` has {len(array)} entries and {of} has {length}; they must be equal "
            "(--layout sets the layout of the lists)"
        )


def response_lists(
    layout: str,
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
    response: int | None = None,
) -> Lists:
    """Convert a record's lists from a layout to one entry per response token.

    A response begins with the first mask 1. It ends with the sequence, or with the last mask 1 if
    the lengths are unknown; `left-padded` ones end the lists.

    Args:
        layout: one of `LAYOUTS`.
        where: the record, for errors.
        mask: 1 for policy tokens.
        lists: name -> entries.
        length: length of the sequence without padding (padded, shifted, compact) or of the
            response.
        response: the response length, if the record has that instead.

    Returns:
        The lists and `response_mask`.

    Raises:
        UsageError: no such layout.
        DataError: the lists do not fit it or each other, or the mask is 1 outside of the response.
    """
    if check_layout(layout) == "shifted":
        mask, lists = _unshifted(where, mask, lists)
        length = None if length is None else length - 1
    elif layout == "compact":
        lists = _spread(where, mask, lists)
    for name, array in lists.items():
        check_length(where, name, array, len(mask), "the mask")
    cut = _extent(layout, where, mask, length, response)
    return {"response_mask": mask[cut], **{name: array[cut] for name, array in lists.items()}}


def _unshifted(
    where: str, mask: NDArray[np.uint8], lists: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.uint8], Lists]:
    """Return mask and lists of the tokens from the second on.

    The mask or the ids, or both, have T entries, which shows that the others, of T - 1, are
    shifted. Token 0 has no log-prob, so it cannot be a policy token.
    """
    every = {"mask": mask, **lists}
    tokens = max(len(mask), len(lists.get(_IDS, ())))
    if {*map(len, every.values())} == {tokens}:
        raise DataError(
            f"{where}: all its token lists have {tokens} entries, so none is shifted against the "
            "mask; use --layout padded for lists that are aligned with the mask"
        )
    for name, array in every.items():
        if name not in ("mask", _IDS) or len(array) != tokens:
            needed = "the mask or the ids, minus one (shifted),"
            check_length(where, name, array, tokens - 1, needed)
    if len(mask) == tokens and mask[0]:
        raise DataError(
            f"{where}: the mask is 1 at token 0, and shifted lists have no entry for it"
        )
    cut = {name: array[len(array) - tokens + 1 :] for name, array in every.items()}
    return cut.pop("mask"), cut


def _spread(where: str, mask: NDArray[np.uint8], lists: Mapping[str, NDArray[Any]]) -> Lists:
    """Return lists with entries for mask 1 only over the sequence, 0 elsewhere."""
    if not lists:
        raise DataError(f"{where}: it has no list besides the mask, so no list is compact")
    for name, array in lists.items():
        check_length(where, name, array, int(mask.sum()), "the mask's count of ones")
    return {name: spread_over_mask(mask, array) for name, array in lists.items()}


def spread_over_mask(mask: NDArray[np.uint8], array: NDArray[Any]) -> NDArray[Any]:
    """Return a vector [T] with the entries at the ones of a mask [T] and 0 elsewhere."""
    spread = np.zeros(len(mask), array.dtype)
    spread[mask.astype(bool)] = array
    return spread


def _extent(
    layout: str, where: str, mask: NDArray[np.uint8], length: int | None, response: int | None
) -> slice:
    """Return where the response is in aligned lists, by the layout and the lengths."""
    begin, last = response_start(mask), len(mask) - response_start(mask[::-1])
    known = length if response is None else response
    if layout == "response":
        if known is not None:
            check_length(where, "mask", mask, known, "the response")
        return slice(0, len(mask))
    if layout == "left-padded":
        if known is None and begin < len(mask) and not mask[-1]:
            raise DataError(
                f"{where}: the mask ends with 0, but a left-padded response ends the list; use "
                "--layout padded if this is padding, or a response_length that includes it if it "
                "is tool output"
            )
        if known is not None and (not 0 <= known <= len(mask) or len(mask) - known > begin):
            raise DataError(
                f"{where}: the response length is {known}, but the mask is 1 from token {begin} "
                f"of {len(mask)} on"
            )
        return slice(begin if known is None else len(mask) - known, len(mask))
    if response is not None and mask.any():
        if not last <= begin + response <= len(mask):
            raise DataError(
                f"{where}: `response_length` is {response}, but the mask has {len(mask)} entries "
                f"and is 1 from token {begin} to token {last - 1}; if response_length counts "
                "something else, omit it with --map response_length=none"
            )
        return slice(begin, begin + response)
    end = last if length is None or response is not None else length
    if not last <= end <= len(mask):
        raise DataError(
            f"{where}: the sequence length is {end}, but the lists have {len(mask)} entries "
            f"and the mask is 1 up to token {last - 1}"
        )
    return slice(min(begin, end), end)


class TokenLists(NamedTuple):
    """The lists of some rows: offsets [n+1] into values [T], and which rows have a list."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    valid: NDArray[np.bool_]

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
        return TokenLists(np.zeros(len(array) + 1, np.int64), np.zeros(0), valid)
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
    lists = TokenLists(np.append(0, np.cumsum(lengths)), values, valid)
    if mask:
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            raise _entry_error(lists, int(wrong[0]), location, _MASK_NEEDS)
        lists = lists._replace(values=values.astype(np.uint8))
    return lists


_MASK_NEEDS = "a mask is 1 for policy tokens and 0 for other tokens"


def _entry_error(lists: TokenLists, at: int, location: CellLocation, needed: str) -> DataError:
    row = int(np.searchsorted(lists.offsets, at, side="right")) - 1
    value = lists.values[at]
    came = "null" if np.isnan(value) else value
    return location.error(row, f"has {came} at token {at - lists.offsets[row]}", needed)


@dataclass
class TokenColumns:
    """The token columns of the rows of a dump so far: all rows with tokens have the same."""

    names: frozenset[str] | None = None

    def check(self, lists: Mapping[str, TokenLists], location: CellLocation) -> None:
        """Raise DataError for a row with tokens that has other lists than earlier rows."""
        if not lists:
            return
        tokens = np.any([one.lengths > 0 for one in lists.values()], axis=0)
        if not tokens.any():
            return
        if self.names is None:
            first = int(np.argmax(tokens))
            self.names = frozenset(name for name, one in lists.items() if one.valid[first])
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


def list_columns(
    lists: Mapping[str, TokenLists],
    columns: dict[str, pa.Array],
    options: ReadOptions,
    location: CellLocation,
    seen: TokenColumns,
) -> dict[str, pa.Array]:
    """Return the token lists of some rows as columns with one entry per response token.

    A row without tokens has empty lists.

    Args:
        lists: column -> its lists.
        columns: the other columns, such as lengths.
        options: the layout, and omitted columns.
        location: of the rows.
        seen: the token columns of earlier rows.

    Raises:
        DataError: a row's lists do not fit the layout, each other, the row's `response_length` or
            earlier rows.
    """
    prompts = {name: one for name, one in lists.items() if name == _PROMPT}
    lists = {name: one for name, one in lists.items() if name != _PROMPT}
    if options.layout is not None and lists:
        lists = _apply_layout(lists, columns, options, location)
    elif "response_mask" in lists:
        _check_begins(lists["response_mask"], prompts.get(_PROMPT), columns, options, location)
    return checked_lists({**prompts, **lists}, columns, location, seen)


def checked_lists(
    lists: Mapping[str, TokenLists],
    columns: Mapping[str, pa.Array],
    location: CellLocation,
    seen: TokenColumns,
) -> dict[str, pa.Array]:
    """Return the lists of responses as columns, if those of a row have the same length."""
    tokens = {name: one for name, one in lists.items() if name != _PROMPT}
    _check_lengths(tokens, columns, location)
    seen.check(tokens, location)
    return {name: _column(name, one, location) for name, one in lists.items()}


def _column(name: str, lists: TokenLists, location: CellLocation) -> pa.Array:
    """Return lists in the type of their column; ids must fit, and float32 overflow is infinite."""
    kind = CANONICAL.get(name, pa.list_(pa.float32()))
    values = lists.values
    with np.errstate(over="ignore", invalid="ignore"):
        converted: NDArray[Any] = values.astype(dtype_of(kind.value_type), copy=False)
    if pa.types.is_integer(kind.value_type) and not np.array_equal(converted, values):
        at = int(np.flatnonzero(converted != values)[0])
        needed = "integers of at most 32 bits are needed"
        raise _entry_error(lists, at, replace(location, column=name), needed)
    offsets = pa.py_buffer(lists.offsets.astype(np.int32))
    elements = to_arrow(converted, kind.value_type)
    return pa.Array.from_buffers(kind, len(lists.valid), [None, offsets], children=[elements])


def _apply_layout(
    lists: Mapping[str, TokenLists],
    columns: dict[str, pa.Array],
    options: ReadOptions,
    location: CellLocation,
) -> dict[str, TokenLists]:
    """Convert lists from their layout to one entry per response token, row by row."""
    assert options.layout is not None
    lengths = columns[LENGTH].to_pylist() if LENGTH in columns else None
    cut: dict[str, list[NDArray[Any]]] = {name: [] for name in lists}
    for row in range(len(lists["response_mask"].valid)):
        entries = {name: one.row(row) for name, one in lists.items() if one.valid[row]}
        response = {}
        if "response_mask" in entries:
            mask = entries.pop("response_mask")
            length = None if lengths is None else lengths[row]
            response = response_lists(
                options.layout, location.where(row), mask, entries, response=length
            )
            options.stats.count_layout({"": mask, **entries}, response)
            if lengths is not None and not len(response["response_mask"]):
                lengths[row] = 0  # without mask 1 the response is unknown and becomes empty
        for name, parts in cut.items():
            parts.append(response.get(name, lists[name].values[:0]))
    if lengths is not None:
        columns[LENGTH] = pa.array(lengths, pa.int64())
    return {name: _joined(parts, lists[name].valid) for name, parts in cut.items()}


def _joined(parts: list[NDArray[Any]], valid: NDArray[np.bool_]) -> TokenLists:
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    return TokenLists(offsets, np.concatenate(parts) if parts else np.zeros(0), valid)


def _check_begins(
    mask: TokenLists,
    prompts: TokenLists | None,
    columns: Mapping[str, pa.Array],
    options: ReadOptions,
    location: CellLocation,
) -> None:
    """Count masks that begin with 0 and have a 1; raise DataError if the lists have the prompt."""
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
            check_prompt(location.where(int(row)), int(begins[row]), int(known[row]))
    options.stats.begins_with_0 += int(late.sum())


def _lengths(array: pa.Array) -> NDArray[np.float64]:
    """Return a column of lengths; -1 for null."""
    return np.asarray(fill_nulls(array, -1), np.float64)


def _check_lengths(
    lists: Mapping[str, TokenLists], columns: Mapping[str, pa.Array], location: CellLocation
) -> None:
    """Raise DataError unless all lists of a row have the same length, `response_length`."""
    if not lists:
        return
    first, one = next(iter(lists.items()))
    for name, other in lists.items():
        wrong = np.flatnonzero((other.lengths != one.lengths) & one.valid & other.valid)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{location.where(row)}: its token lists differ in length ({first} "
                f"{one.lengths[row]}, {name} {other.lengths[row]}); every list needs one entry per "
                "response token (for jsonl and parquet, --layout sets the layout)"
            )
    if LENGTH in columns:
        lengths = _lengths(columns[LENGTH])
        wrong = np.flatnonzero((lengths >= 0) & (lengths != one.lengths) & one.valid)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{location.where(row)}: `{first}` has {one.lengths[row]} entries and "
                f"`response_length` is {lengths[row]:.0f}; set --layout if the lists contain a "
                "prompt or padding, or --map response_length=none if it counts something else"
            )
