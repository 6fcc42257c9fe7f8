"""verl: the JSONL of `trainer.rollout_data_dir` and `trainer.validation_data_dir`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_tokens, number_of
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Record, first_fields, records
from rlpost.formats.rows import Extras, Row, batches, extras_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


_OWN = ("input", "output", "score", "step", "uid", "request_id")
_NEEDED = {"input", "output", "score", "step"}
_UID_PARTS = 3


def sniff(path: Path) -> bool:
    """Whether the first record has the fields that only this writer writes together."""
    fields = first_fields(path)
    return fields.keys() >= _NEEDED and isinstance(fields["input"], str)


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The dump as canonical columns; a DataError names the record that does not fit."""
    # Every list of the reward function becomes a field, so names and types vary from run to run.
    extras = extras_of(
        (record.fields for record in records(path)), {*_OWN, *options.left_out}, integers=False
    )
    return extras.kept_in(batches(_rows(path, options, extras), options, extras.column_types))


def _rows(path: Path, options: ReadOptions, extras: Extras) -> Iterator[Row]:
    for record in records(path):
        prompt = record.text("input")
        if not record.has("uid"):
            options.told.sources["prompt_id"] = f"input ({SAME_TEXT})"
        values: dict[str, Any] = {
            "step": record.whole("step"),
            **_keys(record, prompt),
            "reward": number_of(record, "score"),
            "prompt": prompt,
            "response": record.text("output"),
            **extras.values(record.fields),
        }
        yield apply_map(Row(record.where, values), record, options.map)


def _keys(record: Record, prompt: str) -> dict[str, Any]:
    """Group, rollout and sample: from `uid` where there is one, else from the prompt's text.

    The newer trainer writes `{uid}_{session}_{index}`: a prompt's uid, one of its rollouts, and
    one of the outputs that the rollout was cut into. Other uids name the prompt.
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
    gives=("group", "reward", "batch"),
    lacks=no_tokens("verl"),
    sniff=sniff,
    read=read,
    source="verl 0.5 to 0.8, RayPPOTrainer._dump_generations and the v1 trainer",
    takes=("map",),
    fields={"prompt_id": "uid", "reward": "score", "step": "step"},
    role_notes={
        "group": "Without a uid, a group is the rows of one step whose prompts have the same text."
    },
)
