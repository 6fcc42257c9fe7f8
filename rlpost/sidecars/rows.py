"""Rows of two files that belong together: by their order, or by a unique key."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.display.controls import printable_line
from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.io.arrow import is_string, without_dictionary
from rlpost.io.keys import KeyColumn
from rlpost.kernels.codes import joint_codes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source
    from rlpost.io.paths import AnyPath


_ROWS = 1 << 16  # rows of keys to compare at a time
_MOST_CHARACTERS = 60  # of a value in an error


class FileRows(NamedTuple):
    """The rows of one file of a source."""

    source: Source
    number: int

    @property
    def path(self) -> AnyPath:
        """The file's path."""
        return self.source.files[self.number].path

    @property
    def name(self) -> str:
        """The path, for errors."""
        return str(self.path)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.source.footers[self.number].num_rows)

    @property
    def row_groups(self) -> list[int]:
        """The rows of each row group."""
        footer = self.source.footers[self.number]
        return [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """The key-value metadata."""
        return self.source.footers[self.number].metadata or {}

    @property
    def schema(self) -> pa.Schema:
        """The schema."""
        return self.source.schemas[self.number]

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns in batches; raises as `Source`."""
        return (chunk.table for chunk in self.source.read_file(self.number, columns, _ROWS, ""))

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Read columns of all rows, in this order; raises as `Source`."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        batches = (batch.select([*columns]) for batch in self.read(columns))
        return pa.Table.from_batches(batches, schema)


def is_key(kind: pa.DataType) -> bool:
    """Return whether a column's values identify rows: texts, integers, dates, no floats or lists.

    >>> is_key(pa.string()), is_key(pa.dictionary(pa.int8(), pa.string())), is_key(pa.float32())
    (True, True, False)
    """
    if pa.types.is_dictionary(kind):
        return is_key(kind.value_type)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_decimal(kind)
        or is_string(kind)
        or _is_binary(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def check_order(left: FileRows, right: FileRows, columns: Sequence[str]) -> None:
    """Check that two files have the same rows in one order.

    Args:
        left: the input.
        right: the sidecar.
        columns: keys that both have.

    Raises:
        DataError: the files have different numbers of rows, or a key differs in a row.
    """
    if left.rows != right.rows:
        raise DataError(
            f"{right.name}: has {counted(right.rows, 'row')}, and {left.name} has "
            f"{left.rows:,}; rows are joined by their order, so both need the same rows; "
            "--on COLUMN joins them by a unique key"
        )
    if not columns:
        return
    row = 0
    for one, other in _aligned(left.read(columns), right.read(columns)):
        for name in columns:
            first = _first_difference(*_comparable(left, right, name, one[name], other[name]))
            if first is not None:
                raise DataError(
                    f"{left.name}, row {row + first}: `{name}` is {_shown(one[name][first])}, and "
                    f"in this row of {right.name} it is {_shown(other[name][first])}; rows are "
                    "joined by their order, so both need the same rows in one order; --on COLUMN "
                    "joins them by a unique key"
                )
        row += one.num_rows


def _aligned(
    left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield batches of the same rows of two files with equally many rows."""
    one = other = None
    while True:
        one = one or next(left, None)
        other = other or next(right, None)
        if one is None or other is None:
            return
        rows = min(one.num_rows, other.num_rows)
        yield one.slice(0, rows), other.slice(0, rows)
        one, other = one.slice(rows), other.slice(rows)


def _first_difference(left: pa.Array, right: pa.Array) -> int | None:
    """Return the first row that differs; nulls are equal to each other."""
    if left.equals(right):
        return None
    nulls = pc.not_equal(pc.is_null(left), pc.is_null(right))
    differ = pc.or_(nulls, pc.fill_null(pc.not_equal(left, right), fill_value=False))
    return int(pc.index(differ, value=True).as_py())


def _comparable(
    left: FileRows, right: FileRows, name: str, one: pa.Array, other: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """Return two columns of keys in one type; DataError if their values cannot be equal."""
    first, second = _plain(one), _plain(other)
    if first.type != second.type:
        try:
            if pa.types.is_temporal(first.type):
                return first, second.cast(first.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
        raise DataError(
            f"{right.name}: `{name}` is {other.type}, and in {left.name} it is {one.type}; a key "
            "needs the same type in both: cast one of them"
        )
    return first, second


def _plain(array: pa.Array) -> pa.Array:
    """Return a column of keys in the widest type of its kind."""
    array = without_dictionary(array)
    kind = array.type
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return array.cast(pa.int64())
    if is_string(kind):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if _is_binary(kind) else array


def _shown(value: pa.Scalar) -> str:
    text = "null" if value.as_py() is None else repr(value.as_py())
    cut = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
    return printable_line(cut)


class Matches(NamedTuple):
    """The row of the sidecar for each row of the input."""

    rows: NDArray[np.int64]
    shared: int
    """Rows of the input with the key of an earlier row."""
    in_order: bool
    """Whether both files have the same rows in one order."""


def match_by_key(
    left: FileRows, right: FileRows, on: Sequence[str], equal: Sequence[str]
) -> Matches:
    """Return the row of the sidecar with the key of each row of the input.

    Args:
        left: the input; several rows may have one key.
        right: the sidecar, in which a key is unique.
        on: the columns of the key.
        equal: other columns that both have, and whose values must be equal in matched rows.

    Raises:
        DataError: a key is null, is not unique in the sidecar, or is missing there; a value
            differs; or a column has another type.
    """
    names = [*on, *equal]
    one, other = left.table(names), right.table(names)
    keys = [_comparable(left, right, name, _joined(one[name]), _joined(other[name])) for name in on]
    for file, table in ((left, one), (right, other)):
        for name in on:
            if table[name].null_count:
                row = int(pc.index(pc.is_null(table[name]), value=True).as_py())
                raise DataError(
                    f"{file.name}, row {row}: `{name}` is null; --on needs a key in every row: "
                    "choose other columns, or drop the row"
                )
    codes, wanted = _codes(keys)
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    _check_unique(right, on, other, order, ordered)
    places = np.minimum(np.searchsorted(ordered, codes), max(len(ordered) - 1, 0))
    missing = ordered[places] != codes if len(ordered) else np.ones(len(codes), np.bool_)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise DataError(
            f"{left.name}, row {row}: no row of {right.name} has {_key(on, one, row)}; "
            f"{counted(int(missing.sum()), 'row')} of {left.rows:,} have no match, and each needs "
            "one: compute the sidecar from these rows, or choose another key for --on"
        )
    rows = order[places].astype(np.int64)
    for name in equal:
        matched = _comparable(
            left, right, name, _joined(one[name]), _joined(other[name].take(rows))
        )
        first = _first_difference(*matched)
        if first is not None:
            raise DataError(
                f"{left.name}, row {first}: `{name}` is {_shown(one[name][first])}, and in row "
                f"{rows[first]} of {right.name}, with the same key, it is "
                f"{_shown(other[name][int(rows[first])])}; --replace uses the sidecar's values"
            )
    in_order = left.rows == right.rows and bool((rows == np.arange(len(rows))).all())
    return Matches(rows, left.rows - len(np.unique(rows)), in_order)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; texts in a type that has room for all of them."""
    chunks = column.chunks or [pa.array([], column.type)]
    return pa.concat_arrays([_plain(chunk) for chunk in chunks])


def _codes(
    keys: Sequence[tuple[pa.Array, pa.Array]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return keys of two files as integers, which are equal if all columns are."""
    codes = joint_codes(*(KeyColumn.of(both).codes for both in keys))
    one, other = np.split(codes, [len(keys[0][0])])
    return one, other


def _check_unique(
    file: FileRows,
    on: Sequence[str],
    table: pa.Table,
    order: NDArray[np.int64],
    ordered: NDArray[np.int64],
) -> None:
    """Raise DataError if two rows of the sidecar have one key."""
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeated):
        first, second = order[repeated[0]], order[repeated[0] + 1]
        raise DataError(
            f"{file.name}, row {second}: has {_key(on, table, int(first))} of row {first}; "
            f"{counted(len(repeated), 'row')} of {file.rows:,} repeat a key, and --on needs a "
            "unique one: add a column to --on, or join by row order, without --on"
        )


def _key(on: Sequence[str], table: pa.Table, row: int) -> str:
    values = (f"`{name}` {_shown(table[name][row])}" for name in on)
    return "the key " + ", ".join(values)
