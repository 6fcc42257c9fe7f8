"""verifiers: `outputs/evals/*/*/results.jsonl` of an evaluation, and prime-rl's `train_rollouts`.

A record is a rollout. With the tokens of its trajectory, each call of the model is a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.calls import FIELDS, TYPES, ModelCall, call_rows, error_name
from rlpost.formats.containers import JSON
from rlpost.formats.fields import read_text
from rlpost.formats.keys import content_key
from rlpost.formats.records import Record, as_record
from rlpost.io.input_paths import step_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Row

_SAMPLES = {"example_id", "answer", "info", "task", "generation_ms", "timing"}


def _is_results(fields: Mapping[str, Any]) -> bool:
    known = fields.keys() >= {"prompt", "completion", "reward"}
    return known and len(_SAMPLES & fields.keys()) > 1


def _with_metrics(record: Record) -> Iterator[Record]:
    """Yield a record with its metrics among its fields, as older versions write them."""
    metrics = record.find("metrics")
    named = {f"metrics.{name}": x for name, x in metrics.items()} if metrics else {}
    yield Record(record.where, {**record.fields, **named}, record.file)


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    for record in records:
        calls = [*_calls(record)]
        if calls and record.find("is_truncated"):
            calls[-1].values["truncated"] = True
        yield from call_rows(record, _facts(record, calls), calls)


def _facts(record: Record, calls: list[ModelCall]) -> dict[str, Any]:
    """Return what is equal in all calls of a rollout.

    `example_id` counts within a task. `id` is written out of order, so without an example a group
    is the rollouts with the same prompt and answer: the prompt of a game is the same in all.
    """
    find, example, error = record.find, record.find("example_id"), record.find("error")
    if example is None:
        example = [find(x) for x in ("prompt", "answer", "info")]
    return {
        "step": step_key_of(record.file),
        "prompt_id": content_key([find("task"), example]),
        "rollout_id": find("trajectory_id") or record.where,
        "domain": find("task"),
        "reward": record.number("reward"),
        "truncated": find("is_truncated"),
        "prompt": read_text(record, "prompt"),
        "response": read_text(record, "completion") if len(calls) < 2 else None,  # noqa: PLR2004
        "response_length": None if calls else find("token_usage.output_tokens"),
        "dumped_advantage": find("advantage"),
        "failure": error_name(find("error.error") or error),
        "error": find("error.error_chain_str") or (error if isinstance(error, str) else None),
    }


def _calls(record: Record) -> Iterator[ModelCall]:
    """Yield the calls of a trajectory whose tokens are recorded."""
    for i, step in enumerate(record.find("trajectory") or ()):
        call = as_record(f"{record.where}, trajectory {i}", step, record.file)
        if tokens := call.find("tokens"):
            text = read_text(call, "completion") if call.has("completion") else None
            values = {"response": text, "truncated": bool(tokens.get("is_truncated"))}
            names = ("prompt_ids", "completion_ids", "completion_logprobs", "completion_mask")
            prompt, sampled, log_probs, mask = map(tokens.get, names)
            yield ModelCall(call.where, prompt, sampled, log_probs, mask, values)


FORMAT = Format(
    name="verifiers",
    title="verifiers outputs/evals/*/*/results.jsonl, and prime-rl train_rollouts.jsonl",
    source="verifiers 0.1.0 to 0.1.9, utils/eval_utils.py, types.py; prime-rl orchestrator",
    containers=(JSON,),
    sniff=_is_results,
    fields={
        **FIELDS, "prompt_id": "task and example_id, or prompt and answer", "domain": "task",
        "rollout_id": "trajectory_id, or the record", "reward": "reward", "failure": "error",
        "truncated": "is_truncated", "response_length": "token_usage.output_tokens",
        "response_mask": "trajectory.tokens", "infer_log_probs": "trajectory.tokens",
        "step": "the folder, step_N",
    },
    missing_roles={
        **dict.fromkeys(("log_probs", "old_log_probs", "ref_log_probs", "values"),
                        "verifiers does not train"),
        "mask": "an evaluation records no token ids", "batch": "an evaluation has no steps",
        "infer_log_probs": "an evaluation records no log-probs", "failure": "", "domain": "",
        "truncated": "older versions do not record why a rollout ended",
    },
    split=_with_metrics,
    rows=_rows,
    reads=frozenset({
        "prompt", "completion", "reward", "example_id", "task", "is_truncated", "error",
        "trajectory", "trajectory_id", "advantage", "token_usage", "metrics",
    }),
    types=TYPES,
    integers=False,
)  # fmt: skip
