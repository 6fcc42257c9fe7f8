"""The columns that converted files have: names, types and order."""

from __future__ import annotations

import pyarrow as pa

_FLOATS, _IDS, _MASK = pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.uint8())

TOKEN_COLUMNS: dict[str, pa.DataType] = {
    "response_mask": _MASK,
    "response_token_ids": _IDS,
    "old_log_probs": _FLOATS,
    "infer_log_probs": _FLOATS,
    "ref_log_probs": _FLOATS,
    "teacher_log_probs": _FLOATS,
    "log_probs": _FLOATS,
    "values": _FLOATS,
    "token_rewards": _FLOATS,
    "entropy": _FLOATS,
    "sum_pi_squared": _FLOATS,
    "dumped_advantages": _FLOATS,
    "dumped_returns": _FLOATS,
}
"""Columns with one entry per response token. `dumped_` ones are what the framework computed."""

CANONICAL: dict[str, pa.DataType] = {
    "step": pa.int64(),
    "prompt_id": pa.string(),
    "rollout_id": pa.string(),
    "sample_id": pa.string(),
    "domain": pa.string(),
    "reward": pa.float64(),
    "reward_baseline": pa.float64(),
    "difficulty": pa.float64(),
    "finish_reason": pa.string(),
    "truncated": pa.bool_(),
    "prompt_length": pa.int64(),
    "response_length": pa.int64(),
    "dumped_advantage": pa.float64(),
    "dumped_sample_mask": pa.float64(),
    "prompt": pa.string(),
    "response": pa.string(),
    "prompt_token_ids": _IDS,
    **TOKEN_COLUMNS,
}
"""Column -> type, in the order in which they are written. Keys are text, so that any id fits.

A framework's own advantages are `dumped_...`: `advantages` is the name of what rlpost writes.
"""
