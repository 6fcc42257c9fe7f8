"""AReaL: the trajectories of `rollout.dump_to_file`, one JSONL file per task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import DataError
from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import no_token_roles
from rlpost.formats.layout import check_token_count
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_NEEDED = {"task_id", "sample_idx", "seqlen", "prompt_len", "tail_version", "reward"}


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    for record in records:
        length = _length(record)
        task = record.text("task_id")
        values: dict[str, Any] = {
            "prompt_id": task,
            "sample_id": f"{task}/{record.integer('sample_idx')}",
            "reward": record.number("reward"),
            "prompt_length": record.integer("prompt_len"),
            "response_length": length,
            # The dump has the number of policy tokens and does not contain any others.
            "response_mask": np.ones(length, np.uint8),
            "prompt": record.text("prompt"),
            "response": record.text("completion"),
            "head_version": record.integer("head_version"),
            "tail_version": record.integer("tail_version"),
        }
        yield Row(record, values)


def _length(record: Record) -> int:
    """Return the number of policy tokens: `prompt_len` is the sequence length minus it."""
    total, prompt = record.integer("seqlen"), record.integer("prompt_len")
    if not 0 <= prompt <= total:
        raise DataError(
            f"{record.where}: `prompt_len` is {prompt} and `seqlen` is {total}; prompt_len must be "
            "from 0 to seqlen"
        )
    return check_token_count(record.where, "`seqlen` - `prompt_len`", total - prompt)


FORMAT = Format(
    name="areal",
    title="AReaL {tail_version}/{task_id}.jsonl of rollout.dump_to_file",
    containers=(JSON,),
    roles=("group", "reward", "mask"),
    missing_roles=no_token_roles("AReaL", but=("mask", "response_length"))
    | {
        "batch": "AReaL does not record the training step, and responses of one task can end under "
        "different policy versions (tail_version), so versions cannot serve as batches"
    },
    sniff=has(*_NEEDED),
    rows=_rows,
    by_record=True,
    source="AReaL 1.0 to 1.0.4, areal/infra/workflow_executor.py, _dump_trajectory",
    options=("map",),
    fields={
        "prompt_id": "task_id", "reward": "reward", "response_mask": "seqlen - prompt_len",
    },
    note="A response contains policy tokens only: AReaL does not count observation tokens.",
)  # fmt: skip
