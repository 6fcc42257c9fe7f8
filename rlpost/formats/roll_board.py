"""ROLL: the logging board of `save_logging_board_dir`, JSONL.

Its lists are cut at the response's first token but keep the right padding; its token rewards are
not cut at all, and stand under `values` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import SAME_TEXT, apply_map, text_key
from rlpost.formats.layout import mask_of, numbers, response_lists
from rlpost.formats.logging_board import tokens_of, unpadded
from rlpost.formats.records import Record, first_fields, records
from rlpost.formats.rows import Row, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions


_NEEDED = {"new_response_mask", "logprobs", "ref_logprobs", "response_tokens", "reward", "step"}
_LISTS = {
    "old_log_probs": "logprobs",
    "ref_log_probs": "ref_logprobs",
    "entropy": "old_log_probs2_entropy",
    "log_probs2": "log_probs2",
}
_TYPES = {
    "log_probs2": pa.list_(pa.float32()),
    "response_tokens": pa.list_(pa.string()),
    "dumped_token_rewards": pa.list_(pa.float32()),
}


def sniff(path: Path) -> bool:
    """Whether the first record has the fields that only this writer writes together."""
    return first_fields(path).keys() >= _NEEDED


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The dump as canonical columns; a DataError names the record that does not fit."""
    return batches(_rows(path, options), options, _TYPES)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    for record in records(path):
        prompt, lists = record.text("prompt"), _cut(record)
        length = len(lists["response_mask"])
        values: dict[str, Any] = {
            "step": record.whole("step"),
            "prompt_id": text_key(unpadded(prompt)),
            "reward": record.number("reward"),
            "response_length": length,
            "prompt": prompt,
            "response": record.text("response"),
            "response_tokens": tokens_of(record, length),
            **lists,
        }
        yield apply_map(Row(record.where, values), record, options.map)


def _cut(record: Record) -> dict[str, NDArray[Any]]:
    """The record's lists without their padding, which begins behind the last mask 1."""
    mask = mask_of(record.where, "new_response_mask", record.get("new_response_mask"))
    lists = {
        column: numbers(record.where, field, record.get(field))
        for column, field in _LISTS.items()
        if field in record
    }
    lists["dumped_token_rewards"] = _token_rewards(record, len(mask))
    return response_lists("padded", record.where, mask, lists)


def _token_rewards(record: Record, length: int) -> NDArray[Any]:
    """The last `length` entries: the lists end together, and these begin with the prompt.

    Raises:
        DataError: there are fewer.
    """
    rewards = numbers(record.where, "token_rewards", record.get("token_rewards"))
    if len(rewards) < length:
        raise DataError(
            f"{record.where}: `token_rewards` has {len(rewards)} entries and `new_response_mask` "
            f"{length}; it covers the prompt as well and can't be shorter"
        )
    return rewards[len(rewards) - length :]


FORMAT = Format(
    name="roll-board",
    title="ROLL logging board data_{time}.jsonl of save_logging_board_dir",
    suffixes=(".jsonl",),
    gives=("group", "reward", "batch", "mask", "old_log_probs", "ref_log_probs"),
    lacks={
        "log_probs": "ROLL's board has log-probs from before the update alone",
        "values": "ROLL's board has the token rewards under `values`, and not the critic's values",
        "infer_log_probs": "ROLL's board has the trainer's log-probs alone",
        "token_rewards": "ROLL's token_rewards already hold the response's reward and the KL "
        "penalty, which rlpost adds itself; they are kept as dumped_token_rewards",
        "domain": "ROLL's board has one file a domain and step, and does not name the domain",
    },
    sniff=sniff,
    read=read,
    source="ROLL 2025-05 to 2026-08, roll/pipeline/rlvr/rlvr_pipeline.py, save_metrics",
    takes=("map",),
    fields={
        **_LISTS, "prompt_id": f"prompt ({SAME_TEXT})", "reward": "reward", "step": "step",
        "response_mask": "new_response_mask",
    },
    note="The reward is ROLL's normalised and clipped one; the raw score is not dumped. Without a "
    "reference model ROLL writes the policy's log-probs a second time, as the reference's.",
)  # fmt: skip
