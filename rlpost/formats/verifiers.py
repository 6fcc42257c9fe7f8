"""verifiers: `outputs/evals/*/*/results.jsonl` of an evaluation, and prime-rl's `train_rollouts`.

A record is a rollout. With the tokens of its trajectory, each call of the model is a row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format
from rlpost.formats.calls import CALLS, TYPES, ModelCall, call_rows, error_name
from rlpost.formats.containers import JSON
from rlpost.formats.fields import FILE_STEP, content_key, messages, read_text
from rlpost.formats.records import Field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record

_SAMPLES = {"example_id", "answer", "info", "task", "generation_ms", "timing"}


def _is_results(fields: Mapping[str, Any]) -> bool:
    known = fields.keys() >= {"prompt", "completion", "reward"}
    return known and len(_SAMPLES & fields.keys()) > 1


def _rows(records: Iterator[Record], _: ReadOptions) -> Iterator[Record]:
    """Yield the calls of records, with metrics among the fields, as older versions write them."""
    for record in records:
        metrics = record.find("metrics") or {}
        named = {f"metrics.{name}": value for name, value in metrics.items()}
        rollout = replace(record, fields={**record.fields, **named})
        yield from call_rows(rollout, _rollout(rollout), _calls(rollout))


def _rollout(record: Record) -> str:
    return record.find("trajectory_id") or record.where


def _group(record: Record) -> str:
    """Return a key of the task and `example_id`, which counts within a task.

    `id` is written out of order, so without an example a group is the rollouts with the same prompt
    and answer: the prompt of a game is the same in all.
    """
    example = record.find("example_id")
    if example is None:
        example = [record.find(x) for x in ("prompt", "answer", "info")]
    return content_key([record.find("task"), example])


def _error(record: Record) -> str | None:
    error = record.find("error")
    return record.find("error.error_chain_str") or (error if isinstance(error, str) else None)


def _calls(record: Record) -> list[ModelCall]:
    """Return the calls of a trajectory whose tokens are recorded."""
    calls = []
    for i, step in enumerate(record.find("trajectory") or ()):
        call = record.part(f"trajectory {i}", step)
        if tokens := call.find("tokens"):
            text = read_text(call, "completion") if "completion" in call else None
            values = {"response": text, "truncated": bool(tokens.get("is_truncated")),
                      "response_length": None}  # fmt: skip
            names = ("prompt_ids", "completion_ids", "completion_logprobs", "completion_mask")
            prompt, sampled, log_probs, mask = map(tokens.get, names)
            calls.append(ModelCall(call.where, prompt, sampled, log_probs, mask, values))
    if calls and record.find("is_truncated"):
        calls[-1].values["truncated"] = True
    return calls


FORMAT = Format(
    name="verifiers",
    title="verifiers outputs/evals/*/*/results.jsonl, and prime-rl train_rollouts.jsonl",
    source="verifiers 0.1.0 to 0.1.9, utils/eval_utils.py, types.py; prime-rl orchestrator",
    containers=(JSON,),
    sniff=_is_results,
    fields={
        **CALLS, "domain": "task", "reward": "reward", "truncated": "is_truncated",
        "prompt": messages("prompt"), "response": messages("completion"), "step": FILE_STEP,
        "prompt_id": Field("task | example_id | prompt | answer", _group),
        "rollout_id": Field("trajectory_id", _rollout),
        "failure": Field("error", lambda record: error_name(record.find("error.error | error"))),
        "error": Field("error", _error), "dumped_advantage": "advantage",
        "response_length": "token_usage.output_tokens",
    },
    lacks={
        "mask": "an evaluation records no token ids", "batch": "an evaluation has no steps",
        "infer_log_probs": "an evaluation records no log-probs", "failure": "", "domain": "",
        "truncated": "older versions do not record why a rollout ended",
    },
    rows=_rows,
    reads=frozenset({"metrics", "trajectory"}),
    types=TYPES,
    integers=False,
)  # fmt: skip
