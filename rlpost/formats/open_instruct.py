"""open-instruct: the rollout shards of `--save_traces`, JSONL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map
from rlpost.formats.records import Record, first_fields, json_records
from rlpost.formats.rows import Row, record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlpost.formats.base import ReadOptions


_NEEDED = {"step", "sample_idx", "prompt_idx", "response_tokens", "reward", "finish_reason"}
_TYPES = {"tool_called": pa.bool_(), "ground_truth": pa.string(), "request_info": pa.string()}


def sniff(path: Path) -> bool:
    """Return whether the first record has the combination of fields of this writer."""
    return first_fields(path).keys() >= _NEEDED


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the dump as canonical columns; a DataError names the bad record."""
    return record_batches(_rows(path, options), options, _TYPES)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    for record in json_records(path):
        step, tokens = record.integer("step"), record.array("response_tokens")
        prompt = record.array("prompt_tokens")
        values: dict[str, Any] = {
            "step": step,
            # `prompt_idx` begins anew at every step.
            "prompt_id": f"{step}/{record.integer('prompt_idx')}",
            "sample_id": f"{step}/{record.integer('sample_idx')}",
            "domain": _domain(record),
            "reward": record.number("reward"),
            "finish_reason": record.text("finish_reason"),
            "prompt_length": len(prompt),
            "response_length": len(tokens),
            "dumped_advantage": record.number("advantage"),
            "prompt_token_ids": prompt,
            "response_token_ids": tokens,
            **_token_lists(record, len(tokens)),
            **_others(record),
        }
        yield apply_map(Row(record.where, values), record, options.map)


def _token_lists(record: Record, length: int) -> dict[str, Any]:
    """Return the engine's log-probs, or, if they are not saved, a mask of the same length."""
    if record.has("logprobs"):
        return {"infer_log_probs": record.array("logprobs")}
    return {"response_mask": np.ones(length, np.uint8)}


def _domain(record: Record) -> str | None:
    """Return the name of the data set; some versions write a list of names."""
    if not record.has("dataset"):
        return None
    if isinstance(record.get("dataset"), list):
        return ",".join(str(name) for name in record.array("dataset"))
    return record.text("dataset")


def _others(record: Record) -> dict[str, Any]:
    info = record.nested("request_info") if record.has("request_info") else None
    called = info.fields.get("tool_calleds") if info else None
    return {
        "tool_called": None if called is None else bool(called),
        "ground_truth": json.dumps(record.fields.get("ground_truth"), ensure_ascii=False),
        "request_info": json.dumps(record.fields.get("request_info"), ensure_ascii=False),
    }


FORMAT = Format(
    name="open-instruct",
    title="open-instruct {run}_rollouts_{shard}.jsonl of save_traces",
    suffixes=(".jsonl",),
    roles=("group", "reward", "batch", "domain", "truncated", "infer_log_probs"),
    missing_roles={
        "mask": "open-instruct does not save which tokens are tool output, so every token of a "
        "response counts as a policy token (tool_called marks responses that used a tool)",
        "infer_log_probs": "logprobs is null: the run did not request them from the rollout engine",
        "log_probs": "open-instruct saves the rollout engine's log-probs only",
        "old_log_probs": "open-instruct saves the rollout engine's log-probs only",
        "ref_log_probs": "open-instruct saves the rollout engine's log-probs only",
        "values": "open-instruct trains without a critic",
    },
    sniff=sniff,
    read=read,
    source="open-instruct, open_instruct/rl_utils.py, RolloutRecord (2025-12 to 2026-08)",
    options=("map",),
    fields={
        "prompt_id": "step/prompt_idx", "reward": "reward", "step": "step", "domain": "dataset",
        "finish_reason": "finish_reason", "infer_log_probs": "logprobs",
    },
    note="If tool_called is true, tool output in the response counts as policy tokens.",
)  # fmt: skip
