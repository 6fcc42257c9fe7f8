"""verl: the JSONL of `trainer.rollout_data_dir` and `trainer.validation_data_dir`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlpost.formats.base import Format
from rlpost.formats.containers import JSON
from rlpost.formats.fields import GROUP_OF_TEXT
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from rlpost.formats.records import Record


_NEEDED = {"input", "output", "score", "step"}
_UID = re.compile(r"((.+)_\d+)_\d+", re.DOTALL)
"""Of the newer trainer: an output, of which a rollout can have several, the rollout, the prompt."""


def _uid(record: Record, part: int, otherwise: str = "") -> str | None:
    """Return a part of the uid, or another field of dumps whose uid has no parts."""
    match = _UID.fullmatch(str(record.find("uid") or ""))
    return match[part] if match else record.find(otherwise)


FORMAT = Format(
    name="verl",
    title="verl {step}.jsonl of rollout_data_dir and validation_data_dir",
    source="verl 0.5 to 0.9.1, RayPPOTrainer._dump_generations and the v1 trainer",
    containers=(JSON,),
    sniff=lambda fields: fields.keys() >= _NEEDED and isinstance(fields["input"], str),
    fields={
        "prompt": "input", "response": "output", "reward": "score", "step": "step",
        "prompt_id": Field(f"uid | input ({GROUP_OF_TEXT})", lambda x: _uid(x, 2, "uid")),
        "rollout_id": Field("uid | request_id", lambda x: _uid(x, 1, "request_id")),
        "sample_id": Field("uid", lambda x: _uid(x, 0)),
    },
    lacks={"rollout": ""},
    integers=False,  # fields of the reward function: their types differ between runs
)  # fmt: skip
