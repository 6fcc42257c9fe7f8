"""Anybody's Parquet: nested columns, other names, other layouts -> canonical columns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.formats.base import Format
from rlpost.formats.canonical import CANONICAL, TOKEN_COLUMNS
from rlpost.formats.fields import UNNAMED, bind, column_of, text_key
from rlpost.formats.generic_jsonl import TEXT_BATCH
from rlpost.formats.layout import Blocks, written
from rlpost.formats.rows import Extras, check_finite
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.fields import Binding
    from rlpost.formats.layout import Ragged
    from rlpost.io.parquet.source import RowChunk


_TOKENS = 1 << 20  # elements of a piece


def sniff(path: Path) -> bool:  # noqa: ARG001
    """Never: a Parquet file that needs no conversion looks the same."""
    return False


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows as canonical columns; columns that no role reads keep their names."""
    source = Source([InputFile(path, Path(path.name))])
    binding = bind(source.columns, options, source.name)
    options.told.sources |= binding.sources(options)
    skip = {*CANONICAL, *binding.taken, *options.left_out}
    extras = Extras(
        {one.name: one.type for one in source.schemas[0]
         if one.name not in skip and not pa.types.is_null(one.type)}
    )  # fmt: skip
    sized = next((f for role, f in binding.fields.items() if _is_tokens(role)), source.columns[0])
    blocks = Blocks(options, str(path))
    for piece in source.read(source.columns, _TOKENS, sized.partition(".")[0]):
        batch = _converted(piece, str(path), options, binding, extras, blocks)
        if options.nonfinite == "error":
            check_finite(batch, partial(_row, path, piece.first_row))
        yield batch
    blocks.close()


def _row(path: Path, first: int, row: int) -> str:
    return f"{path}, row {first + row}"


def _is_tokens(role: str) -> bool:
    column = column_of(role)
    return column in TOKEN_COLUMNS or (role in ROLES and kind_of(role) == "tokens")


def _converted(
    piece: RowChunk,
    path: str,
    options: ReadOptions,
    binding: Binding,
    extras: Extras,
    blocks: Blocks,
) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    lists: dict[str, Ragged] = {}
    for role, field in binding.fields.items():
        place = CellLocation(path, piece.first_row, field)
        array = _nested(piece.table, field, place)
        if _is_tokens(role):
            check = ragged.mask if role in ("mask", "response_mask") else ragged.list_values
            lists[column_of(role)] = check(array, place)
        else:
            column, value = _scalar(role, array, place)
            columns[column] = value
    if options.group_size is not None:
        columns["prompt_id"] = pa.array([blocks.next() for _ in range(piece.table.num_rows)])
    elif binding.by_prompt and "prompt_id" not in options.left_out:
        columns["prompt_id"] = _by_text(columns["prompt"])
    columns |= written(lists, columns, options, CellLocation(path, piece.first_row, ""))
    for field, column in extras.columns.items():
        columns[column] = piece.table.column(field)
    return pa.record_batch(columns)


def _by_text(prompts: pa.Array) -> pa.Array:
    """Groups from the texts of prompts, which a key is made of once each."""
    texts = prompts.dictionary_encode()
    keys = pa.array([text_key(text) for text in texts.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(texts.indices, keys).cast(pa.string())


def _nested(table: pa.RecordBatch, path: str, place: CellLocation) -> pa.Array:
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


def _scalar(role: str, array: pa.Array, place: CellLocation) -> tuple[str, pa.Array]:
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


def _flag(array: pa.Array, place: CellLocation) -> tuple[str, pa.Array]:
    """`truncated` of bools (or 0 and 1), or `finish_reason` of texts."""
    if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type):
        return "truncated", array.cast(pa.bool_())
    ragged.truncated(array, place)  # a DataError unless these are texts
    return "finish_reason", array.cast(pa.string())


def _own(array: pa.Array, kind: pa.DataType, place: CellLocation) -> pa.Array:
    """A column in its canonical type; a chat's messages become JSON text."""
    if kind == pa.string() and pa.types.is_nested(array.type):
        values = (None if x is None else json.dumps(x, ensure_ascii=False, default=str)
                  for x in array.to_pylist())  # fmt: skip
        return pa.array(values, kind)
    try:
        return array.cast(kind)
    except pa.ArrowException:
        raise place.error(0, f"is {array.type}", f"{kind} is needed") from None


FORMAT = Format(
    name="parquet",
    title="any Parquet of one row a response, with --map ROLE=COLUMN",
    suffixes=(".parquet",),
    gives=tuple(ROLES),
    lacks=UNNAMED,
    sniff=sniff,
    read=read,
    source="any; columns are found by role name, by alias, or as mapped",
    takes=("map", "layout", "group_size"),
    note="--map ROLE=COLUMN names a role's column; a.b is b of a struct a. A list is "
    "summed where a role is one number. Columns without a role are kept.",
)
