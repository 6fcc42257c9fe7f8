"""NeMo-Gym: `rollouts.jsonl` of `gym eval run`, with `rollouts_failures.jsonl` beside it.

A record is one rollout: the verified response, whose output has an item for each call of the model.
The failures have a record for each attempt.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.base import Format
from rlpost.formats.calls import FIELDS, TYPES, ModelCall, call_rows
from rlpost.formats.containers import JSON
from rlpost.formats.containers.json_text import json_records
from rlpost.formats.keys import SAME_TEXT, content_key
from rlpost.formats.records import as_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record, Row

_TASK, _ROLLOUT, _CLASS = "_ng_task_index", "_ng_rollout_index", "_ng_failure_class"
_ATTEMPT, _INPUT = "_ng_attempt_index", "responses_create_params"
_SIDECAR = "_failures"
_SAMPLED = "generation_token_ids"
_OWN = frozenset({
    "responses_create_params", "response", "reward", "mask_sample", "agent_ref", "error_message",
    "instance_config",
    _TASK, _ROLLOUT, _CLASS, _ATTEMPT, "_ng_failure_terminal",
})  # fmt: skip


def _is_rollouts(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a rollout, or of one that failed."""
    return fields.keys() >= {_INPUT, "response"} and not {_TASK, "reward"}.isdisjoint(fields)


def rollouts_of(failures: Path) -> Path | None:
    """Return the file of rollouts beside a file of failures; None of another file."""
    if not failures.stem.endswith(_SIDECAR):
        return None
    file = failures.with_name(failures.stem.removesuffix(_SIDECAR) + failures.suffix)
    return file if file.is_file() else None


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    file = None
    for record in records:
        file = Path(record.file)
        yield from _rollout(record, options)
    failures = None if file is None else file.with_name(f"{file.stem}{_SIDECAR}{file.suffix}")
    failed = json_records(failures) if failures and failures.is_file() else iter(())
    for attempt, record in enumerate(failed, 1):
        yield from _rollout(record, options, f":failure {attempt}")


def _rollout(record: Record, options: ReadOptions, failed: str = "") -> Iterator[Row]:
    """Yield the calls of a rollout; a failed attempt is a rollout of its own."""
    find, failure = record.find, record.find(_CLASS)
    if record.has(_TASK):
        task = str(record.integer(_TASK))
    else:  # a key of the input
        options.stats.sources["prompt_id"] = f"{_INPUT}.input ({SAME_TEXT})"
        task = content_key(record.nested(_INPUT).get("input"))
    number = record.integer(_ROLLOUT) if record.has(_ROLLOUT) else record.where
    facts = {
        "prompt_id": task,
        "rollout_id": f"{task}:{number}{failed}",
        "attempt": find(_ATTEMPT) or 0,
        "reward": find("reward") if failure else record.number("reward"),
        "agent_role": find("agent_ref.name"),
        "sample_loss_mask": float(not (find("mask_sample") or find("instance_config.mask_sample"))),
        "failure": failure,
        "error": find("error_message"),
    }
    yield from call_rows(record, facts, () if failure else _calls(record))


def _calls(record: Record) -> list[ModelCall]:
    """Return the items of the output that the model sampled; one without ids has all texts."""
    response = record.nested("response")
    output = response.array("output")
    while output and isinstance(output[-1], list):  # of each step, with those before it
        output = output[-1]
    items = [
        as_record(f"{response.where}, output item {i}", item, record.file)
        for i, item in enumerate(output)
    ]
    calls = [
        ModelCall(item.where, item.array("prompt_token_ids"), item.array(_SAMPLED),
                  item.array("generation_log_probs"), values={"response": _text(item)})
        for item in items if item.fields.get(_SAMPLED)
    ]  # fmt: skip
    if not calls:
        texts = {"response": "".join(map(_text, items)),
                 "response_length": response.find("usage.output_tokens")}  # fmt: skip
        calls = [ModelCall(response.where, values=texts)]
    cut = response.find("incomplete_details.reason") or "stop"
    for call in calls:
        call.values["finish_reason"] = cut if call is calls[-1] else "stop"
    return calls


def _text(item: Record) -> str:
    """Return the text of a message, or the arguments of a tool call; none of another item."""
    if item.find("type") == "function_call":
        return item.text("arguments")
    content = item.find("content") if item.find("role") == "assistant" else None
    return "".join(part.get("text") or "" for part in content or ())


_NONE = "NeMo-Gym has no trainer"

FORMAT = Format(
    name="nemo-gym",
    title="NeMo-Gym rollouts.jsonl, with rollouts_failures.jsonl beside it",
    containers=(JSON,),
    missing_roles={
        "mask": "the model server returned no token ids: set return_token_id_information",
        "infer_log_probs": "the model server returned no log-probs",
        "agent_role": "",
        "batch": "NeMo-Gym has no training steps",
        **dict.fromkeys(("log_probs", "old_log_probs", "ref_log_probs", "values"), _NONE),
    },
    sniff=_is_rollouts,
    rows=_rows,
    reads=_OWN,
    integers=False,  # scores of the environment: their types differ between files
    types={**TYPES, "sample_loss_mask": pa.float64(), "attempt": pa.int64()},
    part_of=rollouts_of,
    source="nemo-gym 0.4.0 rollout_collection.py, base_resources_server.py, openai_utils.py",
    fields={
        **FIELDS,
        "prompt_id": _TASK, "rollout_id": f"{_TASK} and {_ROLLOUT}", "attempt": _ATTEMPT,
        "reward": "reward",
        "sample_loss_mask": "mask_sample", "failure": _CLASS, "agent_role": "agent_ref.name",
        "response_mask": f"{_SAMPLED} (all)", "truncated": "incomplete_details",
        "response_token_ids": _SAMPLED, "prompt_token_ids": "prompt_token_ids",
        "infer_log_probs": "generation_log_probs",
    },
    note="Each call of the model is a row, and a rollout counts once; --unit row counts calls.",
)  # fmt: skip
