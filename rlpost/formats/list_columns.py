"""List columns of anybody's Parquet, a piece at a time: brought from their layout, and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.canonical import CANONICAL
from rlpost.formats.layout import response_lists
from rlpost.formats.lengths import check_prompt
from rlpost.parquet.bridge import dtype_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.parquet.ragged import Place

Ragged = tuple["NDArray[np.int64]", "NDArray[Any]"]
"""Offsets [n+1] and values [T] of a list column."""


def written(
    lists: Mapping[str, Ragged], columns: dict[str, pa.Array], options: ReadOptions, place: Place
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
    name: str, values: NDArray[Any], kind: pa.DataType, at: tuple[Place, NDArray[np.int64]]
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


def _row(place: Place, row: int) -> str:
    return f"{place.path}, row {place.first_row + row}"


def _laid_out(
    lists: Mapping[str, Ragged], columns: dict[str, pa.Array], options: ReadOptions, place: Place
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
    mask: Ragged, columns: Mapping[str, pa.Array], options: ReadOptions, place: Place
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
    lists: Mapping[str, Ragged], columns: Mapping[str, pa.Array], place: Place
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
