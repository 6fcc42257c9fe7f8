"""SkyRL: the evaluation dumps of `trainer.dump_eval_results`, one JSONL file a data source."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map, no_tokens, number_of
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import first_fields, records
from rlpost.formats.rows import Row, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


_NEEDED = {"input_prompt", "output_response", "score"}
_FOLDER = re.compile(r"global_step_(\d+)_evals")


def sniff(path: Path) -> bool:
    """Whether the first record has the fields that only this writer writes together."""
    return first_fields(path).keys() >= _NEEDED


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The dump as canonical columns; a DataError names the record that does not fit."""
    return batches(_rows(path, options), options)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    folder = _FOLDER.fullmatch(path.absolute().parent.name)
    step = int(folder.group(1)) if folder else None
    for record in records(path):
        prompt = record.text("input_prompt")
        score = record.get("score")
        values: dict[str, Any] = {
            "step": step,
            "prompt_id": text_key(prompt),
            "domain": record.text("data_source") if record.has("data_source") else None,
            "reward": number_of(record, "score"),
            # A score a token says how long the response is.
            "response_length": len(score) if isinstance(score, list) else None,
            "finish_reason": record.text("stop_reason") if record.has("stop_reason") else None,
            "prompt": prompt,
            "response": record.text("output_response"),
            "env_class": record.fields.get("env_class"),
            "env_extras": json.dumps(record.fields.get("env_extras"), ensure_ascii=False),
        }
        yield apply_map(Row(record.where, values), record, options.map)


FORMAT = Format(
    name="skyrl-eval",
    title="SkyRL dumped_evals/global_step_{N}_evals/{data_source}.jsonl",
    suffixes=(".jsonl",),
    gives=("group", "reward", "batch", "domain", "truncated"),
    lacks={
        "batch": "the folder's name gives the step (global_step_{N}_evals), and this one has none",
        "truncated": "the stop reasons in this dump are null",
        **no_tokens("SkyRL's evaluation"),
    },
    sniff=sniff,
    read=read,
    source="SkyRL 0.3, skyrl_train/utils/trainer_utils.py, dump_per_dataset_eval_results",
    takes=("map",),
    fields={
        "prompt_id": f"input_prompt ({SAME_TEXT})", "reward": "score", "domain": "data_source",
        "step": "the folder's name", "finish_reason": "stop_reason",
    },
    role_notes={"group": "A group is the rows of one step whose prompts have the same text."},
)  # fmt: skip
