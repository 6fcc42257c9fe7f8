"""verl: the JSONL of `trainer.rollout_data_dir` and `trainer.validation_data_dir`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_token_roles, read_number
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Record, first_fields, json_fields, json_records
from rlpost.formats.rows import OtherFields, Row, infer_other_fields, record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


_OWN = ("input", "output", "score", "step", "uid", "request_id")
_NEEDED = {"input", "output", "score", "step"}
_UID_PARTS = 3


def sniff(path: Path) -> bool:
    """Return whether the first record has the combination of fields of this writer."""
    fields = first_fields(path)
    return fields.keys() >= _NEEDED and isinstance(fields["input"], str)


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the dump as canonical columns; a DataError names the bad record."""
    # Every list of the reward function becomes a field, so names and types differ between runs.
    others = infer_other_fields(
        json_fields(path), {*_OWN, *options.omitted_columns}, integers=False
    )
    return others.add_missing_columns(
        record_batches(_rows(path, options, others), options, others.column_types)
    )


def _rows(path: Path, options: ReadOptions, others: OtherFields) -> Iterator[Row]:
    for record in json_records(path):
        prompt = record.text("input")
        if not record.has("uid"):
            options.stats.sources["prompt_id"] = f"input ({SAME_TEXT})"
        values: dict[str, Any] = {
            "step": record.integer("step"),
            **_keys(record, prompt),
            "reward": read_number(record, "score"),
            "prompt": prompt,
            "response": record.text("output"),
            **others.values(record.fields),
        }
        yield apply_map(Row(record.where, values), record, options.map)


def _keys(record: Record, prompt: str) -> dict[str, Any]:
    """Return the keys of group, rollout and sample from `uid`, or from the prompt's text.

    The newer trainer writes `{uid}_{session}_{index}`: the prompt's uid, the rollout, and the
    output, because a rollout can have several. Any other uid is the prompt's.
    """
    request = record.text("request_id") if record.has("request_id") else None
    if not record.has("uid"):
        return {"prompt_id": text_key(prompt), "rollout_id": request}
    uid = record.text("uid")
    parts = uid.rsplit("_", 2)
    if len(parts) == _UID_PARTS and parts[1].isdecimal() and parts[2].isdecimal():
        return {"prompt_id": parts[0], "rollout_id": uid.rpartition("_")[0], "sample_id": uid}
    return {"prompt_id": uid, "rollout_id": request}


FORMAT = Format(
    name="verl",
    title="verl {step}.jsonl of rollout_data_dir and validation_data_dir",
    suffixes=(".jsonl",),
    roles=("group", "reward", "batch"),
    missing_roles=no_token_roles("verl"),
    sniff=sniff,
    read=read,
    source="verl 0.5 to 0.8, RayPPOTrainer._dump_generations and the v1 trainer",
    options=("map",),
    fields={"prompt_id": "uid", "reward": "score", "step": "step"},
    role_notes={
        "group": "Without a uid, a group is the responses of one step whose prompts are the same "
        "text."
    },
)
