"""What layouts read alike: texts of chats, columns in a line, rewards of functions, the map."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError, UsageError, no_such
from rlpost.formats.base import CANONICAL
from rlpost.formats.keys import GROUP_OF_TEXT
from rlpost.formats.records import Field, Record, as_float, rounded_sum
from rlpost.io.input_paths import step_key_of
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


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


def read_text(record: Record, name: str) -> str:
    """Return a field that is text, or a chat's messages.

    One message is its content; several, and content that is no text, become JSON.
    """
    value = record.get(name)
    if not isinstance(value, list):
        return record.text(name)
    messages = [
        {key: part for key, part in message.items() if part is not None}  # a struct has every key
        if isinstance(message, dict)
        else message
        for message in value
    ]
    if len(messages) == 1 and isinstance(messages[0], dict):
        content = messages[0].get("content")
        if isinstance(content, str):
            return content
    return json.dumps(messages, ensure_ascii=False)


def messages(path: str) -> Field:
    """Return a field that is text, or a chat's messages."""
    return Field(path, lambda record: read_text(record, path))


def one_of(path: str, values: Collection[object]) -> Field:
    """Return whether a field has one of some values."""
    return Field(path, lambda record: record.find(path) in values)


FILE_STEP = Field("the step of the file name", lambda record: step_key_of(record.file))
SAME_TEXT = Field(f"prompt ({GROUP_OF_TEXT})", lambda _: None)
"""The group of a layout without a group key: rows with the same prompt."""


def same_tokens(ids: str) -> Field:
    """Return the group of a layout of token lists: the ids before the response."""
    return Field(f"{ids} (the same prompt tokens)", lambda _: None)


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
