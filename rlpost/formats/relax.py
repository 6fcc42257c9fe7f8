"""Relax: the results of each rollout, `{train,eval}/{rollout_id}.jsonl` of `rollout_result_dir`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import no_token_roles, read_text
from rlpost.formats.records import Row
from rlpost.formats.slime import FINISHED, reward_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record

_NEEDED = frozenset({
    "prompt", "response", "reward", "response_length", "total_length", "status", "group_index",
})  # fmt: skip
_FAILED = ("failed", "aborted")


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    for record in records:
        stem, status = Path(record.file).name.partition(".")[0], record.text("status")
        length = record.integer("response_length")
        step = int(stem) if stem.isdecimal() else None
        values: dict[str, Any] = {
            "step": record.integer("rollout_id") if record.has("rollout_id") else step,
            "prompt_id": record.fields.get("group_index"),
            "domain": record.fields.get("dataset"),
            "reward": reward_of(record, options),
            "finish_reason": FINISHED.get(status, status),
            "failure": status if status in _FAILED else None,
            "prompt_length": record.integer("total_length") - length,
            "response_length": length,
            "prompt": read_text(record, "prompt"),
            "response": record.text("response"),
        }
        yield Row(record, values)


FORMAT = Format(
    name="relax",
    title="Relax {train,eval}/{rollout_id}.jsonl of rollout_result_dir",
    containers=(JSON,),
    roles=("group", "reward", "batch", "domain", "truncated", "response_length", "failure"),
    missing_roles={
        "domain": "training has no names of data sets",
        "failure": "no rollout failed",
        **no_token_roles("Relax's result", but=("response_length",)),
    },
    sniff=has(*_NEEDED),
    rows=_rows,
    by_record=True,
    own=_NEEDED | {"rollout_id", "dataset"},
    integers=False,
    source="Relax, relax/utils/training/train_dump_utils.py, save_rollout_result_jsonl (2026-11)",
    options=("map",),
    fields={
        "prompt_id": "group_index", "step": "rollout_id", "reward": "reward", "domain": "dataset",
        "response_length": "response_length", "truncated": "status", "failure": "status",
    },
    note="Token ids, masks and log-probs are in the .pt files of its debug dumps (slime-rollout).",
)  # fmt: skip
