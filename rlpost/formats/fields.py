"""Fields of a record as roles: dotted paths, numbers, keys, flags, the user's map."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, UsageError, no_such
from rlpost.formats.base import CANONICAL, LENGTH
from rlpost.formats.layout import as_vector
from rlpost.formats.records import Record, as_float, rounded_sum
from rlpost.recipe.roles import ON_DEMAND, ROLES, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.formats.records import Row


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


def read_key(record: Record, path: str) -> str:
    """Return a key as text: 3, 3.0 and "3" are the same key."""
    value = record.lookup(path)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, (str, int)):
        raise record.error(path, value, "text or an integer")
    return str(value)


def read_step(record: Record, path: str) -> int:
    """Return a field that is the number of a training step."""
    value = record.lookup(path)
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, bool) or not text.strip().removeprefix("-").isdecimal():
        raise record.error(path, value, "an integer")
    return int(text)


def as_count(value: object) -> int | None:
    """Return a count as an int; None if it is not an integer, which is an error elsewhere."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value)


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


def read_role(role: str, record: Record, path: str) -> tuple[str, Any]:
    """Return the column of a role (or canonical column), and its value in this record.

    Raises:
        UsageError: no such role or column.
        DataError: the record has no such field, or it has the wrong type.
    """
    column = column_of(role)
    if column == "step":
        return column, read_step(record, path)
    kind = kind_of(role)
    if role in ROLES and role != LENGTH and kind not in ON_DEMAND:
        if kind == "flag":
            return read_flag(record, path)
        of_kind = {"key": read_key, "number": read_number, "tokens": Record.lookup}[kind]
        return column, of_kind(record, path)
    value = record.lookup(path)
    if pa.types.is_string(CANONICAL[column]) and isinstance(value, (list, dict)):
        value = json.dumps(value, ensure_ascii=False)  # a chat's messages
    return column, value


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


def apply_map(row: Row, chosen: Mapping[str, str]) -> Row:
    """Add the mapped fields of its record to a row; they replace what the format read."""
    for role, path in chosen.items():
        if role == "truncated":  # in one of two columns
            row.values.pop("truncated", None)
            row.values.pop("finish_reason", None)
        if path != "none":  # `rlpost.formats.rows.record_batches` omits these columns
            column, value = read_role(role, row.record, path)
            row.values[column] = value
    return row


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
