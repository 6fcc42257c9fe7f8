"""slime: `train_data/{rollout_id}.pt`, what the trainer had and computed for one rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import SAME_TOKENS, apply_map, prompt_key
from rlpost.formats.layout import check_blocks, numbers
from rlpost.formats.pickles import first_texts
from rlpost.formats.rows import Row, batches
from rlpost.formats.samples import mask_list, plain, response_list, split_tokens
from rlpost.formats.slime_rollout import dump_of, samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


LISTS = {
    "log_probs": "old_log_probs",
    "ref_log_probs": "ref_log_probs",
    "rollout_log_probs": "infer_log_probs",
    "teacher_log_probs": "teacher_log_probs",
    "values": "values",
    "entropy": "entropy",
    "advantages": "dumped_advantages",
    "returns": "dumped_returns",
}
"""Field -> column. `log_probs` is of the policy before the update, so it is the old one."""
_VERSION = 2


def sniff(path: Path) -> bool:
    """Whether the pickle begins as slime's train dumps do."""
    return first_texts(path)[:4] == ["format_version", "rollout_id", "rank", "samples"]


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The samples of one rollout, in the rollout's order."""
    return batches(_rows(path, options), options)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    dump = dump_of(path, ("format_version", "rollout_id", "samples"))
    if options.group_size is not None:
        options.told.sources["prompt_id"] = f"blocks of {options.group_size} records"
    if dump["format_version"] != _VERSION:
        raise DataError(
            f"{path}: format_version is {dump['format_version']!r}; {_VERSION} is what slime "
            "writes and rlpost reads"
        )
    rewards = dump.get("raw_reward")
    raw = None if rewards is None else numbers(str(path), "raw_reward", plain(rewards))
    count = 0
    for place, record in enumerate(samples_of(path, dump)):
        count += 1
        row = _row(record, options, place)
        row.values["step"] = dump["rollout_id"]
        row.values["reward"] = None if raw is None else _raw(record, raw, options)
        yield apply_map(row, record, options.map)
    if options.group_size is not None:
        check_blocks(str(path), count if raw is None else len(raw), options.group_size)


def _row(record: Record, options: ReadOptions, place: int) -> Row:
    length = record.whole("response_lengths")
    tokens = split_tokens(record, length)
    truncated = record.fields.get("truncated")
    lists = {column: response_list(record, name, length) for name, column in LISTS.items()}
    position = record.fields.get("rollout_position", place)
    prompt = tokens["prompt_token_ids"]
    return Row(
        record.where,
        {
            "prompt_id": (
                prompt_key(prompt) if options.group_size is None else position // options.group_size
            ),
            "rollout_id": record.fields.get("rollout_ids"),
            "sample_id": record.fields.get("sample_index"),
            "truncated": None if truncated is None else bool(truncated),
            "prompt_length": len(prompt),
            "response_length": length,
            "normalised_reward": _scalar(record, "rewards"),
            **tokens,
            "response_mask": mask_list(record, "loss_masks", length),
            **lists,
        },
    )


def _scalar(record: Record, name: str) -> float | None:
    value: Any = record.fields.get(name)
    return None if value is None else float(value)


def _raw(record: Record, rewards: Any, options: ReadOptions) -> float | None:
    """The reward before normalisation, which the dump keeps in the rollout's order."""
    if "reward" in options.map:
        return None
    position = record.fields.get("rollout_position")
    if not isinstance(position, int) or not 0 <= position < len(rewards):
        raise DataError(
            f"{record.where}: `rollout_position` is {position!r}, so none of the "
            f"{len(rewards)} entries of raw_reward, which are in the rollout's order, can be "
            "told to be its own; convert rollout_data/ instead, or leave rewards out with "
            "--map reward=none"
        )
    return float(rewards[position])


FORMAT = Format(
    name="slime-train",
    title="slime train_data/{rollout_id}.pt",
    suffixes=(".pt",),
    gives=(
        "group", "reward", "mask", "old_log_probs", "ref_log_probs", "infer_log_probs", "values",
        "batch", "truncated",
    ),
    lacks={
        "reward": "the dump has no raw_reward; its `rewards` are normalised already "
        "(kept as normalised_reward)",
        "log_probs": "the dump's log_probs are from before the update, and so the old ones",
        "old_log_probs": "the run kept no log_probs",
        "ref_log_probs": "the run had no reference model (no KL term)",
        "infer_log_probs": "the run kept no rollout_log_probs",
        "values": "the run had no critic",
    },
    sniff=sniff,
    read=read,
    takes=("map", "group_size"),
    source="slime/observability/train_data_utils.py save_debug_train_data, format_version 2",
    fields={
        **{column: name for name, column in LISTS.items()},
        "prompt_id": f"tokens ({SAME_TOKENS})", "reward": "raw_reward", "step": "rollout_id",
        "response_mask": "loss_masks", "truncated": "truncated",
    },
    note="The tensors are memory-mapped.",
    role_notes={
        "group": "Groups are the rows with the same prompt tokens; --group-size takes blocks."
    },
)  # fmt: skip
