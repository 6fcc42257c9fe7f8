"""What layouts read alike: texts of chats, steps of file names, rewards of functions, keys."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import UsageError, no_such
from rlpost.formats.base import CANONICAL
from rlpost.formats.records import Field, Record, as_float, rounded_sum
from rlpost.io.input_paths import step_key_of
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray


GROUP_OF_TEXT = "the same text"
"""How sources describe groups of a dump without a group key: rows with the same prompt."""


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


def content_key(value: object) -> str:
    """Return a key of a text, or of any other JSON value, such as messages: 16 hex digits.

    For dumps without a group key. Prompts of the same text in one step are one group.
    """
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return _key(text.encode(errors="surrogatepass"))


def prompt_key(tokens: NDArray[Any]) -> str:
    """Return a key of a prompt's tokens [P]: 16 hex digits, equal for equal prompts."""
    with np.errstate(invalid="ignore"):  # NaN is rejected later, in the column
        return _key(np.ascontiguousarray(tokens, np.int64).tobytes())


def _key(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def read_text(record: Record, name: str) -> str | None:
    """Return a field that is text, or a chat's messages; None for null.

    One message is its content; several, and content that is no text, become JSON.
    """
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, list):
        return str(value) if isinstance(value, (int, float)) else record.typed(name, str)
    if len(value) == 1 and isinstance(value[0], dict) and isinstance(value[0].get("content"), str):
        return str(value[0]["content"])
    messages = [
        {key: part for key, part in message.items() if part is not None}  # a struct has every key
        if isinstance(message, dict)
        else message
        for message in value
    ]
    return json.dumps(messages, ensure_ascii=False)


def joined_text(content: Any) -> str:
    """Return the content of a message as text; parts that are no text are left out."""
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


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
    length = len(line.typed(first, list))
    for name in line.fields:
        if len(line.typed(name, list)) != length:
            needed = f"a list of {length} entries, one per response, as `{first}` has,"
            raise line.error(name, line.fields[name], needed)
    for i in range(length):
        yield line.part(f"response {i}", {name: x[i] for name, x in line.fields.items()})


def sum_rewards(record: Record, names: Collection[str]) -> float | None:
    """Return the sum of the values of reward functions, without null and NaN; None if all are.

    That is the trainer's reward if all weights are 1.

    Raises:
        DataError: a value is not a number.
    """
    parts = [as_float(record.typed(name, float)) for name in names
             if record.get(name) is not None]  # fmt: skip
    known = [part for part in parts if not math.isnan(part)]
    return rounded_sum(known) if known else None
