"""NeMo-Gym: `rollouts.jsonl` of `gym eval run`, with `rollouts_failures.jsonl` beside it.

A record is one rollout: the verified response, whose output has an item for each call of the model.
The failures have a record for each attempt.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rlpost.formats.base import Format
from rlpost.formats.calls import CALLS, TYPES, ModelCall, call_rows
from rlpost.formats.containers import JSON, json_records
from rlpost.formats.fields import content_key, joined_text
from rlpost.formats.records import Field, Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions

_TASK, _ROLLOUT, _CLASS = "_ng_task_index", "_ng_rollout_index", "_ng_failure_class"
_ATTEMPT, _INPUT, _FAILED = "_ng_attempt_index", "responses_create_params", "_failed"
_SIDECAR = "_failures"
_SAMPLED = "generation_token_ids"


def _is_rollouts(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of a rollout, or of one that failed."""
    return fields.keys() >= {_INPUT, "response"} and not {_TASK, "reward"}.isdisjoint(fields)


def rollouts_of(failures: Path) -> Path | None:
    """Return the file of rollouts beside a file of failures; None of another file."""
    if not failures.stem.endswith(_SIDECAR):
        return None
    file = failures.with_name(failures.stem.removesuffix(_SIDECAR) + failures.suffix)
    return file if file.is_file() else None


def _rows(records: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield the calls of rollouts, and then the failures beside them, numbered."""
    file = Path()
    for record in records:
        file = Path(record.file)
        yield from call_rows(record, _rollout(record), _calls(record))
    failures = file.with_name(f"{file.stem}{_SIDECAR}{file.suffix}") if file.name else file
    for attempt, record in enumerate(json_records(failures) if failures.is_file() else (), 1):
        failed = replace(record, fields={**record.fields, _FAILED: attempt})
        yield from call_rows(failed, _rollout(failed), [])


def _task(record: Record) -> str:
    if record.find(_TASK) is not None:
        return str(record.typed(_TASK, int))
    return content_key(record.nested(_INPUT).get("input"))


def _rollout(record: Record) -> str:
    """Return the id of a rollout; a failed attempt is one of its own."""
    number = record.find(_ROLLOUT)
    failed = f":failure {record.find(_FAILED)}" if _FAILED in record else ""
    return f"{_task(record)}:{record.where if number is None else number}{failed}"


def _calls(record: Record) -> list[ModelCall]:
    """Return the items of the output that the model sampled; one without ids has all texts."""
    if record.find(_CLASS):
        return []
    response = record.nested("response")
    output = response.typed("output", list)
    while output and isinstance(output[-1], list):  # of each step, with those before it
        output = output[-1]
    items = [response.part(f"output item {i}", item) for i, item in enumerate(output)]
    calls = [
        ModelCall(item.where, item.typed("prompt_token_ids", list), item.typed(_SAMPLED, list),
                  item.typed("generation_log_probs", list), values={"response": _text(item)})
        for item in items if item.find(_SAMPLED)
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
        return item.typed("arguments", str)
    return joined_text(item.find("content")) if item.find("role") == "assistant" else ""


FORMAT = Format(
    name="nemo-gym",
    title="NeMo-Gym rollouts.jsonl, with rollouts_failures.jsonl beside it",
    containers=(JSON,),
    lacks={
        "mask": "the model server returned no token ids: set return_token_id_information",
        "infer_log_probs": "the model server returned no log-probs",
        "agent_role": "", "failure": "",
    },
    sniff=_is_rollouts,
    rows=_rows,
    reads=frozenset({"response", "_ng_failure_terminal", _FAILED}),
    integers=False,  # scores of the environment: their types differ between files
    types={**TYPES, "sample_loss_mask": pa.float64(), "attempt": pa.int64()},
    part_of=rollouts_of,
    source="nemo-gym 0.4.0 rollout_collection.py, base_resources_server.py, openai_utils.py",
    fields={
        **CALLS, "failure": _CLASS, "error": "error_message", "agent_role": "agent_ref.name",
        "attempt": Field(_ATTEMPT, lambda record: record.find(_ATTEMPT) or 0),
        "prompt_id": Field(f"{_TASK} | {_INPUT}", _task),
        "rollout_id": Field(f"{_TASK} | {_ROLLOUT}", _rollout),
        "reward": Field("reward", lambda record: record.find("reward") if record.find(_CLASS)
                        else record.get("reward")),
        "sample_loss_mask": Field("mask_sample | instance_config.mask_sample", lambda record: float(
            not (record.find("mask_sample") or record.find("instance_config.mask_sample")))),
        "truncated": Field("response.incomplete_details", lambda _: None),
    },
    note="Each call of the model is a row, and a rollout counts once; --unit row counts calls.",
)  # fmt: skip
