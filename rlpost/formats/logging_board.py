"""RLLoggingBoard: JSONL with one entry per response token, written by patched trainers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.containers import JSON
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.layout import as_vector, check_length
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_NEEDED = {"prompt", "response", "response_tokens", "logprobs", "ref_logprobs", "reward", "step"}
_SPECIAL = re.compile(r"^(?:<[^<>\s]+>|\[PAD\])+")
_ROLL_ONLY = "new_response_mask"
_TYPES = {
    "response_tokens": pa.list_(pa.string()),
    "dumped_token_rewards": pa.list_(pa.float32()),
    "ref_response": pa.string(),
    "ref_reward": pa.float64(),
}


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    for record in records:
        prompt, old = record.text("prompt"), record.array("logprobs")
        values: dict[str, Any] = {
            "step": record.integer("step"),
            "prompt_id": text_key(unpadded(prompt)),
            "reward": record.number("reward"),
            "response_length": len(old),
            "prompt": prompt,
            "response": record.text("response"),
            "old_log_probs": old,
            "ref_log_probs": record.array("ref_logprobs"),
            "values": record.array("values") if record.has("values") else None,
            "response_tokens": tokens_of(record, len(old)),
            "dumped_token_rewards": _token_rewards(record, len(old)),
            "ref_response": record.text("ref_response") if record.has("ref_response") else None,
            "ref_reward": record.number("ref_reward") if record.has("ref_reward") else None,
        }
        yield Row(record, values)


def unpadded(prompt: str) -> str:
    """Return a prompt's text without its leading special tokens, which include the left padding.

    The padding of a prompt differs from batch to batch, and its responses are still one group.
    """
    return _SPECIAL.sub("", prompt)


def tokens_of(record: Record, length: int) -> list[str | None]:
    """Return the response's tokens as text, without any padding after them.

    Raises:
        DataError: there are fewer tokens than the `length` entries of the other lists.
    """
    tokens = record.array("response_tokens")
    if len(tokens) < length:
        raise DataError(
            f"{record.where}: `response_tokens` has {len(tokens)} entries and `logprobs` has "
            f"{length}; every log-prob needs its token"
        )
    return tokens[:length]


def _token_rewards(record: Record, length: int) -> Any:
    if not record.has("token_rewards"):
        return None
    rewards = as_vector(record.where, "token_rewards", record.get("token_rewards"))
    check_length(record.where, "token_rewards", rewards, length, "`logprobs`")
    return rewards


FORMAT = Format(
    name="rl-logging-board",
    title="RLLoggingBoard rollout_samples/{run}/*.jsonl",
    containers=(JSON,),
    roles=("group", "reward", "batch", "old_log_probs", "ref_log_probs", "values"),
    missing_roles={
        "mask": "RLLoggingBoard does not record which tokens are tool output, so every token "
        "counts as a policy token",
        "log_probs": "RLLoggingBoard records log-probs from before the update only",
        "values": "these responses have no `values`: the trainer has no critic",
        "infer_log_probs": "RLLoggingBoard records the trainer's log-probs only",
        "token_rewards": "RLLoggingBoard's token_rewards already include the response's reward and "
        "the KL penalty, which rlpost adds itself; they are kept as dumped_token_rewards",
    },
    sniff=lambda fields: fields.keys() >= _NEEDED and _ROLL_ONLY not in fields,
    rows=_rows,
    by_record=True,
    types=_TYPES,
    source="RLLoggingBoard's README, data format (2025-02)",
    options=("map",),
    fields={
        "prompt_id": f"prompt ({SAME_TEXT})", "reward": "reward", "step": "step",
        "old_log_probs": "logprobs", "ref_log_probs": "ref_logprobs", "values": "values",
    },
    role_notes={
        "group": "A group is the responses of one step whose prompts, without padding, are the "
        "same text."
    },
)  # fmt: skip
