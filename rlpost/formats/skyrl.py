"""SkyRL: the evaluation dumps of `trainer.dump_eval_results`, one file per data source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format, has
from rlpost.formats.containers import JSON
from rlpost.formats.fields import no_token_roles, read_number
from rlpost.formats.keys import SAME_TEXT, text_key
from rlpost.formats.records import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_NEEDED = {"input_prompt", "output_response", "score"}
_FOLDER = re.compile(r"global_step_(\d+)_evals")


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    for record in records:
        folder = _FOLDER.fullmatch(Path(record.file).absolute().parent.name)
        prompt = record.text("input_prompt")
        score = record.get("score")
        values: dict[str, Any] = {
            "step": int(folder.group(1)) if folder else None,
            "prompt_id": text_key(prompt),
            "domain": record.text("data_source") if record.has("data_source") else None,
            "reward": read_number(record, "score"),
            # A list of scores has one entry per token of the response.
            "response_length": len(score) if isinstance(score, list) else None,
            "finish_reason": record.text("stop_reason") if record.has("stop_reason") else None,
            "prompt": prompt,
            "response": record.text("output_response"),
            "env_class": record.fields.get("env_class"),
            "env_extras": json.dumps(record.fields.get("env_extras"), ensure_ascii=False),
        }
        yield Row(record, values)


FORMAT = Format(
    name="skyrl-eval",
    title="SkyRL dumped_evals/global_step_{N}_evals/{data_source}.jsonl",
    containers=(JSON,),
    roles=("group", "reward", "batch", "domain", "truncated"),
    missing_roles={
        "batch": "the step is read from the folder name (global_step_{N}_evals), and this name has "
        "none",
        "truncated": "the stop reasons in this dump are null",
        **no_token_roles("SkyRL's evaluation"),
    },
    sniff=has(*_NEEDED),
    rows=_rows,
    by_record=True,
    source="SkyRL 0.3, skyrl_train/utils/trainer_utils.py, dump_per_dataset_eval_results",
    options=("map",),
    fields={
        "prompt_id": f"input_prompt ({SAME_TEXT})", "reward": "score", "domain": "data_source",
        "step": "the folder name", "finish_reason": "stop_reason",
    },
    role_notes={"group": "A group is the responses of one step whose prompts are the same text."},
)  # fmt: skip
