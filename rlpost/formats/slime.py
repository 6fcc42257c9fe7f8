"""slime: rollout samples (`rollout_data/{rollout_id}.pt`) and trainer samples (`train_data/`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.base import Format
from rlpost.formats.containers import PICKLE
from rlpost.formats.fields import messages, same_tokens
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from rlpost.formats.records import Record


_FINISHED = {"truncated": "length", "completed": "stop"}

RANK = "data_parallel_rank"
"""The rank of the trainer that had a response. Advantages are whitened over all ranks."""


def _step(sample: Record) -> int:
    return (sample.outer or sample).typed("rollout_id", int)


def _status(sample: Record) -> str | None:
    status: str | None = sample.find("status")
    return _FINISHED.get(status or "", status)


def _reward(sample: Record) -> Any:
    """Return the reward, or its only part; --map reward=reward.NAME selects one of several."""
    value = sample.get("reward")
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value


def _raw_reward(sample: Record) -> float | None:
    """Return the reward before normalisation, which the dump stores in the rollout's order."""
    rewards = (sample.outer or sample).fields.get("raw_reward")
    position = sample.fields.get("rollout_position")
    if rewards is None:
        return None
    if not isinstance(position, int) or not 0 <= position < len(rewards):
        needed = (
            f"the place among the {len(rewards)} of raw_reward, which is in the rollout's order "
            "(or rollout_data/, or --map reward=none)"
        )
        raise sample.error("rollout_position", position, needed)
    return float(rewards[position])


ROLLOUT = Format(
    name="slime-rollout",
    title="slime and miles rollout_data/{rollout_id}.pt",
    source="slime/observability/rollout_data_utils.py save_debug_rollout_data (2026)",
    containers=(PICKLE,),
    sniff=lambda fields: (
        [*fields][:1] == ["rollout_id"]
        and {"samples", "response_length", "group_index"} <= fields.keys()
    ),
    fields={
        "step": Field("rollout_id", _step), "reward": Field("reward", _reward),
        "prompt_id": Field("group_index", lambda sample: sample.fields.get("group_index")),
        "rollout_id": Field("rollout_id of the sample", lambda x: x.fields.get("rollout_id")),
        "sample_id": "index", "finish_reason": Field("status", _status),
        "policy_version": Field("weight_versions", lambda sample: next(
            iter(sample.find("weight_versions") or ()), None)),
        "dumped_sample_mask": Field(
            "remove_sample", lambda sample: float(not sample.find("remove_sample"))),
        "prompt": messages("prompt"),
        "response": "response", "response_length": "response_length",
        "sequence_token_ids": "tokens", "response_mask": "loss_mask",
        "infer_log_probs": "rollout_log_probs", "teacher_log_probs": "teacher_log_probs",
    },
    lacks={
        "rollout": "", "policy_version": "",
        "infer_log_probs": "the rollout stored none (rollout_log_probs is empty)",
        **dict.fromkeys(("old_log_probs", "ref_log_probs", "values"),
                        "it is in train_data/, not in rollout_data/"),
    },
    note="A .pt file is one object: tensors are memory-mapped, lists are read into memory.",
    layout="tail", at="samples", keeps=False,
)  # fmt: skip


TRAIN = Format(
    name="slime-train",
    title="slime train_data/{rollout_id}.pt",
    source="slime/observability/train_data_utils.py save_debug_train_data, format_version 2",
    containers=(PICKLE,),
    sniff=lambda fields: [*fields][:4] == ["format_version", "rollout_id", "rank", "samples"],
    fields={
        "step": Field("rollout_id", _step), "reward": Field("raw_reward", _raw_reward),
        "prompt_id": same_tokens("tokens"), "rollout_id": "rollout_ids",
        "sample_id": "sample_index",
        "truncated": "truncated", "response_length": "response_lengths",
        "normalised_reward": "rewards", RANK: RANK, "sequence_token_ids": "tokens",
        "response_mask": "loss_masks",
        # log_probs is of the policy before the update. kl has no mask; it is 0 without a penalty.
        "old_log_probs": "log_probs", "ref_log_probs": "ref_log_probs", "values": "values",
        "infer_log_probs": "rollout_log_probs", "teacher_log_probs": "teacher_log_probs",
        "entropy": "entropy", "dumped_kl": "kl", "dumped_advantages": "advantages",
        "dumped_returns": "returns",
    },
    lacks={
        "reward": "the dump has no raw_reward; its `rewards` are already normalised "
        "(kept as normalised_reward)",
        "log_probs": "the dump's log_probs are from before the update, so they are old_log_probs",
        "old_log_probs": "the run stored no log_probs",
        "ref_log_probs": "the run had no reference model (no KL term)",
        "infer_log_probs": "the run stored no rollout_log_probs",
        "values": "the run had no critic",
        "entropy": "", "rollout": "",
    },
    note="Tensors are memory-mapped.",
    types={"dumped_kl": pa.list_(pa.float32())},
    layout="tail", at="samples", keeps=False,
    reads=frozenset({"rollout_position"}),
    version=("format_version", (2,)),
)  # fmt: skip
