"""Any JSONL or Parquet file: its fields are found by name, by alias or by `--map`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError, UsageError
from rlpost.formats.base import CANONICAL, TOKEN_COLUMNS, Format
from rlpost.formats.fields import column_of, key_of, role_value, whole
from rlpost.formats.keys import SAME_TEXT, Blocks, text_key
from rlpost.formats.layout import (
    check_prompt,
    layout_named,
    mask_of,
    numbers,
    response_lists,
    response_start,
    written,
)
from rlpost.formats.records import Record, first_fields, listing, records
from rlpost.formats.rows import Extras, Row, batches, check_finite, extras_of
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import Source
from rlpost.recipe.roles import ROLES, closest, kind_of, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.layout import Ragged
    from rlpost.io.parquet.source import RowChunk


# What `rlpost advantages` writes has no canonical column to read it from: such fields are kept.
_WRITTEN = {"advantages", "is_weight", "sample_mask", "sample_weight"}


_NONE = "no field has a name that is known for it"


UNNAMED = {
    "group": f"{_NONE}, and there is no prompt whose text would tell; --group-size N makes blocks",
    **dict.fromkeys(("reward", "log_probs", "old_log_probs"), _NONE),
}
"""Why a user's own file lacks what other commands need."""


_NEEDED = {"prompt_id", "reward", "response_mask"}


_ALWAYS = ("group", "reward", "batch")


_KINDS = {"key": pa.string(), "number": pa.float64(), "tokens": pa.list_(pa.float32())}


TEXT_BATCH = "batch"
"""The column of batches that are no whole numbers; `step` is one of int64."""


_CHUNK_TOKENS = 1 << 20  # elements of a piece


@dataclass(frozen=True)
class Binding:
    """Role (or canonical column) -> the field or dotted path that it is read from."""

    fields: Mapping[str, str]

    @property
    def by_prompt(self) -> bool:
        """Whether groups are told by the prompts' texts, since no field names them."""
        named = any(column_of(role) == "prompt_id" for role in self.fields)
        return not named and "prompt" in self.fields

    def sources(self, options: ReadOptions) -> dict[str, str]:
        """Column -> the field that it is read from, or how its values are found."""
        found = {column_of(role): field for role, field in self.fields.items()}
        if options.group_size is not None:
            found["prompt_id"] = f"blocks of {options.group_size} records"
        elif self.by_prompt and "prompt_id" not in options.left_out:
            found["prompt_id"] = f"{self.fields['prompt']} ({SAME_TEXT})"
        return found

    @property
    def taken(self) -> frozenset[str]:
        """The fields that are read whole; they are no extras."""
        return frozenset(self.fields.values())


def bind(names: Collection[str], options: ReadOptions, where: str) -> Binding:
    """Find a field for every role and canonical column there is one for.

    Args:
        names: the fields of the file, top level.
        options: `map` beats names and aliases; a path with dots leads into objects.
        where: the file, for errors.

    Raises:
        UsageError: the map names an unknown role or column, there is no such layout, or one is
            given without a mask.
        DataError: the map names a field that is not there, or no field has a known name.
    """
    chosen = {role: path for role, path in options.map.items() if path != "none"}
    for role, path in chosen.items():
        column_of(role)
        if path not in names and path.partition(".")[0] not in names:
            raise DataError(
                f"{where}: --map {role}={path}: no field {path!r}{closest(path, names)}; "
                f"there are {listing(sorted(names))}"
            )
    found = _found(names, chosen, options, where)
    if options.layout is not None and "mask" not in found:
        raise UsageError(
            f"--layout {layout_named(options.layout)} needs a mask to go by: --map mask=FIELD"
        )
    if not found:
        raise DataError(
            f"{where}: no field has a name that rlpost knows; say which is which with "
            f"--map reward=FIELD, --map group=FIELD and so on; there are {listing(sorted(names))}"
        )
    return Binding(found)


def _found(
    names: Collection[str], chosen: Mapping[str, str], options: ReadOptions, where: str
) -> dict[str, str]:
    roles = resolve(names, {}, where).columns
    served = {column_of(role) for role in chosen}
    found = {
        role: name
        for role, name in roles.items()
        if role not in _WRITTEN and role not in options.map and column_of(role) not in served
    }
    found |= chosen
    taken = {column_of(role) for role in found} | {*found.values()} | served
    taken |= options.left_out
    own = [name for name in CANONICAL if name in names and name not in taken]
    if "truncated" in roles.keys() | chosen.keys():
        own = [name for name in own if name not in ROLES["truncated"].aliases]
    return found | {name: name for name in own}


def sniff_jsonl(path: Path) -> bool:
    """Whether the first record has rlpost's own names."""
    fields = first_fields(path)
    return fields.keys() >= _NEEDED and isinstance(fields["response_mask"], list)


def read_jsonl(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records as canonical columns; fields that no role reads keep their names."""
    every = extras_of((record.fields for record in records(path)), ())
    binding = bind([*every.types], options, str(path))
    options.told.sources |= binding.sources(options)
    skip = {*CANONICAL, *binding.taken, *options.left_out}
    extras = Extras({name: kind for name, kind in every.types.items() if name not in skip})
    text_batch = _is_text(path, binding, every)
    types = _jsonl_types(binding) | {TEXT_BATCH: pa.string()} | extras.column_types
    rows = _jsonl_rows(path, options, binding, extras, text_batch=text_batch)
    return extras.kept_in(batches(rows, options, types))


def _jsonl_types(binding: Binding) -> dict[str, pa.DataType]:
    """The types of role columns that are not canonical."""
    return {
        column_of(role): _KINDS[kind_of(role)]
        for role in binding.fields
        if role in ROLES and column_of(role) not in CANONICAL
    }


def _is_text(path: Path, binding: Binding, every: Extras) -> bool:
    """Whether the batches are names: the values of a nested field are looked at one by one."""
    field = binding.fields.get("batch")
    if field is None or field in every.types:
        return field is not None and every.types[field] == pa.string() and not _whole(path, field)
    return not _whole(path, field)


def _whole(path: Path, field: str) -> bool:
    return all(_is_whole(key_of(record, field)) for record in records(path))


def _is_whole(text: str | None) -> bool:
    return text is not None and text.strip().removeprefix("-").isdecimal()


def _jsonl_rows(
    path: Path, options: ReadOptions, binding: Binding, extras: Extras, *, text_batch: bool
) -> Iterator[Row]:
    nested = [path for path in binding.fields.values() if path not in extras.types]
    blocks = Blocks(options, str(path))
    for record in records(path):
        values: dict[str, Any] = {}
        for role, field in binding.fields.items():
            if role == "batch" and text_batch:
                values[TEXT_BATCH] = key_of(record, field)
            elif role in options.map or role in _ALWAYS or field in record:
                column, value = role_value(role, record, field)
                values[column] = value
        if options.group_size is not None:
            values["prompt_id"] = blocks.next()
        elif binding.by_prompt and values.get("prompt") is not None:
            values["prompt_id"] = text_key(str(values["prompt"]))
        values |= extras.values(_pruned(record.fields, nested))
        yield Row(record.where, _laid_out(record, values, options))
    blocks.close()


def _laid_out(record: Record, values: dict[str, Any], options: ReadOptions) -> dict[str, Any]:
    """The values with token lists brought from the layout to one entry per response token."""
    if values.get("response_mask") is None and options.layout is None:
        return values
    mask = mask_of(record.where, "response_mask", values.get("response_mask"))
    if options.layout is None:
        _check_response(record.where, values, mask, options)
        return values
    lists = {
        name: numbers(record.where, name, values[name])
        for name in TOKEN_COLUMNS
        if name != "response_mask" and values.get(name) is not None
    }
    said = values.get("response_length") if "response_length" not in options.left_out else None
    cut = response_lists(options.layout, record.where, mask, lists, response=whole(said))
    options.told.laid_out({"": mask, **lists}, cut)
    if said is not None and not len(cut["response_mask"]):
        values["response_length"] = 0  # no mask 1 says where the response is: none of it is kept
    return values | cut


def _check_response(
    where: str, values: dict[str, Any], mask: NDArray[np.uint8], options: ReadOptions
) -> None:
    """What a mask tells of lists that hold a response alone; their lengths are checked later."""
    begin = response_start(mask)
    if not 0 < begin < len(mask) or values.get("response_length") == len(mask):
        return
    prompt, ids = whole(values.get("prompt_length")), values.get("prompt_token_ids")
    check_prompt(where, begin, len(ids) if prompt is None and isinstance(ids, list) else prompt)
    options.told.begin_with_0 += 1


def _pruned(fields: Mapping[str, Any], paths: Collection[str]) -> Mapping[str, Any]:
    """The fields without the nested ones that a dotted path leads to: they have columns."""
    for path in paths:
        outer, dot, inner = path.partition(".")
        if path not in fields and dot and isinstance(fields.get(outer), dict):
            fields = {**fields, outer: _pruned_inner(fields[outer], inner)}
    return fields


def _pruned_inner(fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    if path in fields:
        return {name: value for name, value in fields.items() if name != path}
    return _pruned(fields, [path])


def sniff_parquet(path: Path) -> bool:  # noqa: ARG001
    """Never: a Parquet file that needs no conversion looks the same."""
    return False


def read_parquet(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
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
    for piece in source.read(source.columns, _CHUNK_TOKENS, sized.partition(".")[0]):
        batch = _convert_chunk(piece, str(path), options, binding, extras, blocks)
        if options.nonfinite == "error":
            check_finite(batch, partial(_row_name, path, piece.first_row))
        yield batch
    blocks.close()


def _row_name(path: Path, first: int, row: int) -> str:
    return f"{path}, row {first + row}"


def _is_tokens(role: str) -> bool:
    column = column_of(role)
    return column in TOKEN_COLUMNS or (role in ROLES and kind_of(role) == "tokens")


def _convert_chunk(
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


JSONL = Format(
    name="jsonl",
    title="any JSONL or JSON array of one object a response, with --map ROLE=FIELD",
    suffixes=(".jsonl", ".ndjson", ".json"),
    gives=tuple(ROLES),
    lacks=UNNAMED,
    sniff=sniff_jsonl,
    read=read_jsonl,
    source="any; fields are found by role name, by alias (`rlpost convert --list`), or as mapped",
    takes=("map", "layout", "group_size"),
    note="--map ROLE=FIELD names a role's field; a.b is b inside a. A list is "
    "summed where a role is one number. Fields without a role are kept.",
)


PARQUET = Format(
    name="parquet",
    title="any Parquet of one row a response, with --map ROLE=COLUMN",
    suffixes=(".parquet",),
    gives=tuple(ROLES),
    lacks=UNNAMED,
    sniff=sniff_parquet,
    read=read_parquet,
    source="any; columns are found by role name, by alias, or as mapped",
    takes=("map", "layout", "group_size"),
    note="--map ROLE=COLUMN names a role's column; a.b is b of a struct a. A list is "
    "summed where a role is one number. Columns without a role are kept.",
)
