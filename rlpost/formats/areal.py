"""AReaL: the trajectories of `rollout.dump_to_file`, one JSONL file a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_tokens
from rlpost.formats.layout import believable
from rlpost.formats.records import Record, first_fields, records
from rlpost.formats.rows import Row, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


_NEEDED = {"task_id", "sample_idx", "seqlen", "prompt_len", "tail_version", "reward"}


def sniff(path: Path) -> bool:
    """Whether the first record has the fields that only this writer writes together."""
    return first_fields(path).keys() >= _NEEDED


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The dump as canonical columns; a DataError names the record that does not fit."""
    return batches(_rows(path, options), options)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    for record in records(path):
        length = _length(record)
        task = record.text("task_id")
        values: dict[str, Any] = {
            "prompt_id": task,
            "sample_id": f"{task}/{record.whole('sample_idx')}",
            "reward": record.number("reward"),
            "prompt_length": record.whole("prompt_len"),
            "response_length": length,
            # The dump says how many tokens the policy produced, and leaves all others out.
            "response_mask": np.ones(length, np.uint8),
            "prompt": record.text("prompt"),
            "response": record.text("completion"),
            "head_version": record.whole("head_version"),
            "tail_version": record.whole("tail_version"),
        }
        yield apply_map(Row(record.where, values), record, options.map)


def _length(record: Record) -> int:
    """The tokens that the policy produced: `prompt_len` is the sequence's length less those."""
    whole, prompt = record.whole("seqlen"), record.whole("prompt_len")
    if not 0 <= prompt <= whole:
        raise DataError(
            f"{record.where}: `prompt_len` is {prompt} and `seqlen` {whole}; a prompt from 0 to "
            "the whole sequence is needed"
        )
    return believable(record.where, "`seqlen` less `prompt_len`", whole - prompt)


FORMAT = Format(
    name="areal",
    title="AReaL {tail_version}/{task_id}.jsonl of rollout.dump_to_file",
    suffixes=(".jsonl",),
    gives=("group", "reward", "mask"),
    lacks=no_tokens("AReaL", but=("mask",))
    | {
        "batch": "AReaL does not write which training step took a task; rows of one task may end "
        "under different policy versions (tail_version), so these are no batches"
    },
    sniff=sniff,
    read=read,
    source="AReaL 1.0, areal/infra/workflow_executor.py, _dump_trajectory",
    takes=("map",),
    fields={
        "prompt_id": "task_id", "reward": "reward", "response_mask": "seqlen less prompt_len",
    },
    note="A response is as long as the policy's tokens are many: AReaL leaves observations out.",
)  # fmt: skip
