"""Rows of plain values -> record batches of bounded size, with canonical names and types.

Fields without a role keep their names. Each has one type in the whole file, which only the whole
file determines (a score of 1 can come before one of 0.5), so the file is read once for the types.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import CANONICAL, TOKEN_COLUMNS
from rlpost.formats.layout import as_mask, as_vector
from rlpost.formats.records import parse_json
from rlpost.io.arrow import dtype_of, to_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record, Row


_TEXT = pa.string()
_LONG = 64  # bits of an integer


@dataclass(frozen=True)
class OtherFields:
    """The fields of a file without a role, which are kept unchanged.

    Args:
        types: field -> Arrow type, in the order of the file.
    """

    types: Mapping[str, pa.DataType]

    @classmethod
    def of_schema(cls, schema: pa.Schema, skip: Collection[str]) -> Self:
        """Return the columns of a table, except some, and those without a type."""
        return cls(
            {
                one.name: one.type
                for one in schema
                if one.name not in skip and not pa.types.is_null(one.type)
            }
        )

    @classmethod
    def of_parts(cls, parts: Iterable[Mapping[str, pa.DataType]]) -> Self:
        """Return the fields that parts of a dump have, without those that are always null."""
        types: dict[str, pa.DataType] = {}
        for part in parts:
            for name, kind in part.items():
                types[name] = kind if name not in types else _common_type(types[name], kind)
        return cls({name: kind for name, kind in types.items() if not pa.types.is_null(kind)})

    @cached_property
    def columns(self) -> dict[str, str]:
        """Field -> column; a name with another meaning in rlpost becomes `dumped_...`."""
        names: dict[str, str] = {}
        taken = set(CANONICAL)
        for key in self.types:
            name = f"dumped_{key}" if key in CANONICAL else key
            while name in taken:
                name += "_"
            taken.add(name)
            names[key] = name
        return names

    @property
    def column_types(self) -> dict[str, pa.DataType]:
        """The types by column, for `rlpost.formats.rows.record_batches`."""
        return {column: self.types[field] for field, column in self.columns.items()}

    def add_missing_columns(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, each with all of these columns; missing values are null.

        A field that only late records have is a column from the first row on.
        """
        for batch in batches:
            there = set(batch.schema.names)
            missing = {name: kind for name, kind in self.column_types.items() if name not in there}
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, *(pa.nulls(batch.num_rows, kind) for kind in missing.values())],
                [*batch.schema.names, *missing],
            )

    def values(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record's values by column."""
        return {
            column: _as_text(fields.get(field), self.types[field])
            for field, column in self.columns.items()
        }


def infer_other_fields(
    objects: Iterable[Mapping[str, Any]], skip: Collection[str], *, integers: bool = True
) -> OtherFields:
    """Return the fields of records with one type each, as `field_types` does."""
    return OtherFields.of_parts([field_types(objects, skip, integers=integers)])


def field_types(
    objects: Iterable[Mapping[str, Any]], skip: Collection[str], *, integers: bool = True
) -> dict[str, pa.DataType]:
    """Return the fields with one type each; null for a field without values.

    Integers are int64, other numbers float64, flat lists keep their elements' type; fields
    of mixed types, nested lists and objects are text (JSON).

    Args:
        objects: the fields of every record, as values or as JSON text (`msgspec.Raw`).
        skip: fields to omit.
        integers: whether int64 fields are allowed; otherwise all numbers are float64, so that the
            files of a dump agree: a score can be 0 or 1 throughout a file, and 0.5 in the next.
    """
    types: dict[str, pa.DataType] = {}
    for fields in objects:
        for name, value in fields.items():
            if name not in skip:
                kind = _type(value)
                if kind == pa.int64() and not integers:
                    kind = pa.float64()
                types[name] = kind if name not in types else _common_type(types[name], kind)
    return types


_NUMBER_CHARACTERS = b"0123456789+-.eE, \t\r\n"
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_INTEGER_CHARACTERS = b"0123456789-, \t\r\n"
_LONG_INTEGER = b"0" * 19  # digits, after `_ZEROS`, that may not fit 64 bits
_TYPE_BY_FIRST_BYTE = {
    b'"': _TEXT,
    b"{": _TEXT,
    b"t": pa.bool_(),
    b"f": pa.bool_(),
    b"n": pa.null(),
}


def _raw_type(raw: msgspec.Raw) -> pa.DataType:
    """Return the type of a JSON text; a list of numbers and a text are not parsed."""
    text = bytes(raw)
    if (kind := _TYPE_BY_FIRST_BYTE.get(text[:1])) is not None:
        return kind
    if b"." in text:
        if text.translate(None, _NUMBER_CHARACTERS) == b"[]":
            return pa.list_(pa.float64())
    elif text.translate(None, _INTEGER_CHARACTERS) == b"[]":
        zeros = text.translate(_ZEROS)
        if b"0" in zeros and _LONG_INTEGER not in zeros:
            return pa.list_(pa.int64())
    return _type(parse_json("", text))


def _type(value: object) -> pa.DataType:
    if isinstance(value, msgspec.Raw):
        return _raw_type(value)
    if isinstance(value, int) and value.bit_length() >= _LONG:
        return _TEXT
    if isinstance(value, list):
        return _list_type(value)
    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), type(None): pa.null()}
    return simple.get(type(value), _TEXT)


def _list_type(value: list[Any]) -> pa.DataType:
    """Return the type of a list; text if its entries have several types or are nested."""
    kinds = set(map(type, value)) - {type(None)}
    if kinds == {int, float}:
        return pa.list_(pa.float64())
    if not kinds:
        return pa.list_(pa.null())
    if len(kinds) > 1 or kinds & {list, dict}:
        return _TEXT
    if kinds == {int} and not _fits_int64(value):
        return _TEXT
    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: _TEXT}
    return pa.list_(simple[kinds.pop()])


def _fits_int64(values: list[int | None]) -> bool:
    """Return whether all values fit 64 bits."""
    try:
        array("q", [x for x in values if x is not None])
    except OverflowError:
        return False
    return True


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type for the values of both."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_list(one) and pa.types.is_list(other):
        inner = _common_type(one.value_type, other.value_type)
        elements = {one.value_type, other.value_type}
        return _TEXT if inner == _TEXT and not elements <= {_TEXT, pa.null()} else pa.list_(inner)
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else _TEXT


def _as_text(value: object, kind: pa.DataType) -> Any:
    """Return a value in the type of its field; other values in a text field become JSON."""
    if value is None or kind != _TEXT or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


_TOKENS = tuple(
    name
    for name, kind in TOKEN_COLUMNS.items()
    if pa.types.is_floating(kind.value_type) and not name.startswith("dumped_")
)


def has_failed(batch: pa.RecordBatch | pa.Table) -> NDArray[np.bool_]:
    """Return which rows [n] are of a rollout that failed, which needs no reward."""
    reasons = batch.column("failure").to_pylist() if "failure" in batch.schema.names else ()
    failed = [bool(reason) for reason in reasons]
    return np.asarray(failed, np.bool_) if failed else np.zeros(batch.num_rows, np.bool_)


def nonfinite_numbers(batch: pa.RecordBatch) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield columns with numbers that other commands reject, and the rows [k] of these numbers.

    These are rewards that are NaN, infinite or null, except of rollouts that failed, and NaN or
    infinite numbers of policy tokens. A row is repeated for each of its numbers.
    """
    if "reward" in batch.schema.names:
        rewards = batch.column("reward").to_numpy(zero_copy_only=False)
        wrong = ~np.isfinite(rewards.astype(np.float64)) & ~has_failed(batch)
        if wrong.any():
            yield "reward", np.flatnonzero(wrong)
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
    """Check that rewards and the numbers of policy tokens are finite.

    Args:
        batch: canonical columns.
        where: returns the name of a row of the batch.

    Raises:
        DataError: for the first row with another number.
    """
    bad = [(int(rows[0]), name) for name, rows in nonfinite_numbers(batch)]
    if bad:
        row, name = min(bad)
        raise DataError(
            f"{where(row)}: `{name}` {_describe_number(batch, name, row)}; --nonfinite error needs "
            "finite numbers, --nonfinite keep accepts others"
        )


def _describe_number(batch: pa.RecordBatch, name: str, row: int) -> str:
    value = batch.column(name)[row].as_py()
    if name == "reward":
        return f"is {_number_text(value)}"
    mask = (
        batch.column("response_mask")[row].as_py()
        if "response_mask" in batch.schema.names
        else None
    )
    token = next(
        i for i, number in enumerate(value) if not np.isfinite(number) and (mask is None or mask[i])
    )
    return f"has {_number_text(value[token])} at token {token}"


def _number_text(value: float | None) -> str:
    """Return a number as text; formats convert null to NaN."""
    if value is None:
        return "null"
    return "NaN (or null)" if np.isnan(value) else str(value)


BatchReader: TypeAlias = (
    "Callable[[Iterator[Record], ReadOptions, EarlierRows], Iterator[pa.RecordBatch]]"
)
"""Makes record batches of records; a function of a module or a partial one, so it can be sent."""
MOST_ROWS = 4096
MOST_BYTES = 32 << 20
"""A batch ends with the row that reaches either limit."""


@dataclass
class EarlierRows:
    """Columns of earlier rows of a dump: every row has the same token columns and types."""

    where: str = ""
    """The first row with tokens."""
    tokens: frozenset[str] | None = None
    """Its token columns."""
    others: dict[str, pa.DataType] = field(default_factory=dict)

    def check(self, where: str, tokens: frozenset[str]) -> None:
        """Raise DataError unless a row with tokens has the token columns of earlier rows."""
        if self.tokens is None:
            self.where, self.tokens = where, tokens
        for name in TOKEN_COLUMNS if tokens != self.tokens else ():
            if (name in tokens) != (name in self.tokens):
                less, more = ("has", "lack") if name in tokens else ("lacks", "have")
                raise DataError(
                    f"{where}: {less} {name}, which earlier records {more}; all or none must have "
                    f"it: remove the record, or omit the role with --map {name}=none"
                )


def record_batches(
    rows: Iterable[Row],
    options: ReadOptions,
    types: Mapping[str, pa.DataType] | None = None,
    earlier: EarlierRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of at most about 32 MiB.

    A batch has the columns for which one of its rows has a value, except those that the options
    omit. Columns that are not canonical have the type in `types`, or the type that Arrow infers
    from their first batch.

    Raises:
        DataError: a value does not fit its column, a row's token lists differ in length, or a row
            has other token lists than earlier rows.
    """
    earlier = earlier or EarlierRows()
    earlier.others |= types or {}
    omitted = options.omitted_columns
    batch: list[Row] = []
    size = 0
    for row in rows:
        for name in omitted:
            row.values.pop(name, None)
        size += _check_row(row, earlier)
        batch.append(row)
        if len(batch) == MOST_ROWS or size >= MOST_BYTES:
            yield _batch(batch, earlier, options)
            batch, size = [], 0
    if batch:
        yield _batch(batch, earlier, options)


def _check_row(row: Row, earlier: EarlierRows) -> int:
    """Convert the row's token lists to vectors, check them, and return its approximate bytes."""
    values = row.values
    size = 0
    lengths: dict[str, int] = {}
    for name, value in values.items():
        if value is None:
            continue
        if name in TOKEN_COLUMNS or name == "prompt_token_ids":
            check = as_mask if name == "response_mask" else as_vector
            values[name] = array = check(row.where, name, value)
            size += array.nbytes
            if name in TOKEN_COLUMNS:
                lengths[name] = len(array)
        elif isinstance(value, (str, list)):
            size += len(value)
    if lengths:
        _check_lengths(row, lengths)
        if max(lengths.values()):  # a row without tokens needs no lists
            earlier.check(row.where, frozenset(lengths))
    return size + 64


def _check_lengths(row: Row, lengths: Mapping[str, int]) -> None:
    """Check that all lists have the same length, which is `response_length` if there is one."""
    if len({*lengths.values()}) > 1:
        text = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(
            f"{row.where}: its token lists differ in length ({text}); every list needs one entry "
            "per response token (for jsonl and parquet, --layout sets the layout)"
        )
    length, name = row.values.get("response_length"), next(iter(lengths), "")
    if name and length is not None and length != lengths[name]:
        raise DataError(
            f"{row.where}: `{name}` has {lengths[name]} entries and `response_length` is {length}; "
            "set --layout if the lists contain a prompt or padding, or --map response_length=none "
            "if it counts something else"
        )


def _batch(rows: list[Row], earlier: EarlierRows, options: ReadOptions) -> pa.RecordBatch:
    used = {name: None for row in rows for name, value in row.values.items() if value is not None}
    names = [*(name for name in CANONICAL if name in used),
             *(name for name in used if name not in CANONICAL)]  # fmt: skip
    columns = {name: _column(name, rows, earlier) for name in names}
    try:
        batch = pa.record_batch(columns)
    except UnicodeEncodeError as error:
        raise DataError(
            f"{rows[0].where} or later: the field name {error.object!r} is not valid text"
        ) from None
    if options.nonfinite == "error":
        check_finite(batch, lambda row: rows[row].where)
    return batch


def _column(name: str, rows: list[Row], earlier: EarlierRows) -> pa.Array:
    if name in TOKEN_COLUMNS or name == "prompt_token_ids":
        return _lists(name, rows)
    kind = CANONICAL.get(name) or earlier.others.get(name)
    values = [row.values.get(name) for row in rows]
    if kind is not None and pa.types.is_string(kind):
        values = [x if x is None or isinstance(x, str) else _key_text(x) for x in values]
    try:
        array = pa.array(values, kind)
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise _type_error(name, rows, kind) from None
    if kind is None and not pa.types.is_null(array.type):
        earlier.others[name] = array.type
    return array


def _key_text(value: object) -> str:
    """Return a key as text: 3 and 3.0 are the same key."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _type_error(name: str, rows: list[Row], kind: pa.DataType | None) -> DataError:
    """Return the error for the first row whose value does not fit."""
    for row in rows:
        try:
            pa.array([row.values.get(name)], kind)
        except MemoryError:  # an ArrowException, too, but not about the data
            raise
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return DataError(
                f"{row.where}: `{name}` is {row.values.get(name)!r:.60}; {kind} is needed"
            )
    return DataError(f"{rows[0].where} and the {len(rows) - 1} records after it: `{name}` has "
                     "values of different types; one type is needed")  # fmt: skip


def _lists(name: str, rows: list[Row]) -> pa.Array:
    """Return vectors as one list column; a row without tokens has an empty list, never null."""
    kind = CANONICAL[name]
    arrays = [row.values.get(name) for row in rows]
    offsets = np.cumsum([0, *(0 if x is None else len(x) for x in arrays)], dtype=np.int32)
    parts = [x for x in arrays if x is not None]
    values = _cast(name, rows, offsets, np.concatenate(parts), dtype_of(kind.value_type))
    lists = to_arrow(offsets, pa.int32()), to_arrow(values, kind.value_type)
    return pa.ListArray.from_arrays(*lists, kind)


def _cast(
    name: str, rows: list[Row], offsets: NDArray[np.int32], values: NDArray[Any], dtype: Any
) -> NDArray[Any]:
    """Return the vectors of rows in the column's type; ids must be integers that fit 32 bits."""
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):  # floats overflow to inf, ids are checked
        if np.issubdtype(dtype, np.floating):
            return values.astype(dtype)
        converted: NDArray[Any] = np.nan_to_num(values).astype(dtype)
    wrong = np.flatnonzero(converted != values)
    if len(wrong):
        row = int(np.searchsorted(offsets, wrong[0], side="right")) - 1
        value = "null" if np.isnan(values[wrong[0]]) else values[wrong[0]]
        raise DataError(
            f"{rows[row].where}: `{name}` has {value} at token {wrong[0] - offsets[row]}; integers "
            "of at most 32 bits are needed"
        )
    return converted
