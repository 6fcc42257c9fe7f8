"""slime (and miles): `rollout_data/{rollout_id}.pt`, the samples of one rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map
from rlpost.formats.pickles import first_texts, load
from rlpost.formats.records import described, record_of
from rlpost.formats.rows import batches
from rlpost.formats.samples import plain_record, sample_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record
    from rlpost.formats.rows import Row


def sniff(path: Path) -> bool:
    """Whether the pickle begins with a rollout id and samples that know their response."""
    texts = first_texts(path)
    return texts[:1] == ["rollout_id"] and {"samples", "response_length", "group_index"} <= {*texts}


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The samples of one rollout, which is one step."""
    return batches(_rows(path, options), options)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    step, samples = rollout(path)
    for record in samples:
        yield apply_map(sample_row(record, step, options), record, options.map)


def rollout(path: Path) -> tuple[int, Iterator[Record]]:
    """The rollout's number and its samples, as they are in the file.

    Raises:
        DataError: not the object that slime saves, or one with code in it.
    """
    dump = dump_of(path, ("rollout_id", "samples"))
    if not isinstance(dump["rollout_id"], int):
        raise DataError(f"{path}: `rollout_id` is {dump['rollout_id']!r}; a number is needed")
    return dump["rollout_id"], samples_of(path, dump)


def dump_of(path: Path, needed: tuple[str, ...]) -> dict[str, Any]:
    """The dictionary that a .pt file holds; a DataError if it lacks what is needed."""
    dump = load(path)
    if not isinstance(dump, dict):
        raise DataError(f"{path}: holds a {type(dump).__name__}; a dictionary is needed")
    for name in needed:
        if name not in dump:
            there = ", ".join(map(str, dump)) or "nothing"
            raise DataError(f"{path}: has no {name!r}; it has {there}")
    return dump


def samples_of(path: Path, dump: dict[str, Any]) -> Iterator[Record]:
    """The samples of a dump as records.

    Raises:
        DataError: they are no list, or one is no dictionary.
    """
    samples = dump["samples"]
    if not isinstance(samples, list):
        raise DataError(f"{path}: `samples` is {described(samples)}; a list is needed")
    return (
        plain_record(record_of(f"{path}, sample {place}", one)) for place, one in enumerate(samples)
    )


FORMAT = Format(
    name="slime-rollout",
    title="slime and miles rollout_data/{rollout_id}.pt",
    suffixes=(".pt",),
    gives=("group", "reward", "mask", "infer_log_probs", "batch", "truncated"),
    lacks={
        "infer_log_probs": "the rollout kept none (rollout_log_probs is empty)",
        "log_probs": "the rollout is dumped before the update, whose log-probs are asked for",
        "old_log_probs": "the trainer's log-probs are in train_data/, not in rollout_data/",
        "ref_log_probs": "the reference's log-probs are in train_data/, not in rollout_data/",
        "values": "the critic's values are in train_data/, not in rollout_data/",
    },
    sniff=sniff,
    read=read,
    takes=("map",),
    source="slime/observability/rollout_data_utils.py save_debug_rollout_data (2026)",
    fields={
        "prompt_id": "group_index", "reward": "reward", "response_mask": "loss_mask",
        "infer_log_probs": "rollout_log_probs", "step": "rollout_id", "finish_reason": "status",
    },
    note="A .pt file is one object: tensors are memory-mapped, lists are held whole.",
)  # fmt: skip
