"""verl: the JSONL of `trainer.rollout_data_dir` and `trainer.validation_data_dir`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.containers import JSON
from rlpost.formats.fields import no_token_roles, read_number
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_OWN = frozenset({"input", "output", "score", "step", "uid", "request_id"})
_NEEDED = {"input", "output", "score", "step"}
_UID_PARTS = 3


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    for record in records:
        prompt = record.text("input")
        if not record.has("uid"):
            options.stats.sources["prompt_id"] = f"input ({SAME_TEXT})"
        values: dict[str, Any] = {
            "step": record.integer("step"),
            **_keys(record, prompt),
            "reward": read_number(record, "score"),
            "prompt": prompt,
            "response": record.text("output"),
        }
        yield Row(record, values)


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
    containers=(JSON,),
    roles=("group", "reward", "batch"),
    missing_roles=no_token_roles("verl"),
    sniff=lambda fields: fields.keys() >= _NEEDED and isinstance(fields["input"], str),
    rows=_rows,
    by_record=True,
    own=_OWN,
    integers=False,  # fields of the reward function: their types differ between runs
    source="verl 0.5 to 0.9.1, RayPPOTrainer._dump_generations and the v1 trainer",
    options=("map",),
    fields={"prompt_id": "uid", "reward": "score", "step": "step"},
    role_notes={
        "group": "Without a uid, a group is the responses of one step whose prompts are the same "
        "text."
    },
)
