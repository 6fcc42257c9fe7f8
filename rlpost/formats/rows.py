"""Rows of plain values -> record batches of bounded size, with canonical names and types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.canonical import CANONICAL, TOKEN_COLUMNS
from rlpost.formats.finite import check_finite
from rlpost.formats.layout import mask_of, numbers
from rlpost.parquet.bridge import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions

MOST_ROWS = 4096
MOST_BYTES = 32 << 20
"""A batch ends with the row that brings it to either."""


@dataclass
class Row:
    """One response: canonical columns, and others under their own names; None is null."""

    where: str
    values: dict[str, Any]


@dataclass
class _Seen:
    """What earlier rows had, so that a token column is there for all rows or for none."""

    tokens: dict[str, bool] = field(default_factory=dict)
    others: dict[str, pa.DataType] = field(default_factory=dict)


def batches(
    rows: Iterable[Row],
    options: ReadOptions,
    types: Mapping[str, pa.DataType] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of at most about 32 MiB.

    A batch has the columns for which some row of it has a value, less those that the options
    leave out. Columns that are not canonical have the type in `types`, or the one that Arrow
    infers where they first appear.

    Raises:
        DataError: a value does not fit its column, a row's token lists differ in length, or a
            row lacks a token list that earlier rows had (or has one that they lacked).
    """
    seen = _Seen(others=dict(types or {}))
    kept: list[Row] = []
    size = 0
    for row in rows:
        for name in options.left_out:
            row.values.pop(name, None)
        size += _checked(row, seen)
        kept.append(row)
        if len(kept) == MOST_ROWS or size >= MOST_BYTES:
            yield _batch(kept, seen, options)
            kept, size = [], 0
    if kept:
        yield _batch(kept, seen, options)


def _checked(row: Row, seen: _Seen) -> int:
    """Turn the row's token lists to vectors, check them, and give its size in bytes, about."""
    values = row.values
    size = 0
    lengths: dict[str, int] = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in TOKEN_COLUMNS or name == "prompt_token_ids":
            check = mask_of if name == "response_mask" else numbers
            values[name] = array = check(row.where, name, value)
            size += array.nbytes
            if name in TOKEN_COLUMNS:
                lengths[name] = len(array)
        elif isinstance(value, (str, list)):
            size += len(value)
    _check_lengths(row, lengths)
    _check_presence(row, lengths, seen)
    return size + 64


def _check_lengths(row: Row, lengths: Mapping[str, int]) -> None:
    """All lists have one length, and it is the `response_length` where there is one."""
    if len({*lengths.values()}) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(
            f"{row.where}: its token lists differ in length ({told}); a response needs one entry "
            "per token in each (--layout says how lists of your own files lie)"
        )
    said, name = row.values.get("response_length"), next(iter(lengths), "")
    if name and said is not None and said != lengths[name]:
        raise DataError(
            f"{row.where}: `{name}` has {lengths[name]} entries and `response_length` is {said}; "
            "--layout says how lists with a prompt or padding lie, --map response_length=none "
            "leaves out what counts something else"
        )


def _check_presence(row: Row, lengths: Mapping[str, int], seen: _Seen) -> None:
    """A response without tokens may lack lists; any other row has those that the first had."""
    if not max(lengths.values(), default=0):
        return
    for name in TOKEN_COLUMNS:
        there = name in lengths
        if seen.tokens.setdefault(name, there) != there:
            less, more = ("lacks", "have") if not there else ("has", "lack")
            raise DataError(
                f"{row.where}: {less} {name}, which earlier records {more}; all need it or none: "
                f"drop the record, or leave the role out with --map {name}=none"
            )


def _batch(rows: list[Row], seen: _Seen, options: ReadOptions) -> pa.RecordBatch:
    there = {name: None for row in rows for name, value in row.values.items() if value is not None}
    names = [*(name for name in CANONICAL if name in there),
             *(name for name in there if name not in CANONICAL)]  # fmt: skip
    columns = {name: _column(name, rows, seen) for name in names}
    try:
        batch = pa.record_batch(columns)
    except UnicodeEncodeError as error:
        raise DataError(
            f"{rows[0].where} or later: the name {error.object!r} of a field is no text"
        ) from None
    if options.nonfinite == "error":
        check_finite(batch, lambda place: rows[place].where)
    return batch


def _column(name: str, rows: list[Row], seen: _Seen) -> pa.Array:
    if name in TOKEN_COLUMNS or name == "prompt_token_ids":
        return _lists(name, rows)
    kind = CANONICAL.get(name) or seen.others.get(name)
    values = [row.values.get(name) for row in rows]
    if kind is not None and pa.types.is_string(kind):
        values = [x if x is None or isinstance(x, str) else _spelled(x) for x in values]
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _culprit(name, rows, kind) from None
    if kind is None and not pa.types.is_null(array.type):
        seen.others[name] = array.type
    return array


def _spelled(value: object) -> str:
    """A key as text: 3 and 3.0 are the same one."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _culprit(name: str, rows: list[Row], kind: pa.DataType | None) -> DataError:
    """The error for the first row whose value does not fit."""
    for row in rows:
        try:
            pa.array([row.values.get(name)], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return DataError(
                f"{row.where}: `{name}` is {row.values.get(name)!r:.60}; {kind} is needed"
            )
    return DataError(f"{rows[0].where} and the {len(rows) - 1} records after it: `{name}` has "
                     "values of different kinds; one kind is needed")  # fmt: skip


def _lists(name: str, rows: list[Row]) -> pa.Array:
    """Vectors as one list column; a row without tokens has an empty list, never null."""
    kind = CANONICAL[name]
    arrays = [row.values.get(name) for row in rows]
    lengths = np.array([0 if array is None else len(array) for array in arrays], np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    wanted = dtype_of(kind.value_type)
    parts = [
        _fitting(name, row, array, wanted)
        for row, array in zip(rows, arrays, strict=True)
        if array is not None
    ]
    values = np.concatenate(parts) if parts else np.zeros(0, wanted)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), kind)


def _fitting(name: str, row: Row, array: NDArray[Any], wanted: Any) -> NDArray[Any]:
    """A vector in the column's type; ids must be whole and fit 32 bits."""
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is found below, or inf
        if np.issubdtype(wanted, np.floating):
            return np.asarray(array, wanted)
        made: NDArray[Any] = np.nan_to_num(array).astype(wanted)
    if not np.array_equal(made, array):
        at = int(np.flatnonzero(made != array)[0])
        came = "null" if np.isnan(array[at]) else array[at]
        raise DataError(
            f"{row.where}: `{name}` has {came} at token {at}; whole numbers of at most 32 "
            "bits are needed"
        )
    return made
