"""open-instruct: the rollout shards of `--save_traces`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from rlpost.formats.records import Record


def _place(name: str) -> Field:
    """Return a number that counts anew at every step."""
    return Field(
        f"step/{name}", lambda record: f"{record.typed('step', int)}/{record.typed(name, int)}"
    )


def _mask(record: Record) -> list[int] | None:
    """Return a mask of all tokens, unless the engine's log-probs have the length."""
    tokens = record.typed("response_tokens", list)
    return None if record.find("logprobs") is not None else [1] * len(tokens)


def _domain(record: Record) -> str | None:
    """Return the name of the data set; some versions write a list of names."""
    names = record.find("dataset")
    return ",".join(map(str, names)) if isinstance(names, list) else names


FORMAT = Format(
    name="open-instruct",
    title="open-instruct {run}_rollouts_{shard}.jsonl of save_traces",
    source="open-instruct, open_instruct/rl_utils.py, RolloutRecord (2025-12 to 2026-08)",
    containers=(JSON,),
    sniff=has("step", "sample_idx", "prompt_idx", "response_tokens", "reward", "finish_reason",
              "advantage"),
    fields={
        "step": "step", "prompt_id": _place("prompt_idx"), "sample_id": _place("sample_idx"),
        "domain": Field("dataset", _domain), "reward": "reward", "finish_reason": "finish_reason",
        "dumped_advantage": "advantage", "prompt_token_ids": "prompt_tokens",
        "response_token_ids": "response_tokens", "infer_log_probs": "logprobs",
        "response_mask": Field("response_tokens (all)", _mask),
        "tool_called": "request_info.tool_calleds",
        "ground_truth": "ground_truth", "request_info": "request_info",
    },
    lacks={
        "domain": "",
        "mask": "rollouts do not have which tokens are tool output, so every token counts as a "
        "policy token (tool_called marks responses that used a tool)",
        "infer_log_probs": "logprobs is null: the run did not request them from the rollout engine",
    },
    note="Tool output counts as policy tokens (tool_called).",
    types={"tool_called": pa.bool_(), "ground_truth": pa.string(), "request_info": pa.string()},
    reads=frozenset({"sample_idx", "prompt_idx"}),
    keeps=False,
)  # fmt: skip
