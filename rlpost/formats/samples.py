"""A slime `Sample` as a row: what slime and miles keep of one response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import DataError
from rlpost.formats.fields import prompt_key
from rlpost.formats.layout import believable, check_length, mask_of, numbers
from rlpost.formats.records import Record
from rlpost.formats.rows import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions


_FINISHED = {"truncated": "length", "completed": "stop"}


def plain(value: Any) -> Any:
    """A tensor as an array, a tensor or array of one number as that number, the rest as it is."""
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        dense = value.detach()
        value = (dense.float() if "float16" in str(dense.dtype) else dense).numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def plain_record(record: Record) -> Record:
    """The record with its numbers as Python's, whatever they were pickled as."""
    fields = {
        name: {key: plain(one) for key, one in value.items()}
        if isinstance(value, dict)
        else plain(value)
        for name, value in record.fields.items()
    }
    return Record(record.where, fields)


def split_tokens(record: Record, length: int) -> dict[str, NDArray[Any]]:
    """The ids of prompt and response from `tokens`, which holds both.

    Raises:
        DataError: there are fewer tokens than the response is said to have.
    """
    ids = numbers(record.where, "tokens", record.get("tokens"))
    if not 0 <= length <= len(ids):
        raise DataError(
            f"{record.where}: the response is said to have {length} tokens, but `tokens`, prompt "
            f"and response, has {len(ids)}"
        )
    start = len(ids) - length
    return {"prompt_token_ids": ids[:start], "response_token_ids": ids[start:]}


def response_list(record: Record, name: str, length: int) -> NDArray[Any] | None:
    """A list with one entry per response token; None where it is missing or null.

    Raises:
        DataError: its length is not the response's.
    """
    if not record.has(name):
        return None
    array = numbers(record.where, name, record.get(name))
    check_length(record.where, name, array, length, "response_length")
    return array


def mask_list(record: Record, name: str, length: int) -> NDArray[np.uint8]:
    """The loss mask; none is all ones."""
    if not record.has(name):
        return np.ones(believable(record.where, "the response's length", length), np.uint8)
    mask = mask_of(record.where, name, record.get(name))
    check_length(record.where, name, mask, length, "response_length")
    return mask


def reward_of(record: Record, options: ReadOptions) -> float | None:
    """The reward; of several named ones the one that `--map reward=reward.NAME` picks.

    Raises:
        DataError: there are several and none is picked.
    """
    value = record.get("reward")
    if not isinstance(value, dict):
        return None if value is None else record.number("reward")
    if "reward" in options.map:
        return None  # the map says which
    if len(value) != 1:
        raise DataError(
            f"{record.where}: `reward` has the parts {', '.join(map(str, value))}; say which one "
            "counts with --map reward=reward.NAME"
        )
    return record.nested("reward").number(str(next(iter(value))))


def group_of(record: Record, prompt: NDArray[Any]) -> object:
    """The prompt's number; where the rollout function gave none, a key of its tokens."""
    return record.get("group_index") if record.has("group_index") else prompt_key(prompt)


def sample_row(record: Record, step: int | None, options: ReadOptions) -> Row:
    """One sample of a rollout dump as a row."""
    length = record.whole("response_length")
    status = record.fields.get("status")
    prompt = record.fields.get("prompt")
    tokens = split_tokens(record, length)
    return Row(
        record.where,
        {
            "step": step,
            "prompt_id": group_of(record, tokens["prompt_token_ids"]),
            "rollout_id": record.fields.get("rollout_id"),
            "sample_id": record.fields.get("index"),
            "reward": reward_of(record, options),
            "finish_reason": _FINISHED.get(str(status), status),
            "dumped_sample_mask": float(not record.fields.get("remove_sample", False)),
            "prompt": prompt if isinstance(prompt, str) else _chat(prompt),
            "response": record.fields.get("response"),
            "prompt_length": len(tokens["prompt_token_ids"]),
            "response_length": length,
            **tokens,
            "response_mask": mask_list(record, "loss_mask", length),
            "infer_log_probs": response_list(record, "rollout_log_probs", length),
            "teacher_log_probs": response_list(record, "teacher_log_probs", length),
        },
    )


def _chat(messages: object) -> str | None:
    """A prompt of messages as text: each one's content, in order."""
    if not isinstance(messages, list):
        return None
    contents = (one.get("content") for one in messages if isinstance(one, dict))
    return "\n".join(text for text in contents if isinstance(text, str))
