"""Fields of a record as roles: nested ones by dotted path, lists summed, flags, keys as text.

Which field of a user's own file serves which column: by the map, by name, by alias.

Keys that a dump does not write but its tokens or its name tell.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, UsageError
from rlpost.formats.base import CANONICAL
from rlpost.formats.layout import numbers
from rlpost.formats.records import real, total
from rlpost.recipe.roles import ROLES, closest, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.formats.records import Record
    from rlpost.formats.rows import Row


def column_of(role: str) -> str:
    """The canonical column of a role or column name.

    Raises:
        UsageError: it is neither.
    """
    if role in ROLES:
        return ROLES[role].aliases[0]
    if role not in CANONICAL:
        known = {**ROLES, **CANONICAL}
        raise UsageError(f"--map {role}=...: no role or column {role!r}{closest(role, known)}")
    return role


def lookup(record: Record, path: str) -> Any:
    """The field of that name, or the nested one that a dotted path leads to.

    Raises:
        DataError: there is none, or what is on the way to it is no object.
    """
    outer, dot, inner = path.partition(".")
    if path in record or not dot:
        return record.get(path)
    return lookup(record.nested(outer), inner)


def number_of(record: Record, path: str) -> float | None:
    """A field as one number: a list is summed (one per token, one per component), null is None."""
    value = lookup(record, path)
    if isinstance(value, list):
        return total(numbers(record.where, path, value).astype(np.float64).tolist())
    if value is not None and not isinstance(value, (int, float)):
        raise record.wrong(path, value, "a number (or a list of them, to be summed)")
    return None if value is None else real(value)


def key_of(record: Record, path: str) -> str:
    """A field that tells rows apart, as text: 3, 3.0 and "3" are one key."""
    value = lookup(record, path)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, (str, int)):
        raise record.wrong(path, value, "a text or a whole number")
    return str(value)


def step_of(record: Record, path: str) -> int:
    """A field that counts training steps."""
    value = lookup(record, path)
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, bool) or not text.strip().removeprefix("-").isdecimal():
        raise record.wrong(path, value, "a whole number")
    return int(text)


def whole(value: object) -> int | None:
    """A count as an int; None where it is no whole number, which is said elsewhere."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value)


def flag_of(record: Record, path: str) -> tuple[str, str | bool | None]:
    """Whether a response was cut off: (`truncated`, bool), or (`finish_reason`, text)."""
    value = lookup(record, path)
    if isinstance(value, str):
        return "finish_reason", value
    if value is not None and value not in (0, 1):
        raise record.wrong(path, value, "a bool or a finish reason")
    return "truncated", None if value is None else bool(value)


def role_value(role: str, record: Record, path: str) -> tuple[str, Any]:
    """The column that serves a role (or canonical column), and its value in this record.

    Raises:
        UsageError: no such role or column.
        DataError: the record has no such field, or one of the wrong kind.
    """
    column = column_of(role)
    if column == "step":
        return column, step_of(record, path)
    if role in ROLES:
        kind = kind_of(role)
        if kind == "flag":
            return flag_of(record, path)
        of_kind = {"key": key_of, "number": number_of, "tokens": lookup}[kind]
        return column, of_kind(record, path)
    value = lookup(record, path)
    if pa.types.is_string(CANONICAL[role]) and isinstance(value, (list, dict)):
        value = json.dumps(value, ensure_ascii=False)  # a chat's messages
    return column, value


def apply_map(row: Row, record: Record, chosen: Mapping[str, str]) -> Row:
    """Put what the user mapped into a row, over what the format found; `none` takes it out."""
    for role, path in chosen.items():
        if role == "truncated":  # one of two columns serves it
            row.values.pop("truncated", None)
            row.values.pop("finish_reason", None)
        if path != "none":  # else `rlpost.formats.rows.batches` leaves the column out
            column, value = role_value(role, record, path)
            row.values[column] = value
    return row


def summed(where: str, parts: Mapping[str, Any]) -> float | None:
    """The sum of reward functions' values; those that gave none (null or NaN) are left out.

    That is what trainers do whose weights are left at 1. None where no function gave a value.

    Raises:
        DataError: a value is not a number.
    """
    for name, value in parts.items():
        if value is not None and not isinstance(value, (int, float)):
            raise DataError(f"{where}: the reward `{name}` is {value!r:.60}; a number is needed")
    there = [real(x) for x in parts.values() if x is not None and not math.isnan(real(x))]
    return total(there) if there else None


def no_tokens(writer: str, but: Sequence[str] = ()) -> dict[str, str]:
    """Why a dump of texts and scores lacks the roles that have a number per token."""
    roles = ("mask", "log_probs", "old_log_probs", "ref_log_probs", "infer_log_probs", "values")
    why = f"{writer} writes texts and scores, nothing per token"
    return {role: why for role in roles if role not in but}
