"""xtuner: the trajectories that its trainer saves, after a record with their statistics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import no_token_roles, read_text
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record

_OWN = frozenset({
    "rollout_id", "group_id", "task_name", "data_source", "status", "finish_reason", "error_msg",
    "prompt", "response", "reward", "prompt_len", "response_len", "agent",
})  # fmt: skip
_FAILED = ("failed", "aborted", "expired")
_STEP = re.compile(r"(\d+)$")


def _trajectories(record: Record) -> Iterator[Record]:
    """Yield a trajectory; the record of statistics, which comes first, is none."""
    if "total_len" not in record:
        yield record


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    for record in records:
        get, prompt = record.fields.get, read_text(record, "prompt")
        if get("group_id") is None:
            options.stats.sources["prompt_id"] = f"prompt ({SAME_TEXT})"
        step = _STEP.search(Path(record.file).name.partition(".")[0])
        source, status = get("data_source"), get("status")
        values: dict[str, Any] = {
            "step": int(step[1]) if step else None,
            "prompt_id": text_key(prompt) if get("group_id") is None else get("group_id"),
            "rollout_id": get("rollout_id"),
            "domain": source if isinstance(source, str) else get("task_name"),
            "agent_role": (get("agent") or {}).get("name"),
            "reward": record.number("reward"),
            "finish_reason": get("finish_reason"),
            "failure": status if status in _FAILED else None,
            "error": get("error_msg"),
            "prompt_length": get("prompt_len"),
            "response_length": record.integer("response_len"),
            "prompt": prompt,
            "response": get("response"),
        }
        yield Row(record, values)


FORMAT = Format(
    name="xtuner",
    title="xtuner {train,eval}_rollout_{step}.jsonl of its RL trainers",
    containers=(JSON,),
    roles=("group", "reward", "batch", "domain", "truncated", "response_length",
           "agent_role", "failure"),
    missing_roles={
        "batch": "the file's name does not end with a step",
        "domain": "the data have no source and no task name",
        "truncated": "no trajectory has a finish reason",
        **no_token_roles("xtuner", but=("response_length",)),
    },
    sniff=has("reward_mean", "response_len_mean", "total_len"),
    rows=_rows,
    by_record=True,
    split=_trajectories,
    own=_OWN,
    types=dict.fromkeys(("agent_role", "failure", "error"), pa.string()),
    integers=False,
    source="xtuner v1/train/rl_trainer.py, _save_trajectories (2026-08); before, concatenated "
    "objects of v1/train/rl_colocate_trainer.py",
    options=("map",),
    fields={
        "prompt_id": "group_id", "step": "the file's name", "reward": "reward",
        "domain": "data_source or task_name", "response_length": "response_len",
        "failure": "status", "truncated": "finish_reason",
    },
    role_notes={"group": "Before group_id, a group is the responses of one step with the same "
                "prompt."},
)  # fmt: skip
