"""slime: rollout samples (`rollout_data/{rollout_id}.pt`) and trainer samples (`train_data/`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.base import Format, Version
from rlpost.formats.containers import PICKLE
from rlpost.formats.containers.tables import pickle_records
from rlpost.formats.exported import decode
from rlpost.formats.fields import apply_map
from rlpost.formats.keys import SAME_TOKENS, check_blocks, prompt_key
from rlpost.formats.layout import as_mask, as_vector, check_length, check_token_count
from rlpost.formats.records import Record, Row, as_record, describe
from rlpost.formats.rows import MOST_ROWS, check_finite, record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions


FINISHED = {"truncated": "length", "completed": "stop"}


TRAIN_LISTS = {
    "log_probs": "old_log_probs",
    "ref_log_probs": "ref_log_probs",
    "rollout_log_probs": "infer_log_probs",
    "teacher_log_probs": "teacher_log_probs",
    "values": "values",
    "entropy": "entropy",
    "kl": "dumped_kl",
    "advantages": "dumped_advantages",
    "returns": "dumped_returns",
}
"""Field -> column. `log_probs` is of the policy before the update, so it is old_log_probs.

`kl` is not masked; slime stores zeros if no KL penalty is in the rewards.
"""


RANK = "data_parallel_rank"
"""The rank of the trainer that had a response. Advantages are whitened over all ranks."""

EXPORTED = "rlpost"
"""Key of what `rlpost export` adds to a dump, and to the metadata of a sample."""


def read_rollout(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the samples of one rollout, which is one step.

    Samples that `rlpost export` wrote have the columns that were exported, in their types.
    """
    dump = dump_of(path, ("rollout_id", "samples"))
    if not options.map and EXPORTED in dump:
        return _exported(dump, options)
    step, samples = rollout(dump)
    rows = (apply_map(sample_row(one, step, options), options.map) for one in samples)
    return record_batches(rows, options)


def _exported(dump: Record, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the columns of an export; `rlpost.formats.targets.slime` documents where they are."""
    stored, records = dump.fields[EXPORTED], list(samples_of(dump))
    try:
        schema = decode(stored["schema"])
        for first in range(0, len(records), MOST_ROWS):
            part = records[first : first + MOST_ROWS]
            columns = [
                pa.array([_exported_value(one, name, stored["fields"]) for one in part], kind)
                for name, kind in zip(schema.names, schema.types, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            if options.nonfinite == "error":
                check_finite(batch, [one.where for one in part].__getitem__)
            yield batch
    except MemoryError:  # an ArrowException, too, but not about the data
        raise
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{dump.where}: damaged: `{EXPORTED}` does not describe the samples ({error})"
        ) from None


def _exported_value(record: Record, column: str, fields: dict[str, str]) -> Any:
    """Return the value of a column, from the field of the sample that has it."""
    if column not in fields:
        return plain(record.fields["metadata"][EXPORTED][column])
    item, _, field = fields[column].partition(":")
    if item.endswith("token_ids"):
        return split_tokens(record, record.integer("response_length"))[item]
    if field.startswith("train_metadata."):
        return plain(record.fields["train_metadata"][item])
    return record.fields[field]


def rollout(dump: Record) -> tuple[int, Iterator[Record]]:
    """Return the rollout's number and its samples, in the order of the file.

    Raises:
        DataError: the object is not one that slime saves, or contains code.
    """
    if not isinstance(number := dump.fields["rollout_id"], int):
        raise DataError(f"{dump.where}: `rollout_id` is {number!r}; a number is needed")
    return number, samples_of(dump)


def sample_row(record: Record, step: int | None, options: ReadOptions) -> Row:
    """Return one sample of a rollout dump as a row."""
    length = record.integer("response_length")
    status = record.fields.get("status")
    prompt = record.fields.get("prompt")
    tokens = split_tokens(record, length)
    return Row(
        record,
        {
            "step": step,
            "prompt_id": group_of(record, tokens["prompt_token_ids"]),
            "rollout_id": record.fields.get("rollout_id"),
            "sample_id": record.fields.get("index"),
            "reward": reward_of(record, options),
            "finish_reason": FINISHED.get(str(status), status),
            "dumped_sample_mask": float(not record.fields.get("remove_sample", False)),
            "policy_version": _version(record),
            "prompt": prompt if isinstance(prompt, str) else _chat(prompt),
            "response": record.fields.get("response"),
            "prompt_length": len(tokens["prompt_token_ids"]),
            "response_length": length,
            **tokens,
            "response_mask": mask_list(record, "loss_mask", length),
            "infer_log_probs": response_list(record, "rollout_log_probs", length),
            "teacher_log_probs": response_list(record, "teacher_log_probs", length),
        },
    )


def _version(record: Record) -> object:
    """Return the version of the weights that sampled the first turn, which is the oldest."""
    versions = record.fields.get("weight_versions") or [None]
    return versions[0]


def _chat(messages: object) -> str | None:
    """Return a prompt of messages as text: their contents, in order."""
    if not isinstance(messages, list):
        return None
    contents = (one.get("content") for one in messages if isinstance(one, dict))
    return "\n".join(text for text in contents if isinstance(text, str))


def _train_rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    """Yield the trainer's samples of one rollout, in the order of the rollout."""
    for dump in records:
        check_keys(dump, ("format_version", "rollout_id", "samples"))
        yield from _train_samples(dump, options)


def _train_samples(dump: Record, options: ReadOptions) -> Iterator[Row]:
    if options.group_size is not None:
        options.stats.sources["prompt_id"] = f"blocks of {options.group_size} records"
    rewards = dump.fields.get("raw_reward")
    raw = None if rewards is None else as_vector(dump.where, "raw_reward", plain(rewards))
    count = 0
    for position, record in enumerate(samples_of(dump)):
        count += 1
        row = _train_row(record, options, position)
        row.values["step"] = dump.fields["rollout_id"]
        row.values["reward"] = None if raw is None else _raw_reward(record, raw, options)
        yield row
    if options.group_size is not None:
        check_blocks(dump.where, count if raw is None else len(raw), options.group_size)


def _train_row(record: Record, options: ReadOptions, position: int) -> Row:
    length = record.integer("response_lengths")
    tokens = split_tokens(record, length)
    truncated = record.fields.get("truncated")
    lists = {column: response_list(record, name, length) for name, column in TRAIN_LISTS.items()}
    position = record.fields.get("rollout_position", position)
    prompt = tokens["prompt_token_ids"]
    return Row(
        record,
        {
            "prompt_id": (
                prompt_key(prompt) if options.group_size is None else position // options.group_size
            ),
            "rollout_id": record.fields.get("rollout_ids"),
            "sample_id": record.fields.get("sample_index"),
            "truncated": None if truncated is None else bool(truncated),
            "prompt_length": len(prompt),
            "response_length": length,
            "normalised_reward": _number_or_none(record, "rewards"),
            RANK: record.integer(RANK) if record.has(RANK) else None,
            **tokens,
            "response_mask": mask_list(record, "loss_masks", length),
            **lists,
        },
    )


def _number_or_none(record: Record, name: str) -> float | None:
    value: Any = record.fields.get(name)
    return None if value is None else float(value)


def _raw_reward(record: Record, rewards: Any, options: ReadOptions) -> float | None:
    """Return the reward before normalisation, which the dump stores in the rollout's order."""
    if "reward" in options.map:
        return None
    position = record.fields.get("rollout_position")
    if not isinstance(position, int) or not 0 <= position < len(rewards):
        raise DataError(
            f"{record.where}: `rollout_position` is {position!r}, so its entry among the "
            f"{len(rewards)} of raw_reward, which is in the rollout's order, is unknown; convert "
            "rollout_data/ instead, or omit rewards with --map reward=none"
        )
    return float(rewards[position])


def dump_of(path: Path, needed: tuple[str, ...]) -> Record:
    """Return the dictionary in a .pt file; raise DataError if it lacks a needed key."""
    return check_keys(next(pickle_records(path)), needed)


def check_keys(dump: Record, needed: tuple[str, ...]) -> Record:
    """Return a dump; raise DataError if it lacks a needed key."""
    for name in needed:
        if name not in dump:
            there = ", ".join(map(str, dump.fields)) or "nothing"
            raise DataError(f"{dump.where}: has no {name!r}; it has {there}")
    return dump


def samples_of(dump: Record) -> Iterator[Record]:
    """Return the samples of a dump as records.

    Raises:
        DataError: they are not a list, or one is not a dictionary.
    """
    samples = dump.get("samples")
    if not isinstance(samples, list):
        raise DataError(f"{dump.where}: `samples` is {describe(samples)}; a list is needed")
    return (
        plain_record(as_record(f"{dump.where}, sample {position}", one, dump.file))
        for position, one in enumerate(samples)
    )


def plain(value: Any) -> Any:
    """Return a tensor as an array, and a tensor or array of one number as that number."""
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        dense = value.detach()
        value = (dense.float() if "float16" in str(dense.dtype) else dense).numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def plain_record(record: Record) -> Record:
    """Return the record with plain Python numbers in place of pickled tensors and arrays."""
    fields = {
        name: {key: plain(one) for key, one in value.items()}
        if isinstance(value, dict)
        else plain(value)
        for name, value in record.fields.items()
    }
    return Record(record.where, fields, record.file)


def split_tokens(record: Record, length: int) -> dict[str, NDArray[Any]]:
    """Split `tokens` into the ids of the prompt and of the response.

    Raises:
        DataError: there are fewer tokens than the response length.
    """
    ids = as_vector(record.where, "tokens", record.get("tokens"))
    if not 0 <= length <= len(ids):
        raise DataError(
            f"{record.where}: the response length is {length}, but `tokens`, prompt and response "
            f"together, has {len(ids)} entries"
        )
    start = len(ids) - length
    return {"prompt_token_ids": ids[:start], "response_token_ids": ids[start:]}


def response_list(record: Record, name: str, length: int) -> NDArray[Any] | None:
    """Return a list with one entry per response token; None if it is missing or null.

    Raises:
        DataError: its length differs from the response length.
    """
    if not record.has(name):
        return None
    array = as_vector(record.where, name, record.get(name))
    check_length(record.where, name, array, length, "response_length")
    return array


def mask_list(record: Record, name: str, length: int) -> NDArray[np.uint8]:
    """Return the loss mask; all ones if it is missing."""
    if not record.has(name):
        return np.ones(check_token_count(record.where, "the response length", length), np.uint8)
    mask = as_mask(record.where, name, record.get(name))
    check_length(record.where, name, mask, length, "response_length")
    return mask


def reward_of(record: Record, options: ReadOptions) -> float | None:
    """Return the reward; None if `--map reward=reward.NAME` selects one of several.

    Raises:
        DataError: there are several and the map selects none.
    """
    value = record.get("reward")
    if not isinstance(value, dict):
        return None if value is None else record.number("reward")
    if "reward" in options.map:
        return None  # apply_map reads it
    if len(value) != 1:
        raise DataError(
            f"{record.where}: `reward` has the parts {', '.join(map(str, value))}; select one "
            "with --map reward=reward.NAME"
        )
    return record.nested("reward").number(str(next(iter(value))))


def group_of(record: Record, prompt: NDArray[Any]) -> object:
    """Return the prompt's number, or a key of its tokens if there is no number."""
    return record.get("group_index") if record.has("group_index") else prompt_key(prompt)


ROLLOUT = Format(
    name="slime-rollout",
    title="slime and miles rollout_data/{rollout_id}.pt",
    containers=(PICKLE,),
    roles=("group", "reward", "mask", "infer_log_probs", "batch", "truncated"),
    missing_roles={
        "infer_log_probs": "the rollout stored none (rollout_log_probs is empty)",
        "log_probs": "slime dumps the rollout before the update; log_probs are those after it",
        "old_log_probs": "the trainer's log-probs are in train_data/, not in rollout_data/",
        "ref_log_probs": "the reference's log-probs are in train_data/, not in rollout_data/",
        "values": "the critic's values are in train_data/, not in rollout_data/",
    },
    sniff=lambda fields: (
        [*fields][:1] == ["rollout_id"]
        and {"samples", "response_length", "group_index"} <= fields.keys()
    ),
    read=read_rollout,
    options=("map",),
    source="slime/observability/rollout_data_utils.py save_debug_rollout_data (2026)",
    fields={
        "prompt_id": "group_index", "reward": "reward", "response_mask": "loss_mask",
        "infer_log_probs": "rollout_log_probs", "step": "rollout_id", "finish_reason": "status",
    },
    note="A .pt file is one object: tensors are memory-mapped, lists are read into memory.",
)  # fmt: skip


TRAIN = Format(
    name="slime-train",
    title="slime train_data/{rollout_id}.pt",
    containers=(PICKLE,),
    roles=(
        "group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "values",
        "batch", "truncated",
    ),
    missing_roles={
        "reward": "the dump has no raw_reward; its `rewards` are already normalised "
        "(kept as normalised_reward)",
        "log_probs": "the dump's log_probs are from before the update, so they are old_log_probs",
        "old_log_probs": "the run stored no log_probs",
        "ref_log_probs": "the run had no reference model (no KL term)",
        "infer_log_probs": "the run stored no rollout_log_probs",
        "values": "the run had no critic",
    },
    sniff=lambda fields: (
        [*fields][:4] == ["format_version", "rollout_id", "rank", "samples"]
    ),
    rows=_train_rows,
    version=Version("format_version", (2,)),
    options=("map", "group_size"),
    source="slime/observability/train_data_utils.py save_debug_train_data, format_version 2",
    fields={
        **{column: name for name, column in TRAIN_LISTS.items()},
        "prompt_id": f"tokens ({SAME_TOKENS})", "reward": "raw_reward", "step": "rollout_id",
        "response_mask": "loss_masks", "truncated": "truncated",
    },
    note="Tensors are memory-mapped.",
    role_notes={
        "group": "A group is the responses with the same prompt tokens; --group-size N makes "
        "blocks of N records instead."
    },
)  # fmt: skip
