"""Anybody's JSONL: one object a response, its fields known by name, by alias or by `--map`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.base import Format
from rlpost.formats.canonical import CANONICAL, TOKEN_COLUMNS
from rlpost.formats.fields import UNNAMED, bind, column_of, key_of, role_value, text_key, whole
from rlpost.formats.layout import (
    Blocks,
    check_prompt,
    mask_of,
    numbers,
    response_lists,
    response_start,
)
from rlpost.formats.records import Record, first_fields, records
from rlpost.formats.rows import Extras, Row, batches, extras_of
from rlpost.recipe.roles import ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.fields import Binding


_NEEDED = {"prompt_id", "reward", "response_mask"}
_ALWAYS = ("group", "reward", "batch")
_KINDS = {"key": pa.string(), "number": pa.float64(), "tokens": pa.list_(pa.float32())}
TEXT_BATCH = "batch"
"""The column of batches that are no whole numbers; `step` is one of int64."""


def sniff(path: Path) -> bool:
    """Whether the first record has rlpost's own names."""
    fields = first_fields(path)
    return fields.keys() >= _NEEDED and isinstance(fields["response_mask"], list)


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records as canonical columns; fields that no role reads keep their names."""
    every = extras_of((record.fields for record in records(path)), ())
    binding = bind([*every.types], options, str(path))
    options.told.sources |= binding.sources(options)
    skip = {*CANONICAL, *binding.taken, *options.left_out}
    extras = Extras({name: kind for name, kind in every.types.items() if name not in skip})
    text_batch = _is_text(path, binding, every)
    types = _types(binding) | {TEXT_BATCH: pa.string()} | extras.column_types
    rows = _rows(path, options, binding, extras, text_batch=text_batch)
    return extras.kept_in(batches(rows, options, types))


def _types(binding: Binding) -> dict[str, pa.DataType]:
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


def _rows(
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


FORMAT = Format(
    name="jsonl",
    title="any JSONL or JSON array of one object a response, with --map ROLE=FIELD",
    suffixes=(".jsonl", ".ndjson", ".json"),
    gives=tuple(ROLES),
    lacks=UNNAMED,
    sniff=sniff,
    read=read,
    source="any; fields are found by role name, by alias (`rlpost convert --list`), or as mapped",
    takes=("map", "layout", "group_size"),
    note="--map ROLE=FIELD names a role's field; a.b is b inside a. A list is "
    "summed where a role is one number. Fields without a role are kept.",
)
