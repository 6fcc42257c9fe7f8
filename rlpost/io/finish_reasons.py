"""Finish reasons: which values of an engine mean that a response was cut off, and which do not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.io.arrow import (
    fill_nulls,
    is_number,
    is_string,
    is_true,
    string_array,
    to_numpy,
    without_dictionary,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.io.arrow import CellLocation


TRUNCATED = frozenset(
    {
        "length",  # vLLM 0.8 RequestFinishedReason, SGLang 0.5, TRT-LLM 1.0, TGI 3, OpenAI chat
        "length_capped",  # vLLM RequestStatus.FINISHED_LENGTH_CAPPED
        "max_length",
        "max_tokens",  # Anthropic stop_reason, Google FinishReason.MAX_TOKENS
        "max_new_tokens",
        "max_completion_tokens",
        "max_output_tokens",  # OpenAI responses, prime-rl
        "max_input_tokens",  # prime-rl stop_condition
        "max_total_tokens",  # prime-rl
        "max_total_completion_tokens_reached",  # verifiers stop condition
        "max_model_len",
        "max_turns",  # prime-rl
        "max_turns_reached",  # verifiers
        "max_steps",
        "prompt_too_long",  # verifiers
        "compaction_failed",  # prime-rl
        "context_length_exceeded",
        "model_context_window_exceeded",  # Anthropic
        "timeout_reached",  # verifiers
        "timed_out",  # TRT-LLM FinishReason.TIMED_OUT
        "timeout",
        "truncated",  # slime Sample.Status
    }
)
"""Reasons of a response that a limit cut off. Case does not matter."""
FINISHED = frozenset(
    {
        "stop",  # vLLM, SGLang, TRT-LLM, OpenAI, Google
        "stopped",  # vLLM RequestStatus.FINISHED_STOPPED
        "stop_sequence",  # TGI, Anthropic
        "stop_words",  # TRT-LLM FinishReason.STOP_WORDS
        "end_id",  # TRT-LLM FinishReason.END_ID
        "matched_token",  # SGLang 0.2 FINISH_MATCHED_TOKEN
        "matched_str",  # SGLang 0.2 FINISH_MATCHED_STR
        "eos",
        "eos_token",  # TGI
        "end_turn",  # Anthropic
        "complete",
        "completed",  # slime Sample.Status, verl TokenOutput.stop_reason
        "done",
        "tool_calls",  # OpenAI, vLLM
        "tool_use",  # Anthropic
        "function_call",  # OpenAI
        "content_filter",  # OpenAI
        "refusal",  # Anthropic
        "has_final_env_response",  # verifiers
        "no_tools_called",  # verifiers
        "state_completed",  # verifiers
    }
)
"""Reasons of a response that its policy or environment ended."""
_TYPE = re.compile(r"""^\s*\{.*?["']type["']\s*:\s*["']([^"']*)["']""", re.DOTALL)
_OBJECT = "type"  # the field that has the reason, in the object that SGLang returns
_LONGEST = 60  # characters of a value in a message
NULL = "null"


class Truncations(NamedTuple):
    """Which responses were cut off, and values that are not known either way."""

    truncated: NDArray[np.bool_]
    unknown: pa.Array
    """[n] text: the value if it is not known, else empty."""


def is_readable(kind: pa.DataType) -> bool:
    """Return whether `truncations` reads a column of this type."""
    if pa.types.is_struct(kind):
        place = kind.get_field_index(_OBJECT)
        return place >= 0 and is_readable(kind.field(place).type)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return is_number(kind) or is_string(kind) or bool(pa.types.is_null(kind))


def truncations(array: pa.Array, location: CellLocation) -> Truncations:
    """Return which responses were cut off, from flags (bools, 0 and 1) or finish reasons.

    A finish reason is a text, an object with the field `type` (as SGLang returns it), or such an
    object as JSON. Its case does not matter. Unknown values, and nulls, are not truncated.

    Raises:
        DataError: another type.
    """
    if not is_readable(array.type):
        raise location.error(0, f"is {array.type}", "a bool or a finish reason is needed")
    array = plain_reasons(array)
    if pa.types.is_boolean(array.type):
        return Truncations(is_true(array), _texts(np.where(_is_null(array), NULL, "")))
    if pa.types.is_null(array.type):
        return Truncations(np.zeros(len(array), np.bool_), string_array([NULL] * len(array)))
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = fill_nulls(encoded.indices, len(values))
    reasons = [_reason(value) for value in values]
    truncated = np.array([reason in TRUNCATED for reason in reasons] + [False])
    known = [reason in TRUNCATED or reason in FINISHED for reason in reasons]
    unknown = ["" if is_known else _shown(x) for x, is_known in zip(values, known, strict=True)]
    return Truncations(truncated[codes], _texts(np.array([*unknown, NULL])[codes]))


def plain_reasons(array: pa.Array) -> pa.Array:
    """Return flags or reasons as bools, whole numbers or text: of objects their `type`."""
    if pa.types.is_struct(array.type):
        array = pc.struct_field(array, _OBJECT)
    array = without_dictionary(array)
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def _is_null(array: pa.Array) -> NDArray[np.bool_]:
    return to_numpy(array.is_null())


def _texts(values: NDArray[Any]) -> pa.Array:
    return string_array(values.tolist())


def _reason(value: str | float) -> str:
    """Return a reason as in the tables: `length` of LENGTH, FinishReason.LENGTH and JSON."""
    if not isinstance(value, str):
        return "length" if value == 1 else "stop" if value == 0 else ""
    of_object = _TYPE.match(value)
    text = of_object.group(1) if of_object else value.partition(":")[0].rpartition(".")[2]
    text = text.strip().lower().replace("-", "_").replace(" ", "_")
    return text.removeprefix("finished_").removeprefix("finish_")


def _shown(value: str | float) -> str:
    """Return an unknown value for messages, never empty."""
    text = str(value)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return repr(text) if isinstance(value, str) else text
