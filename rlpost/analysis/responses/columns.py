"""Columns to display: texts, token ids, advantages, and lenient reading of list columns.

`rlpost.io.arrow` rejects nulls and lists of unequal length, because results depend on them. To
display bad data, these functions accept them: a null list is empty, a null element is NaN.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.io.arrow import fill_nulls, is_list, is_number, is_string
from rlpost.kernels.segments import segment_sum
from rlpost.recipe.numerics import Numerics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.recipe.roles import ColumnMap


# The names in frameworks; the first name among the columns wins.
NAMES: dict[str, tuple[str, ...]] = {
    "prompt": (
        "prompt", "prompt_text", "input", "input_prompt", "question", "query", "problem",
        "instruction", "prompts",
    ),
    "response": (
        "response", "response_text", "completion", "output", "output_response", "generation",
        "generated_text", "responses", "completions",
    ),
    "messages": ("messages", "conversation", "conversations", "chat", "content", "trajectory"),
    "tokens": (
        "response_token_ids", "response_tokens", "response_ids", "completion_ids", "output_tokens",
        "output_ids", "completion_token_ids", "token_ids", "tokens", "input_ids", "sequences",
    ),
    "advantage": ("advantages", "response_advantage", "advantage"),
    "kl": ("kl",),
}  # fmt: skip
OF_RESPONSES = 7
"""The first columns of tokens have none of the prompt."""
_CLAMP = Numerics().log_ratio_clamp.bound
LOG_PROBS = ("old_log_probs", "log_probs", "infer_log_probs")
# Token columns that `rlpost advantages` writes, beside the roles that it reads.
WRITTEN = ("advantages", "returns", "kl", "token_level_rewards", "raw_advantages", "is_weight")


def named(available: Collection[str]) -> dict[str, str]:
    """Return the columns of texts, tokens, advantages and KL, as far as they exist."""
    columns = {}
    for what, names in NAMES.items():
        name = next((name for name in names if name in available), None)
        if name is not None:
            columns[what] = name
    return columns


def log_probs_of(columns: ColumnMap) -> str | None:
    """Return the column of the policy's log-probs: the trainer's, otherwise the engine's."""
    return next((columns.column(role) for role in LOG_PROBS if role in columns), None)


def is_text(kind: pa.DataType) -> bool:
    """Return whether the type is text: strings, messages, or lists of them."""
    if is_list(kind):
        return is_text(kind.value_type)
    return bool(
        is_string(kind)
        or pa.types.is_struct(kind)
        or (pa.types.is_dictionary(kind) and is_text(kind.value_type))
    )


def text_columns(schema: pa.Schema, names: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of prompts, responses and messages that are texts, by these names."""
    return {
        what: names[what]
        for what in ("prompt", "response", "messages")
        if names.get(what) in schema.names and is_text(schema.field(names[what]).type)
    }


def text_of(value: Any) -> str:
    """Return a cell as text; messages are joined, each with its role."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _message(value)
    if isinstance(value, list):
        joint = "\n" if value and isinstance(value[0], dict) else ""
        return joint.join(text_of(item) for item in value)
    return str(value)


def _message(message: dict[str, Any]) -> str:
    content = next((message[key] for key in ("content", "value", "text") if key in message), None)
    role = next((message[key] for key in ("role", "from") if message.get(key)), None)
    if content is None:
        return json.dumps(message, ensure_ascii=False, default=str)
    return f"{role}: {text_of(content)}" if role else text_of(content)


def vocabulary_of(schema: pa.Schema) -> list[str]:
    """Return token texts by id from the file's metadata key `vocabulary`; empty without it."""
    stored = (schema.metadata or {}).get(b"vocabulary")
    try:
        words = json.loads(stored) if stored else []
    except ValueError:
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


Flat = tuple["NDArray[np.int64]", "NDArray[np.float64]"]


def holds_numbers(kind: pa.DataType) -> bool:
    """Return whether a column of this type has a list of numbers per row."""
    return bool(is_list(kind) and is_number(kind.value_type))


def list_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Return the number of elements of each row, [n]; 0 for a null list."""
    return fill_nulls(pc.list_value_length(array), 0).astype(np.int64)


def flat(array: pa.Array) -> Flat:
    """Return offsets [n+1] and values [T] of a list column; null elements are NaN."""
    offsets = np.concatenate([[0], list_lengths(array).cumsum()])
    return offsets, numbers(array.flatten())


def numbers(array: pa.Array) -> NDArray[np.float64]:
    """Return a column of numbers, [n] float64; nulls are NaN."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    return fill_nulls(array.cast(pa.float64(), safe=False), np.nan)


def mask_beside(mask: Flat | None, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask for values with these offsets, [T]; all ones in rows of another length."""
    if mask is not None and np.array_equal(mask[0], offsets):
        return mask[1] > 0
    result = np.ones(int(offsets[-1]), dtype=np.bool_)
    if mask is None:
        return result
    lengths, mask_lengths = np.diff(offsets), np.diff(mask[0])
    same = mask_lengths == lengths
    result[np.repeat(same, lengths)] = (mask[1] > 0)[np.repeat(same, mask_lengths)]
    return result


def log_ratio(values: NDArray[np.float64], minus: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the difference of log-probs, clamped as `rlpost advantages` clamps it."""
    return np.clip(values - minus, -_CLAMP, _CLAMP)


def policy_means(
    table: pa.RecordBatch, columns: Sequence[str], mask: str | None
) -> NDArray[np.float64]:
    """Return the means over policy tokens of a column, or of the `log_ratio` of two, [n].

    A column of numbers is returned as it is.
    """
    first = table.column(columns[0])
    if not is_list(first.type):
        return numbers(first)
    offsets, values = flat(first)
    for name in columns[1:]:
        others, minus = flat(table.column(name))
        if not np.array_equal(offsets, others):
            return np.full(len(first), np.nan)
        values = log_ratio(values, minus)
    of_policy = None if mask is None else flat(table.column(mask))
    return row_means(values, offsets, mask_beside(of_policy, offsets))


def row_means(
    values: NDArray[np.float64], offsets: NDArray[np.int64], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the mean of each row's values with mask 1, [n]; NaN without any."""
    if mask.all():
        counts, sums = np.diff(offsets).astype(np.float64), segment_sum(values, offsets)
    else:
        counts = segment_sum(mask.astype(np.float64), offsets)
        sums = segment_sum(np.where(mask, values, 0.0), offsets)
    means = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
