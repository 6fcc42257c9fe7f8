"""Columns that are looked at and never computed with: texts, token ids, what rlpost wrote.

List columns as flat arrays, read leniently: who looks for what is wrong has to see it.

`rlpost.io.arrow` refuses nulls and lists of unequal length, as it should before numbers are
made of them. Here a null list is an empty one, a null element NaN.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.segments import segment_sums
from rlpost.io.arrow import is_list, is_number

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from rlpost.recipe.roles import ColumnMap


# What frameworks call them; the first that is there is taken.
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
        "response_tokens", "response_ids", "completion_ids", "output_tokens", "output_ids",
        "completion_token_ids", "token_ids", "tokens", "input_ids", "sequences",
    ),
    "prompt_tokens": ("prompt_tokens", "prompt_ids", "input_tokens", "prompt_token_ids"),
    "advantage": ("advantages", "advantage"),
    "kl": ("kl",),
}  # fmt: skip
LOG_PROBS = ("old_log_probs", "log_probs", "infer_log_probs")
# Token columns that `rlpost advantages` writes, beside the roles that it reads.
WRITTEN = ("advantages", "returns", "kl", "token_level_rewards", "raw_advantages", "is_weight")


def named(available: Collection[str]) -> dict[str, str]:
    """Which column has the texts, the tokens, the advantages and the KL, where there is one."""
    found = {}
    for what, names in NAMES.items():
        name = next((name for name in names if name in available), None)
        if name is not None:
            found[what] = name
    return found


def log_probs_of(columns: ColumnMap) -> str | None:
    """The column of the policy's own log-probs: the trainer's, else the engine's."""
    return next((columns.column(role) for role in LOG_PROBS if role in columns), None)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is text, or made of it: strings, messages, lists of them."""
    if is_list(kind):
        return is_text(kind.value_type)
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_struct(kind)
        or (pa.types.is_dictionary(kind) and is_text(kind.value_type))
    )


def text_of(value: Any) -> str:
    """A cell as text: a string as it is, messages one after another with who says them."""
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
    said = next((message[key] for key in ("content", "value", "text") if key in message), None)
    speaker = next((message[key] for key in ("role", "from") if message.get(key)), None)
    if said is None:
        return json.dumps(message, ensure_ascii=False, default=str)
    return f"{speaker}: {text_of(said)}" if speaker else text_of(said)


def vocabulary_of(schema: pa.Schema) -> list[str]:
    """Token texts by id, where the file's metadata has them as `vocabulary`; else empty."""
    stored = (schema.metadata or {}).get(b"vocabulary")
    try:
        words = json.loads(stored) if stored else []
    except ValueError:
        return []
    return [str(word) for word in words] if isinstance(words, list) else []


Flat = tuple["NDArray[np.int64]", "NDArray[np.float64]"]


def holds_numbers(kind: pa.DataType) -> bool:
    """Whether a column of this type has a list of numbers per row."""
    return bool(is_list(kind) and is_number(kind.value_type))


def list_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Elements of each row, [n]; 0 where the list is null."""
    lengths = pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def flat(array: pa.Array) -> Flat:
    """Offsets [n+1] and values [T] of a list column; null elements are NaN."""
    offsets = np.concatenate([[0], list_lengths(array).cumsum()])
    return offsets, numbers(array.flatten())


def numbers(array: pa.Array) -> NDArray[np.float64]:
    """A column of numbers, [n] float64; nulls are NaN."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    filled = pc.fill_null(array.cast(pa.float64(), safe=False), float("nan"))
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.float64)


def mask_beside(mask: Flat | None, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask for values with these offsets, [T]; all ones in rows where the lengths differ."""
    wanted = np.diff(offsets)
    found = np.ones(int(offsets[-1]), dtype=np.bool_)
    if mask is None:
        return found
    own = np.diff(mask[0])
    same = own == wanted
    found[np.repeat(same, wanted)] = (mask[1] > 0)[np.repeat(same, own)]
    return found


def row_means(
    values: NDArray[np.float64], offsets: NDArray[np.int64], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """The mean of each row's values where the mask is 1, [n]; NaN where it is 1 nowhere."""
    counts = segment_sums(mask.astype(np.float64), offsets)
    sums = segment_sums(np.where(mask, values, 0.0), offsets)
    means = np.full(len(sums), np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
