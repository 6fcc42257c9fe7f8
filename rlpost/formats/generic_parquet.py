"""Anybody's Parquet: nested columns, other names, other layouts -> canonical columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.binding import bind
from rlpost.formats.extras import Extras
from rlpost.formats.fields import column_of
from rlpost.formats.generic_jsonl import TEXT_BATCH
from rlpost.formats.layout import response_lists
from rlpost.formats.rows import CANONICAL, TOKEN_COLUMNS
from rlpost.parquet import ragged
from rlpost.parquet.inputs import InputFile
from rlpost.parquet.ragged import Place
from rlpost.parquet.source import Source
from rlpost.schema import ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.binding import Binding
    from rlpost.parquet.source import Piece

_TOKENS = 1 << 20  # elements of a piece
Lists = tuple["NDArray[np.int64]", "NDArray[Any]"]


def sniff(path: Path) -> bool:  # noqa: ARG001
    """Never: a Parquet file that needs no conversion looks the same."""
    return False


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows as canonical columns; columns that no role reads keep their names."""
    source = Source([InputFile(path, Path(path.name))])
    binding = bind(source.columns, options, source.name)
    skip = {*CANONICAL, *binding.taken, *options.left_out}
    extras = Extras(
        {one.name: one.type for one in source.schemas[0]
         if one.name not in skip and not pa.types.is_null(one.type)}
    )  # fmt: skip
    sized = next((f for role, f in binding.fields.items() if _is_tokens(role)), source.columns[0])
    rows = 0
    for piece in source.read(source.columns, _TOKENS, sized.partition(".")[0]):
        yield _converted(piece, str(path), options, binding, extras, rows)
        rows += piece.table.num_rows


def _is_tokens(role: str) -> bool:
    column = column_of(role)
    return column in TOKEN_COLUMNS or (role in ROLES and kind_of(role) == "tokens")


def _converted(
    piece: Piece, path: str, options: ReadOptions, binding: Binding, extras: Extras, first: int
) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    lists: dict[str, Lists] = {}
    for role, field in binding.fields.items():
        place = Place(path, piece.first_row, field)
        array = _nested(piece.table, field, place)
        if _is_tokens(role):
            check = ragged.mask if role in ("mask", "response_mask") else ragged.ragged
            lists[column_of(role)] = check(array, place)
        else:
            column, value = _scalar(role, array, place)
            columns[column] = value
    if options.group_size is not None:
        rows = np.arange(first, first + piece.table.num_rows) // options.group_size
        columns["prompt_id"] = pa.array(rows).cast(pa.string())
    columns |= _written(_laid_out(lists, options.layout, path, piece.first_row), path, piece)
    for field, column in extras.columns.items():
        columns[column] = piece.table.column(field)
    return pa.record_batch(columns)


def _nested(table: pa.RecordBatch, path: str, place: Place) -> pa.Array:
    """A column, or the field inside structs that a dotted path leads to."""
    if path in table.schema.names:
        return table.column(path)
    outer, *inner = path.split(".")
    array = table.column(outer)
    for name in inner:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise place.error(
                0, f"leads to no field {name!r} of {array.type}", "a struct is needed"
            )
        array = pc.struct_field(array, name)  # null where the struct is
    return array


def _scalar(role: str, array: pa.Array, place: Place) -> tuple[str, pa.Array]:
    """The column that serves a role, and its values, one a row."""
    column = column_of(role)
    kind = kind_of(role) if role in ROLES else None
    if kind == "number":
        values = pa.array(ragged.numbers(array, place))
        return column, pc.if_else(array.is_null(), pa.scalar(None, pa.float64()), values)
    if kind == "flag":
        return _flag(array, place)
    if kind == "key":
        keys = ragged.key(array, place)
        if column == "step" and not pa.types.is_integer(keys.type):
            return TEXT_BATCH, keys.cast(pa.string())
        return column, keys.cast(CANONICAL.get(column, pa.string()))
    return column, _own(array, CANONICAL[column], place)


def _flag(array: pa.Array, place: Place) -> tuple[str, pa.Array]:
    """`truncated` of bools (or 0 and 1), or `finish_reason` of texts."""
    if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type):
        return "truncated", array.cast(pa.bool_())
    ragged.truncated(array, place)  # a DataError unless these are texts
    return "finish_reason", array.cast(pa.string())


def _own(array: pa.Array, kind: pa.DataType, place: Place) -> pa.Array:
    """A column in its canonical type; a chat's messages become JSON text."""
    if kind == pa.string() and pa.types.is_nested(array.type):
        values = (None if x is None else json.dumps(x, ensure_ascii=False, default=str)
                  for x in array.to_pylist())  # fmt: skip
        return pa.array(values, kind)
    try:
        return array.cast(kind)
    except pa.ArrowException:
        raise place.error(0, f"is {array.type}", f"{kind} is needed") from None


def _laid_out(
    lists: dict[str, Lists], layout: str | None, path: str, first: int
) -> dict[str, Lists]:
    """Lists brought from a layout to one entry per response token, row by row."""
    if layout is None or not lists:
        return lists
    rows = len(lists["response_mask"][0]) - 1
    cut: dict[str, list[NDArray[Any]]] = {name: [] for name in lists}
    for row in range(rows):
        entries = {name: values[offsets[row] : offsets[row + 1]]
                   for name, (offsets, values) in lists.items()}  # fmt: skip
        mask = entries.pop("response_mask").astype(np.uint8)
        laid = response_lists(layout, f"{path}, row {first + row}", mask, entries)
        for name, values in laid.items():
            cut[name].append(values)
    return {name: _joined(parts) for name, parts in cut.items()}


def _joined(parts: list[NDArray[Any]]) -> Lists:
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    return offsets, np.concatenate(parts) if parts else np.zeros(0)


def _written(lists: dict[str, Lists], path: str, piece: Piece) -> dict[str, pa.Array]:
    """The lists as columns.

    Raises:
        DataError: a row's lists differ in length.
    """
    columns: dict[str, pa.Array] = {}
    first: tuple[str, NDArray[np.int64]] | None = None
    for name, (offsets, values) in lists.items():
        first = first or (name, offsets)
        wrong = np.flatnonzero(np.diff(offsets) != np.diff(first[1]))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{path}, row {piece.first_row + row}: {name} has {np.diff(offsets)[row]} entries "
                f"and {first[0]} {np.diff(first[1])[row]}; a response needs one entry per token in "
                "each (--layout says how lists lie in a row)"
            )
        kind = CANONICAL.get(name, pa.list_(pa.float32()))
        elements = pa.array(values.astype(kind.value_type.to_pandas_dtype()))
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), elements, kind)
    return columns


FORMAT = Format(
    name="parquet",
    title="any Parquet of one row a response, with --map ROLE=COLUMN",
    suffixes=(".parquet",),
    gives=tuple(ROLES),
    lacks={},
    sniff=sniff,
    read=read,
    source="any; columns are found by role name, by alias, or as mapped",
    takes=("map", "layout", "group_size"),
    note="A column a.b is the field b of a struct a. A list is summed where a role is one number. "
    "Columns without a role are kept.",
)
