"""Rows of plain values -> record batches of bounded size, with canonical names and types.

Fields that no role reads: each gets one type for a whole file, and none is lost.

A field's type must hold for all its records, and a later record may show that the first one was
no guide (a score of 1 before one of 0.5). So the file is read once for the types alone.

Numbers of converted rows that are no finite ones: counted, or refused with their record.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import CANONICAL, TOKEN_COLUMNS
from rlpost.formats.layout import mask_of, numbers
from rlpost.io.arrow import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions


_TEXT = pa.string()
_LONG = 64  # bits of an integer


@dataclass(frozen=True)
class Extras:
    """The fields of a file that are kept as they are.

    Args:
        types: field -> Arrow type, in order of appearance.
    """

    types: Mapping[str, pa.DataType]

    @cached_property
    def columns(self) -> dict[str, str]:
        """Field -> column; a name that means something else in rlpost becomes `dumped_...`."""
        names: dict[str, str] = {}
        for key in self.types:
            name = f"dumped_{key}" if key in CANONICAL else key
            while name in CANONICAL or name in names.values():
                name += "_"
            names[key] = name
        return names

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The types by column, for `rlpost.formats.rows.batches`."""
        return {column: self.types[field] for field, column in self.columns.items()}

    def kept_in(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, each with all of these columns, those without a value null.

        A field that only late records have is a column from the first row on.
        """
        for batch in batches:
            full = batch
            for column, kind in self.column_types.items():
                if column not in batch.schema.names:
                    full = full.append_column(column, pa.nulls(batch.num_rows, kind))
            yield full

    def values(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A record's values by column."""
        return {
            column: _extra_spelled(fields.get(field), self.types[field])
            for field, column in self.columns.items()
        }


def extras_of(
    objects: Iterable[Mapping[str, Any]], skip: Collection[str], *, integers: bool = True
) -> Extras:
    """One type per field.

    Whole numbers are int64, other numbers float64, flat lists keep their elements' type; fields
    of mixed kinds, nested lists and objects are text (JSON).

    Args:
        objects: the fields of every record.
        skip: fields that are left out.
        integers: whether there are int64 fields; else all numbers are float64, so that the files
            of one dump agree: a score may be 0 or 1 throughout one file, and 0.5 in the next.
    """
    found: dict[str, pa.DataType] = {}
    for fields in objects:
        for name, value in fields.items():
            if name not in skip:
                kind = _type(value)
                if kind == pa.int64() and not integers:
                    kind = pa.float64()
                found[name] = kind if name not in found else _both(found[name], kind)
    return Extras({name: kind for name, kind in found.items() if not pa.types.is_null(kind)})


def _type(value: object) -> pa.DataType:
    if isinstance(value, int) and value.bit_length() >= _LONG:
        return _TEXT
    if isinstance(value, list):
        return _list_type(value)
    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), type(None): pa.null()}
    return simple.get(type(value), _TEXT)


def _list_type(value: list[Any]) -> pa.DataType:
    """The list's type; text if its elements are of several kinds, or nested."""
    kinds = set(map(type, value)) - {type(None)}
    if kinds == {int, float}:
        return pa.list_(pa.float64())
    if not kinds:
        return pa.list_(pa.null())
    if len(kinds) > 1 or kinds & {list, dict}:
        return _TEXT
    if kinds == {int} and not _fit(value):
        return _TEXT
    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: _TEXT}
    return pa.list_(simple[kinds.pop()])


def _fit(numbers: list[int | None]) -> bool:
    """Whether all fit 64 bits."""
    try:
        array("q", [x for x in numbers if x is not None])
    except OverflowError:
        return False
    return True


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds values of two."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _both(one.value_type, other.value_type)
        elements = {one.value_type, other.value_type}
        return _TEXT if inner == _TEXT and not elements <= {_TEXT, pa.null()} else pa.list_(inner)
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else _TEXT


def _extra_spelled(value: object, kind: pa.DataType) -> Any:
    """A value as its field's type has it: what is no text in a text field is written as JSON."""
    if value is None or kind != _TEXT or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


_TOKENS = tuple(
    name
    for name, kind in TOKEN_COLUMNS.items()
    if pa.types.is_floating(kind.value_type) and not name.startswith("dumped_")
)


def unfit(batch: pa.RecordBatch) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Columns with numbers that other commands refuse, and the rows [k] of those numbers.

    These are rewards that are NaN, infinite or null, and NaN or infinite token numbers where the
    mask is 1. A row stands there once for each number.
    """
    if "reward" in batch.schema.names:
        rewards = batch.column("reward").to_numpy(zero_copy_only=False)
        if len(bad := np.flatnonzero(~np.isfinite(rewards.astype(np.float64)))):
            yield "reward", bad
    mask = None
    for name in _TOKENS:
        if name not in batch.schema.names:
            continue
        array = batch.column(name)
        values = array.flatten().to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):  # the sum of infinities of both signs
            if np.isfinite(values.sum(dtype=np.float64)):
                continue
        if mask is None and "response_mask" in batch.schema.names:
            mask = batch.column("response_mask").flatten().to_numpy() == 1
        wrong = np.flatnonzero(~np.isfinite(values) & (True if mask is None else mask))
        offsets = array.offsets.to_numpy() - array.offsets[0].as_py()
        if len(wrong):
            yield name, np.searchsorted(offsets, wrong, side="right") - 1


def check_finite(batch: pa.RecordBatch, where: Callable[[int], str]) -> None:
    """Refuse rows with such a number.

    Args:
        batch: canonical columns.
        where: names a row of the batch.

    Raises:
        DataError: for the first such row.
    """
    found = [(int(rows[0]), name) for name, rows in unfit(batch)]
    if found:
        row, name = min(found)
        raise DataError(
            f"{where(row)}: `{name}` {_came(batch, name, row)}; finite numbers are needed with "
            "--nonfinite error, --nonfinite keep keeps it"
        )


def _came(batch: pa.RecordBatch, name: str, row: int) -> str:
    value = batch.column(name)[row].as_py()
    if name == "reward":
        return f"is {_word(value)}"
    mask = (
        batch.column("response_mask")[row].as_py()
        if "response_mask" in batch.schema.names
        else None
    )
    at = next(
        place
        for place, one in enumerate(value)
        if not np.isfinite(one) and (mask is None or mask[place])
    )
    return f"has {_word(value[at])} at token {at}"


def _word(value: float | None) -> str:
    """NaN is also what formats make of null."""
    if value is None:
        return "null"
    return "NaN (or null)" if np.isnan(value) else str(value)


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
