"""Token layouts: lists as frameworks keep them -> one entry per response token.

A response begins with the first token that the policy produced (mask 1) and ends with the
sequence. What lies between two turns (tool output, the user's next message) stays, with mask 0.
Every function takes one record and checks it: lists that do not fit the layout are a DataError
that names the record, never a guess.

Groups that a dump does not name: consecutive records, a given number each.

Where a response lies in a sequence: by its mask, and by the lengths that the record says.

List columns of anybody's Parquet, a piece at a time: brought from their layout, and checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, UsageError
from rlpost.formats.base import CANONICAL
from rlpost.formats.records import described
from rlpost.io.arrow import dtype_of
from rlpost.recipe.roles import closest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.io.arrow import CellLocation


MOST_TOKENS = 1 << 27
"""Of one response: more than any model produces, and 128 MB of mask."""


def believable(where: str, name: str, length: int) -> int:
    """A length that a record claims, before anything of that length is made.

    Raises:
        DataError: it is negative, or more than MOST_TOKENS.
    """
    if not 0 <= length <= MOST_TOKENS:
        raise DataError(
            f"{where}: {name} is {length}; a response has from 0 to {MOST_TOKENS:,} tokens"
        )
    return length


def response_start(mask: NDArray[np.uint8]) -> int:
    """Where the response begins: the first token with mask 1, the end if there is none."""
    return int(mask.argmax()) if mask.any() else len(mask)


def sequence_end(where: str, mask: NDArray[np.uint8], response: int) -> int | None:
    """Where a response of that length ends, from the first mask 1 on; None if there is none.

    Raises:
        DataError: the mask has a 1 behind it, or it ends behind the mask.
    """
    if not mask.any():
        return None
    begin, last = response_start(mask), int(np.flatnonzero(mask)[-1])
    if not last < begin + response <= len(mask):
        raise DataError(
            f"{where}: `response_length` is {response}, but the mask has {len(mask)} entries and "
            f"is 1 from token {begin} to token {last}; --map response_length=none leaves it out, "
            "where it counts something else"
        )
    return begin + response


def check_prompt(where: str, begin: int, prompt: int | None) -> None:
    """Refuse lists that are said to hold a response alone, and begin with the prompt all the same.

    Args:
        where: the record.
        begin: where the first mask 1 is.
        prompt: tokens of the prompt, where the record tells.

    Raises:
        DataError: the mask is 0 for as many tokens as the prompt has, or more.
    """
    if prompt and begin >= prompt:
        raise DataError(
            f"{where}: the mask is 0 for the first {begin} tokens, and the prompt has {prompt}: "
            "lists that hold the prompt need --layout padded, shifted, compact or left-padded; "
            "--layout response says that these hold the response alone"
        )


_IDS = "response_token_ids"
Lists = dict[str, "NDArray[Any]"]

LAYOUTS = {
    "response": "one entry per response token, no padding: nothing is changed",
    "padded": "prompt, response and padding; entry t belongs to token t",
    "shifted": "prompt, response and padding; entry t belongs to token t + 1: one entry less than "
    "the mask or the ids have",
    "compact": "one entry per token with mask 1; the mask covers the sequence",
    "left-padded": "padding, then the response, which ends with the list",
}


def layout_named(name: str) -> str:
    """The layout's name, checked; a UsageError lists those there are."""
    if name not in LAYOUTS:
        raise UsageError(
            f"--layout {name}: no such layout{closest(name, LAYOUTS) or ''} "
            f"(there are {', '.join(LAYOUTS)})"
        )
    return name


def numbers(where: str, name: str, value: object) -> NDArray[Any]:
    """A list (or array, or tensor) of numbers as a vector [T]; null entries become NaN.

    Raises:
        DataError: not a list, a list of lists, or a list of something else than numbers.
    """
    needed = "a flat list of numbers, one per token, is needed"
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, (list, tuple)):
        try:
            array = np.asarray(value) if len(value) else np.zeros(0)
            if array.dtype == object and {type(x) for x in value} <= {float, int, type(None)}:
                array = np.asarray(value, np.float64)
        except (ValueError, OverflowError):
            raise DataError(f"{where}: `{name}` is a list of lists; {needed}") from None
    else:
        raise DataError(f"{where}: `{name}` is {described(value)}; {needed}")
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        what = f"nested {array.ndim} deep" if array.ndim != 1 else "no list of numbers"
        raise DataError(f"{where}: `{name}` is {what}; {needed}")
    return array


def mask_of(where: str, name: str, value: object) -> NDArray[np.uint8]:
    """A list of 0 and 1 (ints, floats or bools) as uint8 [T].

    Raises:
        DataError: as `numbers`, or another value than 0 or 1.
    """
    array = numbers(where, name, value)
    wrong = np.flatnonzero((array != 0) & (array != 1))
    if len(wrong):
        at = int(wrong[0])
        came = "null" if isinstance(value, list) and value[at] is None else array[at]
        raise DataError(
            f"{where}: `{name}` has {came} at token {at}; a mask holds 1 where the policy "
            "produced the token and 0 elsewhere"
        )
    return array.astype(np.uint8)


def check_length(where: str, name: str, array: NDArray[Any], length: int, of: str) -> None:
    """A DataError unless the list has that many entries, as `of` has."""
    if len(array) != length:
        raise DataError(
            f"{where}: `{name}` has {len(array)} entries and {of} {length}; they must agree "
            "(--layout says how lists lie in a record)"
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
        mask: [T], 1 where the policy produced the token.
        lists: name -> [T], each aligned with the mask.
        length: tokens of the sequence without padding; None: it ends with the last mask 1.

    Returns:
        The lists and `response_mask`, each one entry per response token.

    Raises:
        DataError: lists of other lengths, a length beyond them, or mask 1 in the padding.
    """
    for name, array in lists.items():
        check_length(where, name, array, len(mask), "the mask")
    last = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
    end = last if length is None else length
    if not last <= end <= len(mask):
        raise DataError(
            f"{where}: the sequence is said to have {end} tokens, but its lists have {len(mask)} "
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
    """The same for lists of T - 1, whose entry t belongs to token t + 1.

    The mask or the ids, or both, have T entries, which tells that the others are shifted. Token 0
    has no log-prob and so can't be a response's.

    Raises:
        DataError: also where all lists are of one length: none is shifted against another then.
    """
    every = {"mask": mask, **lists}
    tokens = max(len(mask), len(lists.get(_IDS, ())))
    if {*map(len, every.values())} == {tokens}:
        raise DataError(
            f"{where}: all its token lists have {tokens} entries, so none is shifted against the "
            "mask; lists that are aligned with it have the layout padded"
        )
    for name, array in every.items():
        if name not in ("mask", _IDS) or len(array) != tokens:
            check_length(where, name, array, tokens - 1, "the mask or the ids less one (shifted)")
    if len(mask) == tokens and mask[0]:
        raise DataError(f"{where}: the mask is 1 at token 0, for which shifted lists have no entry")
    cut = {name: array[len(array) - tokens + 1 :] for name, array in every.items()}
    return padded(where, cut.pop("mask"), cut, None if length is None else length - 1)


def compact(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Spread lists that have entries for mask 1 only over the sequence, 0 elsewhere, and cut.

    Raises:
        DataError: also where there is no list beside the mask.
    """
    if not lists:
        raise DataError(f"{where}: it has no list beside the mask, so nothing is compact")
    count = int(mask.sum())
    spread: Lists = {}
    for name, array in lists.items():
        check_length(where, name, array, count, "the mask's count of ones")
        spread[name] = scattered(mask, array)
    return padded(where, mask, spread, length)


def scattered(mask: NDArray[np.uint8], array: NDArray[Any]) -> NDArray[Any]:
    """Entries for the ones of a mask [T], in order, as [T] with 0 elsewhere."""
    spread = np.zeros(len(mask), array.dtype)
    spread[mask.astype(bool)] = array
    return spread


def left_padded(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Cut a response that ends with its lists: `length` tokens, None: from the first mask 1.

    Raises:
        DataError: also where the mask ends with 0 and no length tells that this is no padding.
    """
    for name, array in lists.items():
        check_length(where, name, array, len(mask), "the mask")
    begin = response_start(mask)
    if length is not None:
        if not 0 <= length <= len(mask) or len(mask) - length > begin:
            raise DataError(
                f"{where}: the response is said to have {length} tokens, but the mask is 1 from "
                f"token {begin} of {len(mask)}"
            )
        begin = len(mask) - length
    elif begin < len(mask) and not mask[-1]:
        raise DataError(
            f"{where}: the mask ends with 0, where a left-padded response ends; padding there has "
            "the layout padded, and tool output a response_length that covers it"
        )
    return {"response_mask": mask[begin:], **{name: array[begin:] for name, array in lists.items()}}


def as_they_are(
    where: str,
    mask: NDArray[np.uint8],
    lists: Mapping[str, NDArray[Any]],
    length: int | None = None,
) -> Lists:
    """Response lists, only checked: the mask and every list have one entry per token."""
    if length is not None:
        check_length(where, "mask", mask, length, "the response")
    for name, array in lists.items():
        check_length(where, name, array, len(mask), "the mask")
    return {"response_mask": mask, **lists}


_CUTS = {
    "response": as_they_are,
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
    """Bring a record's lists from a layout to one entry per response token.

    Args:
        layout: one of `LAYOUTS`.
        where: the record, for errors.
        mask: 1 where the policy produced the token.
        lists: name -> entries.
        length: real length: of the sequence (padded, shifted, compact) or of the response.
        response: the response's length, where the record says that instead.

    Raises:
        UsageError: no such layout.
        DataError: the lists do not fit it.
    """
    cut = _CUTS[layout_named(layout)]
    if response is not None and cut in (padded, shifted, compact):
        length = sequence_end(where, mask, response)
        if cut is shifted and length is not None and len(lists.get(_IDS, ())) > len(mask):
            length += 1  # the mask lacks token 0
    elif response is not None:
        length = response
    return cut(where, mask, lists, length)


Ragged = tuple["NDArray[np.int64]", "NDArray[Any]"]
"""Offsets [n+1] and values [T] of a list column."""


def written(
    lists: Mapping[str, Ragged],
    columns: dict[str, pa.Array],
    options: ReadOptions,
    place: CellLocation,
) -> dict[str, pa.Array]:
    """The lists as columns, one entry per response token.

    Args:
        lists: column -> its offsets and values.
        columns: the piece's other columns, which may tell lengths.
        options: the layout, and what is left out.
        place: the file, and the piece's first row.

    Raises:
        DataError: a row's lists do not fit the layout, each other or the row's `response_length`.
    """
    if options.layout is not None and lists:
        lists = _laid_out(lists, columns, options, place)
    elif "response_mask" in lists:
        _check_begins(lists["response_mask"], columns, options, place)
    _check_lengths(lists, columns, place)
    made: dict[str, pa.Array] = {}
    for name, (offsets, values) in lists.items():
        kind = CANONICAL.get(name, pa.list_(pa.float32()))
        elements = pa.array(_fitting(name, values, kind.value_type, (place, offsets)))
        made[name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), elements, kind)
    return made


def _fitting(
    name: str, values: NDArray[Any], kind: pa.DataType, at: tuple[CellLocation, NDArray[np.int64]]
) -> NDArray[Any]:
    """Values in their column's type: what float32 can't hold is infinite, ids have to fit."""
    with np.errstate(over="ignore", invalid="ignore"):
        made: NDArray[Any] = values.astype(dtype_of(kind))
    if pa.types.is_integer(kind) and not np.array_equal(made, values):
        place, offsets = at
        token = int(np.flatnonzero(made != values)[0])
        row = int(np.searchsorted(offsets, token, side="right")) - 1
        raise DataError(
            f"{_row(place, row)}: `{name}` has {values[token]} at token {token - offsets[row]}; "
            f"whole numbers that {kind} holds are needed"
        )
    return made


def _row(place: CellLocation, row: int) -> str:
    return f"{place.path}, row {place.first_row + row}"


def _laid_out(
    lists: Mapping[str, Ragged],
    columns: dict[str, pa.Array],
    options: ReadOptions,
    place: CellLocation,
) -> dict[str, Ragged]:
    """Lists brought from a layout to one entry per response token, row by row."""
    assert options.layout is not None
    said = columns["response_length"].to_pylist() if "response_length" in columns else None
    cut: dict[str, list[NDArray[Any]]] = {name: [] for name in lists}
    for row in range(len(lists["response_mask"][0]) - 1):
        entries = {name: values[offsets[row] : offsets[row + 1]]
                   for name, (offsets, values) in lists.items()}  # fmt: skip
        mask = entries.pop("response_mask").astype(np.uint8)
        length = None if said is None else said[row]
        laid = response_lists(options.layout, _row(place, row), mask, entries, response=length)
        options.told.laid_out({"": mask, **entries}, laid)
        if said is not None and not len(laid["response_mask"]):
            said[row] = 0  # no mask 1 says where the response is: none of it is kept
        for name, values in laid.items():
            cut[name].append(values)
    if said is not None:
        columns["response_length"] = pa.array(said, pa.int64())
    return {name: _joined(parts) for name, parts in cut.items()}


def _joined(parts: list[NDArray[Any]]) -> Ragged:
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    return offsets, np.concatenate(parts) if parts else np.zeros(0)


def _check_begins(
    mask: Ragged, columns: Mapping[str, pa.Array], options: ReadOptions, place: CellLocation
) -> None:
    """Count masks that begin with 0 and have a 1; a DataError where the prompt is in the lists."""
    offsets, values = mask
    ones = np.append(np.flatnonzero(values), len(values))
    begins = ones[np.searchsorted(ones, offsets[:-1])] - offsets[:-1]
    lengths = np.diff(offsets)
    late = (begins > 0) & (begins < lengths)
    if "response_length" in columns:
        late &= ~np.equal(lengths, _numbers(columns["response_length"]))
    if "prompt_length" in columns:
        prompts = _numbers(columns["prompt_length"])
        for row in np.flatnonzero(late & (prompts > 0) & (begins >= prompts))[:1]:
            check_prompt(_row(place, int(row)), int(begins[row]), int(prompts[row]))
    options.told.begin_with_0 += int(late.sum())


def _numbers(array: pa.Array) -> NDArray[np.float64]:
    """A column of lengths; -1 for null."""
    return np.asarray(array.fill_null(-1).to_numpy(zero_copy_only=False), np.float64)


def _check_lengths(
    lists: Mapping[str, Ragged], columns: Mapping[str, pa.Array], place: CellLocation
) -> None:
    """A DataError unless all lists of a row have one length, that of `response_length`."""
    if not lists:
        return
    first, (offsets, _) = next(iter(lists.items()))
    expected = np.diff(offsets)
    for name, (own, _) in lists.items():
        wrong = np.flatnonzero(np.diff(own) != expected)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{_row(place, row)}: {name} has {np.diff(own)[row]} entries and {first} "
                f"{expected[row]}; a response needs one entry per token in each (--layout says "
                "how lists lie in a row)"
            )
    if "response_length" in columns:
        said = _numbers(columns["response_length"])
        wrong = np.flatnonzero((said >= 0) & (said != expected))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{_row(place, row)}: {first} has {expected[row]} entries and `response_length` "
                f"is {said[row]:.0f}; --layout says how lists with a prompt or padding lie, "
                "--map response_length=none leaves out what counts something else"
            )
