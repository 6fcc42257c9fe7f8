"""GRAIL: the rollouts of a window as nested Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.errors import DataError
from rlpost.formats.base import Format, has
from rlpost.formats.containers import PARQUET, Contents
from rlpost.formats.layout import as_vector
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_COLUMNS = (
    "window_start",
    "rollout_group",
    "rollout_index",
    "hotkey",
    "commit.tokens",
    "commit.rollout.total_reward",
    "commit.rollout.advantage",
    "commit.rollout.success",
    "commit.rollout.token_logprobs",
    "commit.rollout.prompt_length",
    "commit.rollout.completion_length",
)


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    return map(_row, records)


def _row(record: Record) -> Row:
    commit = record.nested("commit")
    rollout = commit.nested("rollout")
    tokens = as_vector(record.where, "commit.tokens", commit.get("tokens"))
    prompt, length = rollout.integer("prompt_length"), rollout.integer("completion_length")
    if prompt + length != len(tokens) or prompt < 0 or length < 0:
        raise DataError(
            f"{record.where}: prompt_length {prompt} and completion_length {length} do not add up "
            f"to the {len(tokens)} entries of commit.tokens"
        )
    return Row(
        record,
        {
            "step": record.integer("window_start"),
            "prompt_id": _group(record),
            "sample_id": record.fields.get("rollout_index"),
            "reward": rollout.number("total_reward"),
            "prompt_length": prompt,
            "response_length": length,
            "dumped_advantage": rollout.fields.get("advantage"),
            "success": rollout.fields.get("success"),
            "prompt_token_ids": tokens[:prompt],
            "response_token_ids": tokens[prompt:],
            "response_mask": np.ones(length, np.uint8),
            "infer_log_probs": _log_probs(rollout, prompt, length),
        },
    )


def _group(record: Record) -> str:
    """Return a key with the miner's, because each miner numbers its groups on its own."""
    group = record.integer("rollout_group")
    miner = record.fields.get("hotkey")
    return f"{miner}:{group}" if miner else str(group)


def _log_probs(rollout: Record, prompt: int, length: int) -> np.ndarray | None:
    """Return the completion's log-probs; the list may also cover the prompt before it."""
    array = as_vector(rollout.where, "token_logprobs", rollout.get("token_logprobs"))
    if len(array) == prompt + length:
        return array[prompt:]
    if len(array) == length:
        return array
    if not len(array):
        return None
    raise DataError(
        f"{rollout.where}: token_logprobs has {len(array)} entries; it must have {length} (one per "
        f"completion token) or {prompt + length} (one per token)"
    )


FORMAT = Format(
    name="grail",
    title="GRAIL window Parquet (nested commit.rollout)",
    containers=(PARQUET,),
    contents=Contents(columns=_COLUMNS),
    roles=("group", "reward", "mask", "infer_log_probs", "batch"),
    missing_roles={
        "infer_log_probs": "token_logprobs is empty",
        "log_probs": "GRAIL stores the log-probs of the rollout engine, not those of a trainer",
        "old_log_probs": "GRAIL stores the log-probs of the rollout engine, not those of a trainer",
        "ref_log_probs": "GRAIL does not store log-probs of a reference policy",
        "values": "GRAIL has no critic",
    },
    sniff=has("window_start", "rollout_group", "rollout_index", "commit"),
    rows=_rows,
    by_record=True,
    options=("map",),
    source="grail/infrastructure/parquet_io.py INFERENCE_SCHEMA (2026)",
    fields={
        "prompt_id": "hotkey:rollout_group", "reward": "commit.rollout.total_reward",
        "response_mask": "commit.rollout.completion_length", "step": "window_start",
        "infer_log_probs": "commit.rollout.token_logprobs",
    },
    note="The step is the start of the window. All completion tokens count as policy tokens.",
)  # fmt: skip
