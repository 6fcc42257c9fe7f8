"""Fields of a record as roles: nested ones by dotted path, lists summed, flags, keys as text.

Which field of a user's own file serves which column: by the map, by name, by alias.

Keys that a dump does not write but its tokens or its name tell.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, UsageError
from rlpost.formats.canonical import CANONICAL
from rlpost.formats.layout import layout_named, numbers
from rlpost.formats.records import listing, real, total
from rlpost.recipe.roles import ROLES, closest, kind_of, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record
    from rlpost.formats.rows import Row


_ID_BYTES = 8
SAME_TEXT = "the same text"
"""How a group is told, in `Format.fields`, where the dump names none."""
SAME_TOKENS = "the same prompt tokens"


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


def text_key(prompt: str) -> str:
    """A short name for a prompt, the same wherever its text is: 16 hex digits of BLAKE2b.

    For dumps that name no group. Two prompts of the same text in one step count as one group.
    """
    return hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=_ID_BYTES).hexdigest()


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


# What `rlpost advantages` writes has no canonical column to read it from: such fields are kept.
_WRITTEN = {"advantages", "is_weight", "sample_mask", "sample_weight"}

_NONE = "no field has a name that is known for it"
UNNAMED = {
    "group": f"{_NONE}, and there is no prompt whose text would tell; --group-size N makes blocks",
    **dict.fromkeys(("reward", "log_probs", "old_log_probs"), _NONE),
}
"""Why a user's own file lacks what other commands need."""


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


def prompt_key(tokens: NDArray[Any]) -> str:
    """A key for a prompt's tokens [P]: equal for equal prompts, 16 hex digits."""
    with np.errstate(invalid="ignore"):  # ids that are no numbers are refused as a column
        ids = np.ascontiguousarray(tokens, np.int64)
    return hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()


def step_key_of(path: Path) -> int | None:
    """The last `step_12`, `step12` or `step=12` of a path, the file's name before its folders."""
    for part in reversed(path.absolute().parts):
        found = re.findall(r"(?:^|[^a-zA-Z])step[_=]?(\d+)", part)
        if found:
            return int(found[-1])
    return None
