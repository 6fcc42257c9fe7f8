"""Any JSONL or Parquet file: fields become roles by name, by alias or by `--map`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rlpost.errors import DataError, UsageError, closest
from rlpost.formats.base import CANONICAL, LENGTH, TOKEN_COLUMNS, Format
from rlpost.formats.containers import EVERYTHING, FOLDER, JSON, ZIP, container_of
from rlpost.formats.containers import PARQUET as PARQUET_FILES
from rlpost.formats.exported import is_exported, jsonl_batches, schema_of
from rlpost.formats.fields import as_count, column_of, read_key, read_role
from rlpost.formats.keys import SAME_TEXT, GroupBlocks, text_key
from rlpost.formats.layout import (
    as_mask,
    as_vector,
    check_layout,
    check_prompt,
    list_columns,
    response_lists,
    response_start,
)
from rlpost.formats.records import Record, Row, first_names
from rlpost.formats.rows import (
    EarlierRows,
    OtherFields,
    check_finite,
    infer_other_fields,
    record_batches,
)
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation
from rlpost.io.finish_reasons import plain_reasons, truncations
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import CHUNK_TOKENS, Source
from rlpost.recipe.roles import ROLES, TOKEN_IDS, kind_of, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.layout import Ragged
    from rlpost.formats.rows import BatchReader
    from rlpost.io.parquet.source import RowChunk


# `rlpost advantages` writes these columns; no canonical column exists for them, so they stay.
_WRITTEN = {"advantages", "is_weight", "sample_mask", "sample_weight"}


_NO_FIELD = "no field has a known name for it; name one with --map {}=FIELD"


_MISSING_ROLES = {
    "group": f"{_NO_FIELD.format('group')}, or set --group-size N for blocks of N records",
    **{role: _NO_FIELD.format(role) for role in ("reward", "log_probs", "old_log_probs")},
}
"""Role -> why a converted file lacks it, for the roles that other commands need."""


_NEEDED = {"prompt_id", "reward"}


_ALWAYS = ("group", "reward", "batch")


_KINDS = {"key": pa.string(), "number": pa.float64(), "tokens": pa.list_(pa.float32())}


TEXT_BATCH = "batch"
"""The column of batches that are not integers; `step` is int64."""


@dataclass(frozen=True)
class Binding:
    """Role (or canonical column) -> the field, or dotted path, that it is read from."""

    fields: Mapping[str, str]

    @property
    def groups_by_prompt(self) -> bool:
        """Whether equal prompt texts form a group, because no field is a group key."""
        named = any(column_of(role) == "prompt_id" for role in self.fields)
        return not named and "prompt" in self.fields

    def sources(self, options: ReadOptions) -> dict[str, str]:
        """Return column -> the field that it is read from, or how its values are found."""
        sources = {column_of(role): field for role, field in self.fields.items()}
        if options.group_size is not None:
            sources["prompt_id"] = f"blocks of {options.group_size} records"
        elif self.groups_by_prompt and "prompt_id" not in options.omitted_columns:
            sources["prompt_id"] = f"{self.fields['prompt']} ({SAME_TEXT})"
        return sources

    @property
    def bound_fields(self) -> frozenset[str]:
        """The fields and paths that have a role; they are not kept under their own names."""
        return frozenset(self.fields.values())


def bind(names: Collection[str], options: ReadOptions, where: str) -> Binding:
    """Match the fields of a file with roles and canonical columns.

    Args:
        names: the top-level fields of the file.
        options: `map` has precedence over names and aliases; a dotted path names a nested field.
        where: the file, for errors.

    Raises:
        UsageError: the map names an unknown role or column, the layout is unknown, or a layout is
            set without a mask.
        DataError: the map names a missing field, or no field has a known name.
    """
    mapped = {role: path for role, path in options.map.items() if path != "none"}
    for role, path in mapped.items():
        column_of(role)
        known = options.rows is not None and "." in path  # of what contains the rows
        if path not in names and path.partition(".")[0] not in names and not known:
            raise DataError(
                f"{where}: --map {role}={path}: no field {path!r}; fields: "
                f"{first_names(sorted(names))}",
                candidates=closest(path, names),
            )
    fields = _match_fields(names, mapped, options, where)
    if options.layout is not None and "mask" not in fields:
        raise UsageError(
            f"--layout {check_layout(options.layout)} needs a mask: name one with --map mask=FIELD"
        )
    if not fields:
        raise DataError(
            f"{where}: no field has a known name; name them with --map reward=FIELD, --map "
            f"group=FIELD and so on; fields: {first_names(sorted(names))}"
        )
    return Binding(fields)


def _match_fields(
    names: Collection[str], mapped: Mapping[str, str], options: ReadOptions, where: str
) -> dict[str, str]:
    roles = resolve(names, {}, where).columns
    if any(_is_tokens(role) for role in roles.keys() | mapped.keys()):
        roles.pop(LENGTH, None)  # tokens set it; under its own name it is checked
    mapped_columns = {column_of(role) for role in mapped}
    fields = {
        role: name
        for role, name in roles.items()
        if role not in _WRITTEN
        and role not in options.map
        and column_of(role) not in mapped_columns
    }
    fields |= mapped
    used = {column_of(role) for role in fields} | {*fields.values()} | mapped_columns
    used |= options.omitted_columns
    columns = [name for name in CANONICAL if name in names and name not in used]
    if "truncated" in roles.keys() | mapped.keys():
        columns = [name for name in columns if name not in ROLES["truncated"].aliases]
    return fields | {name: name for name in columns}


def sniff_jsonl(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has rlpost's own column names."""
    return fields.keys() >= _NEEDED and ("response_mask" not in fields or has_mask(fields))


def has_mask(fields: Mapping[str, Any]) -> bool:
    """Return whether the first record has a mask under rlpost's own name."""
    return isinstance(fields.get("response_mask"), list)


def _records(path: Path, options: ReadOptions) -> Iterator[Record]:
    container = container_of(path)
    assert container is not None
    for record in container.records(path, EVERYTHING):
        yield from (record,) if options.rows is None else record.rows(options.rows)


def bind_jsonl(
    path: Path, options: ReadOptions, all_fields: Callable[[], OtherFields]
) -> BatchReader:
    """Return a reader of records as canonical columns; fields without a role keep their names.

    A file that `rlpost export` wrote has the columns that were exported, in their types.
    """
    schema = schema_of(path) if is_exported(path, options) else None
    if schema is not None:
        return partial(_exported_batches, path, schema)
    fields = all_fields()
    binding = bind([*fields.types], options, str(path))
    options.stats.sources |= binding.sources(options)
    skip = {*CANONICAL, *binding.bound_fields, *options.omitted_columns}
    others = OtherFields({name: kind for name, kind in fields.types.items() if name not in skip})
    text_batch = _batches_are_text(path, options, binding, fields)
    return partial(_jsonl_batches, path, binding, others, text_batch)


def _exported_batches(
    path: Path,
    schema: pa.Schema,
    records: Iterator[Record],
    options: ReadOptions,
    earlier: EarlierRows,  # noqa: ARG001 - the schema has the columns of every row
) -> Iterator[pa.RecordBatch]:
    return jsonl_batches(path, records, schema, options)


def _jsonl_batches(
    path: Path,
    binding: Binding,
    others: OtherFields,
    text_batch: bool,  # noqa: FBT001 - of a partial
    records: Iterator[Record],
    options: ReadOptions,
    earlier: EarlierRows,
) -> Iterator[pa.RecordBatch]:
    types = _jsonl_types(binding) | {TEXT_BATCH: pa.string()} | others.column_types
    rows = _jsonl_rows(records, path, options, binding, others, text_batch=text_batch)
    return others.add_missing_columns(record_batches(rows, options, types, earlier))


def _jsonl_types(binding: Binding) -> dict[str, pa.DataType]:
    """Return the types of role columns that are not canonical."""
    return {
        column_of(role): _KINDS[kind_of(role)]
        for role in binding.fields
        if role in ROLES and column_of(role) not in CANONICAL
    }


def _batches_are_text(
    path: Path, options: ReadOptions, binding: Binding, fields: OtherFields
) -> bool:
    """Return whether any batch is not an integer; a nested field is read to find out."""
    field = binding.fields.get("batch")
    if field is None or fields.types.get(field, pa.string()) != pa.string():
        return False
    keys = (read_key(record, field) for record in _records(path, options))
    return not all(key.strip().removeprefix("-").isdecimal() for key in keys)


def _jsonl_rows(
    records: Iterator[Record],
    path: Path,
    options: ReadOptions,
    binding: Binding,
    others: OtherFields,
    *,
    text_batch: bool,
) -> Iterator[Row]:
    nested = [x for x in binding.fields.values() if "." in x and x not in others.types]
    by_prompt = binding.groups_by_prompt
    blocks = GroupBlocks(options, str(path))
    for record in records:
        values: dict[str, Any] = {}
        for role, field in binding.fields.items():
            if role == "batch" and text_batch:
                values[TEXT_BATCH] = read_key(record, field)
            elif role in options.map or role in _ALWAYS or field in record.columns:
                column, value = read_role(role, record, field)
                values[column] = value
        if options.group_size is not None:
            values["prompt_id"] = blocks.next()
        elif by_prompt and values.get("prompt") is not None:
            values["prompt_id"] = text_key(str(values["prompt"]))
        values |= others.values(_without_paths(record.columns, nested))
        yield Row(record.position, _apply_layout(record, values, options))
    blocks.close()


def _apply_layout(record: Record, values: dict[str, Any], options: ReadOptions) -> dict[str, Any]:
    """Return the values, with token lists converted to one entry per response token."""
    if values.get("response_mask") is None and options.layout is None:
        return values
    mask = as_mask(record.where, "response_mask", values.get("response_mask"))
    if options.layout is None:
        _check_response(record.where, values, mask, options)
        return values | {"response_mask": mask}
    lists = {
        name: as_vector(record.where, name, values[name])
        for name in TOKEN_COLUMNS
        if name != "response_mask" and values.get(name) is not None
    }
    omitted = "response_length" in options.omitted_columns
    length = None if omitted else values.get("response_length")
    response = response_lists(options.layout, record.where, mask, lists, response=as_count(length))
    options.stats.count_layout({"": mask, **lists}, response)
    if length is not None and not len(response["response_mask"]):
        values["response_length"] = 0  # without mask 1 the response is unknown and becomes empty
    return values | response


def _check_response(
    where: str, values: dict[str, Any], mask: NDArray[np.uint8], options: ReadOptions
) -> None:
    """Check that the lists do not begin with the prompt; count masks that begin with 0."""
    begin = response_start(mask)
    if not 0 < begin < len(mask) or values.get("response_length") == len(mask):
        return
    prompt, ids = as_count(values.get("prompt_length")), values.get("prompt_token_ids")
    check_prompt(where, begin, len(ids) if prompt is None and isinstance(ids, list) else prompt)
    options.stats.begins_with_0 += 1


def _without_paths(fields: Mapping[str, Any], paths: Collection[str]) -> Mapping[str, Any]:
    """Return the fields without the nested ones of dotted paths, which have columns."""
    for path in paths:
        outer, dot, inner = path.partition(".")
        if path not in fields and dot and isinstance(fields.get(outer), dict):
            fields = {**fields, outer: _without_inner(fields[outer], inner)}
    return fields


def _without_inner(fields: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    if path in fields:
        return {name: value for name, value in fields.items() if name != path}
    return _without_paths(fields, [path])


def read_parquet(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows as canonical columns; columns without a role keep their names."""
    if options.rows is not None:
        fields = infer_other_fields((one.columns for one in _records(path, options)), ())
        reader = bind_jsonl(path, options, lambda: fields)
        yield from reader(_records(path, options), options, EarlierRows())
        return
    source = Source([InputFile(path, Path(path.name))])
    binding = bind(source.columns, options, source.name)
    options.stats.sources |= binding.sources(options)
    skip = {*CANONICAL, *binding.bound_fields, *options.omitted_columns}
    others = OtherFields.of_schema(source.schemas[0], skip)
    sized_by = next(
        (f for role, f in binding.fields.items() if _is_tokens(role)), source.columns[0]
    )
    blocks = GroupBlocks(options, str(path))
    for chunk in source.read(source.columns, CHUNK_TOKENS, sized_by.partition(".")[0]):
        batch = _convert_chunk(chunk, str(path), options, binding, others, blocks)
        if options.nonfinite == "error":
            check_finite(batch, partial(_row_name, path, chunk.first_row))
        yield batch
    blocks.close()


def _row_name(path: Path, first: int, row: int) -> str:
    return f"{path}, row {first + row}"


def _is_tokens(role: str) -> bool:
    column = column_of(role)
    return column in TOKEN_COLUMNS or (role in ROLES and kind_of(role) == "tokens")


def _convert_chunk(
    chunk: RowChunk,
    path: str,
    options: ReadOptions,
    binding: Binding,
    others: OtherFields,
    blocks: GroupBlocks,
) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {}
    lists: dict[str, Ragged] = {}
    for role, field in binding.fields.items():
        location = CellLocation(path, chunk.first_row, field)
        array = _nested_column(chunk.table, field, location)
        if _is_tokens(role):
            check = ragged.mask if role in ("mask", "response_mask") else ragged.list_values
            lists[column_of(role)] = check(array, location)
        else:
            column, values = _role_values(role, array, location)
            columns[column] = values
    if options.group_size is not None:
        columns["prompt_id"] = pa.array([blocks.next() for _ in range(chunk.table.num_rows)])
    elif binding.groups_by_prompt and "prompt_id" not in options.omitted_columns:
        columns["prompt_id"] = _text_keys(columns["prompt"])
    columns |= list_columns(lists, columns, options, CellLocation(path, chunk.first_row, ""))
    for field, column in others.columns.items():
        columns[column] = chunk.table.column(field)
    return pa.record_batch(columns)


def _text_keys(prompts: pa.Array) -> pa.Array:
    """Return the keys of prompt texts; each distinct text is hashed once."""
    texts = prompts.dictionary_encode()
    keys = pa.array([text_key(text) for text in texts.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(texts.indices, keys).cast(pa.string())


def _nested_column(table: pa.RecordBatch, path: str, location: CellLocation) -> pa.Array:
    """Return a column, or the field of a struct that a dotted path names."""
    if path in table.schema.names:
        return table.column(path)
    outer, *inner = path.split(".")
    array = table.column(outer)
    for name in inner:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise location.error(
                0, f"has no field {name!r} in {array.type}", "a struct with it is needed"
            )
        array = pc.struct_field(array, name)  # null if the struct is null
    return array


def _role_values(role: str, array: pa.Array, location: CellLocation) -> tuple[str, pa.Array]:
    """Return the column of a role and its values, one per row."""
    column = column_of(role)
    kind = kind_of(role) if role in ROLES and role != LENGTH else None
    if kind == "number":
        values = pa.array(ragged.numbers(array, location))
        return column, pc.if_else(array.is_null(), pa.scalar(None, pa.float64()), values)
    if kind == "flag":
        return _truncation(array, location)
    if kind == "key":
        keys = ragged.key(array, location)
        if column == "step" and not pa.types.is_integer(keys.type):
            return TEXT_BATCH, keys.cast(pa.string())
        return column, keys.cast(CANONICAL.get(column, pa.string()))
    return column, _cast(array, CANONICAL[column], location)


def _truncation(array: pa.Array, location: CellLocation) -> tuple[str, pa.Array]:
    """Return `truncated` and bools (or 0 and 1), or `finish_reason` and texts."""
    if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type):
        return "truncated", array.cast(pa.bool_())
    truncations(array, location)  # raises DataError unless these are reasons
    return "finish_reason", plain_reasons(array).cast(pa.string())


def _cast(array: pa.Array, kind: pa.DataType, location: CellLocation) -> pa.Array:
    """Return a column in its canonical type; the messages of a chat become JSON text."""
    if kind == pa.string() and pa.types.is_nested(array.type):
        values = (None if x is None else json.dumps(x, ensure_ascii=False, default=str)
                  for x in array.to_pylist())  # fmt: skip
        return pa.array(values, kind)
    try:
        return array.cast(kind)
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except pa.ArrowException:
        raise location.error(0, f"is {array.type}", f"{kind} is needed") from None


_ROLES = tuple(role for role in ROLES if role not in TOKEN_IDS)

JSONL = Format(
    name="jsonl",
    title="any JSONL or JSON array with one object per response, with --map ROLE=FIELD",
    containers=(JSON, ZIP, FOLDER),
    missing_roles=_MISSING_ROLES,
    sniff=sniff_jsonl,
    bind=bind_jsonl,
    by_record=True,
    source="any writer; fields are found by role name, by alias or by --map",
    note="--map ROLE=FIELD sets the field of a role; a.b is field b inside a. A list is summed if "
    "the role is one number. Fields without a role are kept.",
)


PARQUET = Format(
    name="parquet",
    title="any Parquet with one row per response, with --map ROLE=COLUMN",
    containers=(PARQUET_FILES,),
    missing_roles=_MISSING_ROLES,
    sniff=lambda _: False,  # a Parquet file that needs no conversion looks the same
    read=read_parquet,
    source="any writer; columns are found by role name, by alias or by --map",
    note="--map ROLE=COLUMN sets the column of a role; a.b is field b of struct a. A list is "
    "summed if the role is one number. Columns without a role are kept.",
)
