"""Fields of a record as roles: dotted paths, numbers, keys, flags, the user's map."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, UsageError, no_such
from rlpost.formats.base import CANONICAL, LENGTH, TOKEN_COLUMNS, Field
from rlpost.formats.keys import SAME_TOKENS, content_key, prompt_key
from rlpost.formats.layout import (
    as_mask,
    as_vector,
    check_length,
    response_lists,
    response_start,
)
from rlpost.formats.records import Record, Row, as_float, rounded_sum
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.formats.base import Format, ReadOptions


def column_of(role: str) -> str:
    """Return the canonical column of a role or column name.

    Raises:
        UsageError: the name is neither.
    """
    if role in ROLES:
        return ROLES[role].aliases[0]
    if role not in CANONICAL:
        known = {**ROLES, **CANONICAL}
        raise UsageError(no_such(f"--map {role}=...: no role or column {role!r}", role, known))
    return role


def read_number(record: Record, path: str) -> float | None:
    """Return a field as one number: a list (of tokens or components) is summed, null is None."""
    value = record.lookup(path)
    if isinstance(value, list):
        return rounded_sum(as_vector(record.where, path, value).astype(np.float64).tolist())
    if value is not None and not isinstance(value, (int, float)):
        raise record.error(path, value, "a number (or a list of numbers, which is summed)")
    return None if value is None else as_float(value)


def read_flag(record: Record, path: str) -> tuple[str, str | bool | None]:
    """Return whether a response was truncated: (`truncated`, bool) or (`finish_reason`, text)."""
    value = record.lookup(path)
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        value = value["type"]  # as SGLang returns it
    if isinstance(value, str):
        return "finish_reason", value
    if value is not None and value not in (0, 1):
        raise record.error(path, value, "a bool or a finish reason")
    return "truncated", None if value is None else bool(value)


def read_text(record: Record, name: str) -> str:
    """Return a field that is text, or a chat's messages.

    One message is its content; several, and content that is no text, become JSON.
    """
    value = record.get(name)
    if not isinstance(value, list):
        return record.text(name)
    messages = [
        {key: part for key, part in one.items() if part is not None}  # a struct has every key
        if isinstance(one, dict)
        else one
        for one in value
    ]
    if len(messages) == 1 and isinstance(messages[0], dict):
        content = messages[0].get("content")
        if isinstance(content, str):
            return content
    return json.dumps(messages, ensure_ascii=False)


def same_tokens(ids: str) -> Field:
    """Return the group of a layout of token lists: the ids before the response."""
    return Field(f"{ids} ({SAME_TOKENS})", lambda _: None)


_KEYS = ("prompt_id", "rollout_id", "sample_id", "domain")
_TEXTS = ("prompt", "response")
_PLAIN = {pa.string(): str, pa.int64(): int, pa.float64(): float}
"""By type of a column, that of a value which is not converted."""


def field_rows(layout: Format, records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    """Yield a row for each record of a layout whose fields are paths.

    Raises:
        DataError: a record lacks a field of a role that all dumps have, or one has another type.
    """
    mapped = {ROLES[role].aliases[0] if role in ROLES else role for role in options.map}
    fields = {column: x for column, x in layout.fields.items() if column not in mapped}
    needed = {ROLES[role].aliases[0] for role in layout.roles if role not in layout.missing_roles}
    if layout.layout == "tail":  # without a mask, all tokens are of the policy
        needed = needed - {"response_mask"} | {LENGTH}
    for record in records:
        values: dict[str, Any] = {}
        for column, source in fields.items():
            if isinstance(source, Field):
                values[column] = source.read(record)
            elif column in needed or record.find(source) is not None:
                name, values[name] = _read_column(column, record, source)
        place = values.pop("place", None)
        values = _response(record, values, layout, layout.layout) if layout.layout else values
        yield Row(record, values, place=place)


def _read_column(column: str, record: Record, path: str) -> tuple[str, Any]:
    """Return a column that a layout names by a path, and its value in this record."""
    value, kind = record.lookup(path), CANONICAL.get(column)
    if value is None or kind is None or pa.types.is_list(kind) or type(value) is _PLAIN.get(kind):
        return column, value
    part = Record(record.where, {path: value}, record.file)
    if column in _KEYS:
        return column, content_key(value) if isinstance(value, (list, dict)) else part.text(path)
    if column in _TEXTS:
        return column, read_text(part, path)
    if column == "truncated":
        return read_flag(part, path)
    if pa.types.is_integer(kind):
        return column, part.integer(path)
    return column, read_number(part, path) if pa.types.is_floating(kind) else part.text(path)


def _response(
    record: Record, values: dict[str, Any], layout: Format, lists_are: str
) -> dict[str, Any]:
    """Return the values of a record with its token lists cut to the response.

    `sequence_length` and `sequence_token_ids` are no columns: the length of a sequence without
    padding, and ids of prompt and response. Ids before the response are those of the prompt.
    """
    where, length = record.where, values.get("response_length", 0)
    names = [*TOKEN_COLUMNS, *(name for name, kind in layout.types.items() if _is_vector(kind))]
    if lists_are == "tail":
        values |= tail_of(record, _path(layout, "sequence_token_ids"), length)
        del values["sequence_token_ids"]
    lists = {name: as_vector(where, _path(layout, name), values[name]) for name in names
             if name != "response_mask" and values.get(name) is not None}  # fmt: skip
    mask = values.get("response_mask")
    if lists_are == "tail":
        lists = {name: array for name, array in lists.items() if len(array) or not length}
        mask = np.ones(length, np.uint8) if mask is None else mask
        cut = {"response_mask": as_mask(where, _path(layout, "response_mask"), mask), **lists}
        for name, array in cut.items():
            check_length(where, _path(layout, name), array, length, "response_length")
    else:
        length = values.pop("sequence_length", None)
        mask = as_mask(where, _path(layout, "response_mask"), mask)
        cut = response_lists(lists_are, where, mask, lists, length)
        if (ids := lists.get("response_token_ids")) is not None:
            end = len(mask) if length is None else length
            values["prompt_token_ids"] = ids[: min(response_start(mask), end)]
    if (prompt := values.get("prompt_token_ids")) is not None:
        values["prompt_length"] = len(prompt)
        if values.get("prompt_id") is None:
            values["prompt_id"] = prompt_key(prompt)
    dropped = dict.fromkeys(names)
    return {**values, **dropped, "response_length": len(cut["response_mask"]), **cut}


def _is_vector(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_floating(kind.value_type))


def _path(layout: Format, column: str) -> str:
    """Return the field of a column, for errors."""
    source = layout.fields.get(column, column)
    return source if isinstance(source, str) else source.text


def tail_of(record: Record, path: str, length: int) -> dict[str, Any]:
    """Split the ids of a sequence into those of the prompt and of the response.

    Raises:
        DataError: there are fewer than the response has.
    """
    ids = as_vector(record.where, path, record.get(path))
    if not 0 <= length <= len(ids):
        raise DataError(
            f"{record.where}: the response length is {length}, but `{path}`, prompt and response "
            f"together, has {len(ids)} entries"
        )
    start = len(ids) - length
    return {"prompt_token_ids": ids[:start], "response_token_ids": ids[start:]}


def transposed(line: Record, first: str) -> Iterator[Record]:
    """Yield the columns of a line, whose fields are lists, as one record per response.

    Raises:
        DataError: a field is not a list, or its length differs from that of the first.
    """
    length = len(line.array(first))
    for name in line.fields:
        if len(line.array(name)) != length:
            raise DataError(
                f"{line.where}: `{name}` has {len(line.array(name))} entries and `{first}` has "
                f"{length}; every field of a line needs one entry per response"
            )
    for i in range(length):
        yield line.part(f"response {i}", {name: x[i] for name, x in line.fields.items()})


def sum_rewards(where: str, parts: Mapping[str, Any]) -> float | None:
    """Return the sum of the values of reward functions, without null and NaN; None if all are.

    That is the trainer's reward if all weights are 1.

    Raises:
        DataError: a value is not a number.
    """
    for name, value in parts.items():
        if value is not None and not isinstance(value, (int, float)):
            raise DataError(f"{where}: the reward `{name}` is {value!r:.60}; a number is needed")
    there = [as_float(x) for x in parts.values() if x is not None and not math.isnan(as_float(x))]
    return rounded_sum(there) if there else None


def no_token_roles(writer: str, but: Sequence[str] = ()) -> dict[str, str]:
    """Return why a dump of texts and scores lacks the roles with a number per token."""
    roles = ("mask", "log_probs", "old_log_probs", "ref_log_probs", "infer_log_probs", "values")
    why = f"{writer} writes texts and scores, no numbers per token"
    reasons = {**dict.fromkeys(roles, why), "response_length": f"{writer} writes no lengths"}
    return {role: reason for role, reason in reasons.items() if role not in but}
