"""open-instruct: the rollout shards of `--save_traces`, JSONL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_NEEDED = {"step", "sample_idx", "prompt_idx", "response_tokens", "reward", "finish_reason"}
_TYPES = {"tool_called": pa.bool_(), "ground_truth": pa.string(), "request_info": pa.string()}


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    for record in records:
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
        yield Row(record, values)


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
    containers=(JSON,),
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
    sniff=has(*_NEEDED),
    rows=_rows,
    by_record=True,
    types=_TYPES,
    source="open-instruct, open_instruct/rl_utils.py, RolloutRecord (2025-12 to 2026-08)",
    options=("map",),
    fields={
        "prompt_id": "step/prompt_idx", "reward": "reward", "step": "step", "domain": "dataset",
        "finish_reason": "finish_reason", "infer_log_probs": "logprobs",
    },
    note="If tool_called is true, tool output in the response counts as policy tokens.",
)  # fmt: skip
