"""Token layouts: the lists of a framework -> lists with one entry per response token.

A response begins with the first policy token (mask 1) and ends with the sequence. Tokens between
two turns (tool output, the user's next message) stay, with mask 0. Every layout function checks
its record: lists that do not fit the layout are a DataError that names the record.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.errors import DataError, UsageError, no_such
from rlpost.formats.base import CANONICAL
from rlpost.formats.records import describe
from rlpost.io.arrow import dtype_of
from rlpost.io.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.io.arrow import CellLocation


_LARGE, _COPIES = 1 << 20, 4  # bytes of a vector, and how often it is in memory
MOST_TOKENS = 1 << 27
"""Of one response: more than any model produces; 128 MB of mask."""


def check_token_count(where: str, name: str, length: int) -> int:
    """Return a length that a record contains, before memory is allocated for it.

    Raises:
        DataError: it is negative or more than MOST_TOKENS.
    """
    if not 0 <= length <= MOST_TOKENS:
        raise DataError(
            f"{where}: {name} is {length}; a response has from 0 to {MOST_TOKENS:,} tokens"
        )
    return length


def response_start(mask: NDArray[np.uint8]) -> int:
    """Return the index of the first token with mask 1; the length if there is none."""
    return int(mask.argmax()) if mask.any() else len(mask)


def sequence_end(where: str, mask: NDArray[np.uint8], response: int) -> int | None:
    """Return the end of a response that begins at the first mask 1; None if there is none.

    Raises:
        DataError: the mask has a 1 after that end, or is shorter.
    """
    if not mask.any():
        return None
    begin, last = response_start(mask), int(np.flatnonzero(mask)[-1])
    if not last < begin + response <= len(mask):
        raise DataError(
            f"{where}: `response_length` is {response}, but the mask has {len(mask)} entries and "
            f"is 1 from token {begin} to token {last}; if response_length counts something else, "
            "omit it with --map response_length=none"
        )
    return begin + response


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


_IDS = "response_token_ids"
_CODES = {int: "q", float: "d"}
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
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, (list, tuple)):
        try:
            array = _numbers(value)
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


def _numbers(value: Sequence[Any]) -> NDArray[Any]:
    """Return a list as an array; of numbers of one type in half of numpy's time."""
    code = _CODES.get(type(value[0])) if value else None
    if code is not None:
        try:
            return np.frombuffer(struct.pack(f"{len(value)}{code}", *value), code)
        except (struct.error, OverflowError):  # another type, or null; more than 64 bits
            pass
    return np.asarray(value) if len(value) else np.zeros(0)


def as_mask(where: str, name: str, value: object) -> NDArray[np.uint8]:
    """Return a list of 0 and 1 (ints, floats or bools) as uint8 [T].

    Raises:
        DataError: as `as_vector`, or an entry is neither 0 nor 1.
    """
    if isinstance(value, list):
        with suppress(TypeError, ValueError):  # a quarter of the time of a vector
            value = np.frombuffer(bytes(value), np.uint8)
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


def padded(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Cut the response out of full sequences [T]: from the first mask 1 to the sequence's end.

    Args:
        where: the record.
        mask: [T], 1 for policy tokens.
        lists: name -> [T], each aligned with the mask.
        length: tokens of the sequence without padding; None: up to the last mask 1.

    Returns:
        The lists and `response_mask`, each with one entry per response token.

    Raises:
        DataError: the lengths of the lists differ, the length is too large, or the mask is 1 in
            the padding.
    """
    for name, array in lists.items():
        check_length(where, name, array, len(mask), "the mask")
    last = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
    end = last if length is None else length
    if not last <= end <= len(mask):
        raise DataError(
            f"{where}: the sequence length is {end}, but the lists have {len(mask)} entries "
            f"and the mask is 1 up to token {last - 1}"
        )
    cut = slice(min(response_start(mask), end), end)
    return {"response_mask": mask[cut], **{name: array[cut] for name, array in lists.items()}}


def shifted(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Cut the response out of lists [T-1] whose entry t belongs to token t + 1.

    The mask or the ids, or both, have T entries, which shows that the others are shifted. Token 0
    has no log-prob, so it cannot be a policy token.

    Raises:
        DataError: as `padded`, or all lists have the same length, so that none is shifted.
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
            check_length(
                where, name, array, tokens - 1, "the mask or the ids, minus one (shifted),"
            )
    if len(mask) == tokens and mask[0]:
        raise DataError(
            f"{where}: the mask is 1 at token 0, and shifted lists have no entry for it"
        )
    cut = {name: array[len(array) - tokens + 1 :] for name, array in every.items()}
    return padded(where, cut.pop("mask"), cut, None if length is None else length - 1)


def compact(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Spread lists with entries for mask 1 only over the sequence (0 elsewhere), and cut it.

    Raises:
        DataError: as `padded`, or there is no list besides the mask.
    """
    if not lists:
        raise DataError(f"{where}: it has no list besides the mask, so no list is compact")
    count = int(mask.sum())
    spread: Lists = {}
    for name, array in lists.items():
        check_length(where, name, array, count, "the mask's count of ones")
        spread[name] = spread_over_mask(mask, array)
    return padded(where, mask, spread, length)


def spread_over_mask(mask: NDArray[np.uint8], array: NDArray[Any]) -> NDArray[Any]:
    """Return a vector [T] with the entries at the ones of a mask [T] and 0 elsewhere."""
    spread = np.zeros(len(mask), array.dtype)
    spread[mask.astype(bool)] = array
    return spread


def left_padded(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Cut a response that ends the lists: `length` tokens; None: from the first mask 1.

    Raises:
        DataError: as `padded`, or the mask ends with 0 without a length, so that these tokens may
            be padding.
    """
    for name, array in lists.items():
        check_length(where, name, array, len(mask), "the mask")
    begin = response_start(mask)
    if length is not None:
        if not 0 <= length <= len(mask) or len(mask) - length > begin:
            raise DataError(
                f"{where}: the response length is {length}, but the mask is 1 from token {begin} "
                f"of {len(mask)} on"
            )
        begin = len(mask) - length
    elif begin < len(mask) and not mask[-1]:
        raise DataError(
            f"{where}: the mask ends with 0, but a left-padded response ends the list; use "
            "--layout padded if this is padding, or a response_length that includes it if it is "
            "tool output"
        )
    return {"response_mask": mask[begin:], **{name: array[begin:] for name, array in lists.items()}}


def response_only(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Check that the mask and every list have one entry per response token."""
    if length is not None:
        check_length(where, "mask", mask, length, "the response")
    for name, array in lists.items():
        check_length(where, name, array, len(mask), "the mask")
    return {"response_mask": mask, **lists}


_CUTS = {
    "response": response_only,
    "padded": padded,
    "shifted": shifted,
    "compact": compact,
    "left-padded": left_padded,
}


def response_lists(
    layout: str,
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
    response: int | None = None,
) -> Lists:
    """Convert a record's lists from a layout to one entry per response token.

    Args:
        layout: one of `LAYOUTS`.
        where: the record, for errors.
        mask: 1 for policy tokens.
        lists: name -> entries.
        length: length of the sequence (padded, shifted, compact) or of the response.
        response: the response length, if the record has that instead.

    Raises:
        UsageError: no such layout.
        DataError: the lists do not fit it.
    """
    cut = _CUTS[check_layout(layout)]
    if response is not None and cut in (padded, shifted, compact):
        length = sequence_end(where, mask, response)
        if cut is shifted and length is not None and len(lists.get(_IDS, ())) > len(mask):
            length += 1  # the mask lacks token 0
    elif response is not None:
        length = response
    return cut(where, mask, lists, length)


Ragged = tuple["NDArray[np.int64]", "NDArray[Any]"]
"""Offsets [n+1] and values [T] of a list column."""


def list_columns(
    lists: Mapping[str, Ragged],
    columns: dict[str, pa.Array],
    options: ReadOptions,
    location: CellLocation,
) -> dict[str, pa.Array]:
    """Return the lists of a chunk as columns with one entry per response token.

    Args:
        lists: column -> its offsets and values.
        columns: the chunk's other columns, such as lengths.
        options: the layout, and omitted columns.
        location: the file, and the chunk's first row.

    Raises:
        DataError: a row's lists do not fit the layout, each other or the row's `response_length`.
    """
    if options.layout is not None and lists:
        lists = _apply_layout(lists, columns, options, location)
    elif "response_mask" in lists:
        _check_begins(lists["response_mask"], columns, options, location)
    _check_lengths(lists, columns, location)
    arrays: dict[str, pa.Array] = {}
    for name, (offsets, values) in lists.items():
        kind = CANONICAL.get(name, pa.list_(pa.float32()))
        elements = pa.array(_cast(name, values, kind.value_type, (location, offsets)))
        arrays[name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), elements, kind)
    return arrays


def _cast(
    name: str, values: NDArray[Any], kind: pa.DataType, at: tuple[CellLocation, NDArray[np.int64]]
) -> NDArray[Any]:
    """Return values in the type of their column; ids must fit, and float32 overflow is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted: NDArray[Any] = values.astype(dtype_of(kind))
    if pa.types.is_integer(kind) and not np.array_equal(converted, values):
        location, offsets = at
        token = int(np.flatnonzero(converted != values)[0])
        row = int(np.searchsorted(offsets, token, side="right")) - 1
        raise DataError(
            f"{_row(location, row)}: `{name}` has {values[token]} at token {token - offsets[row]}; "
            f"integers within the range of {kind} are needed"
        )
    return converted


def _row(location: CellLocation, row: int) -> str:
    return f"{location.path}, row {location.first_row + row}"


def _apply_layout(
    lists: Mapping[str, Ragged],
    columns: dict[str, pa.Array],
    options: ReadOptions,
    location: CellLocation,
) -> dict[str, Ragged]:
    """Convert lists from their layout to one entry per response token, row by row."""
    assert options.layout is not None
    lengths = columns["response_length"].to_pylist() if "response_length" in columns else None
    cut: dict[str, list[NDArray[Any]]] = {name: [] for name in lists}
    for row in range(len(lists["response_mask"][0]) - 1):
        entries = {name: values[offsets[row] : offsets[row + 1]]
                   for name, (offsets, values) in lists.items()}  # fmt: skip
        mask = entries.pop("response_mask").astype(np.uint8)
        length = None if lengths is None else lengths[row]
        response = response_lists(
            options.layout, _row(location, row), mask, entries, response=length
        )
        options.stats.count_layout({"": mask, **entries}, response)
        if lengths is not None and not len(response["response_mask"]):
            lengths[row] = 0  # without mask 1 the response is unknown and becomes empty
        for name, values in response.items():
            cut[name].append(values)
    if lengths is not None:
        columns["response_length"] = pa.array(lengths, pa.int64())
    return {name: _concatenate(parts) for name, parts in cut.items()}


def _concatenate(parts: list[NDArray[Any]]) -> Ragged:
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    return offsets, np.concatenate(parts) if parts else np.zeros(0)


def _check_begins(
    mask: Ragged, columns: Mapping[str, pa.Array], options: ReadOptions, location: CellLocation
) -> None:
    """Count masks that begin with 0 and have a 1; raise DataError if the lists have the prompt."""
    offsets, values = mask
    ones = np.append(np.flatnonzero(values), len(values))
    begins = ones[np.searchsorted(ones, offsets[:-1])] - offsets[:-1]
    lengths = np.diff(offsets)
    late = (begins > 0) & (begins < lengths)
    if "response_length" in columns:
        late &= ~np.equal(lengths, _lengths(columns["response_length"]))
    if "prompt_length" in columns:
        prompts = _lengths(columns["prompt_length"])
        for row in np.flatnonzero(late & (prompts > 0) & (begins >= prompts))[:1]:
            check_prompt(_row(location, int(row)), int(begins[row]), int(prompts[row]))
    options.stats.begins_with_0 += int(late.sum())


def _lengths(array: pa.Array) -> NDArray[np.float64]:
    """Return a column of lengths; -1 for null."""
    return np.asarray(array.fill_null(-1).to_numpy(zero_copy_only=False), np.float64)


def _check_lengths(
    lists: Mapping[str, Ragged], columns: Mapping[str, pa.Array], location: CellLocation
) -> None:
    """Raise DataError unless all lists of a row have the same length, `response_length`."""
    if not lists:
        return
    first, (offsets, _) = next(iter(lists.items()))
    expected = np.diff(offsets)
    for name, (own, _) in lists.items():
        wrong = np.flatnonzero(np.diff(own) != expected)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{_row(location, row)}: {name} has {np.diff(own)[row]} entries and {first} has "
                f"{expected[row]}; every list needs one entry per response token (--layout sets "
                "the layout of the lists)"
            )
    if "response_length" in columns:
        lengths = _lengths(columns["response_length"])
        wrong = np.flatnonzero((lengths >= 0) & (lengths != expected))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{_row(location, row)}: {first} has {expected[row]} entries and `response_length` "
                f"is {lengths[row]:.0f}; set --layout if the lists contain a prompt or padding, or "
                "--map response_length=none if it counts something else"
            )
