"""verl: the JSONL of `trainer.rollout_data_dir` and `trainer.validation_data_dir`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlpost.formats.base import Field, Format
from rlpost.formats.containers import JSON
from rlpost.formats.fields import no_token_roles
from rlpost.formats.keys import SAME_TEXT, text_key

if TYPE_CHECKING:
    from rlpost.formats.records import Record


_NEEDED = {"input", "output", "score", "step"}
_UID = re.compile(r"(?P<prompt_id>.+)_(?P<session>\d+)_(?P<index>\d+)", re.DOTALL)
"""Of the newer trainer: the prompt's uid, the rollout, and the output, as it can have several."""


def _prompt(record: Record) -> str:
    uid = str(record.find("uid") or "")
    match = _UID.fullmatch(uid)
    return match["prompt_id"] if match else uid or text_key(record.text("input"))


def _rollout(record: Record) -> str | None:
    uid = str(record.find("uid") or "")
    return uid.rpartition("_")[0] if _UID.fullmatch(uid) else record.find("request_id")


def _sample(record: Record) -> str | None:
    uid = str(record.find("uid") or "")
    return uid if _UID.fullmatch(uid) else None


FORMAT = Format(
    name="verl",
    title="verl {step}.jsonl of rollout_data_dir and validation_data_dir",
    source="verl 0.5 to 0.9.1, RayPPOTrainer._dump_generations and the v1 trainer",
    containers=(JSON,),
    sniff=lambda fields: fields.keys() >= _NEEDED and isinstance(fields["input"], str),
    fields={
        "prompt": "input", "response": "output", "reward": "score", "step": "step",
        "prompt_id": Field(f"uid, or input ({SAME_TEXT})", _prompt),
        "rollout_id": Field("uid, or request_id", _rollout), "sample_id": Field("uid", _sample),
    },
    missing_roles={**no_token_roles("verl"), "rollout": ""},
    reads=frozenset({"uid", "request_id"}),
    integers=False,  # fields of the reward function: their types differ between runs
)  # fmt: skip
