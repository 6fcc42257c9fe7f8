"""OpenPipe ART: `trajectories/{split}/{step}.parquet`, groups of trajectories (format 2).

The JSON of a trajectory has histories of messages and of choices, which the policy sampled, or
exchanges that were captured of its client. Each choice is one call of the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlpost.formats.base import Format, Version, has
from rlpost.formats.calls import TYPES, ModelCall, call_rows
from rlpost.formats.containers import PARQUET, Contents
from rlpost.formats.records import as_record, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record, Row

_KEPT = ("metrics", "metadata", "group_metrics", "group_metadata")
_OWN = ("format_version", "group_index", "trajectory_index", "group_json", "trajectory_json",
        "reward")  # fmt: skip
_NAMED = "token_id:"
"""How vLLM begins the text of a token that it names by its id."""


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:  # noqa: ARG001
    for record in records:
        stem = Path(record.file).stem
        group = record.integer("group_index")
        keys = {"step": int(stem) if stem.isdecimal() else None, "prompt_id": str(group)}
        if not record.fields.get("trajectory_index"):  # the first of its group, or none
            yield from _failed(record, keys)
        if record.has("trajectory_json"):
            trajectory = _object(record, "trajectory_json")
            facts = {
                **keys,
                "rollout_id": f"{group}:{record.integer('trajectory_index')}",
                "reward": record.number("reward"),
                "policy_version": trajectory.fields.get("initial_policy_version"),
            }
            yield from call_rows(record, facts, _calls(trajectory))


def _object(record: Record, name: str) -> Record:
    """Return a column that has the JSON of an object."""
    where = f"{record.where}, `{name}`"
    return as_record(where, parse_json(where, record.text(name).encode()), record.file)


def _failed(record: Record, keys: dict[str, Any]) -> Iterator[Row]:
    """Yield a row without tokens for each trajectory of a group that raised an exception."""
    for i, error in enumerate(_object(record, "group_json").fields.get("exceptions") or ()):
        facts = {**keys, "rollout_id": f"{keys['prompt_id']}:exception {i}",
                 "failure": error.get("type"), "error": error.get("message")}  # fmt: skip
        yield from call_rows(record, facts, ())


def _calls(trajectory: Record) -> Iterator[ModelCall]:
    """Yield the choices of each history, then of each exchange.

    Raises:
        DataError: a choice lacks ids or log-probs of some of its tokens.
    """
    for history in (trajectory.fields, *(trajectory.fields.get("additional_histories") or ())):
        messages = history.get("messages_and_choices") or []
        for i, message in enumerate(messages):
            if "finish_reason" in message:
                yield _call(trajectory, message, [_message(one) for one in messages[:i]])
    exchanges = trajectory.fields.get("exchanges") or {}
    for other in exchanges.keys() - {"chat_completions"}:
        if exchanges[other]:
            needed = "no exchanges but those of chat completions"
            raise trajectory.error(f"exchanges.{other}", exchanges[other], needed)
    for one in exchanges.get("chat_completions") or ():
        for choice in one["response"]["choices"]:
            yield _call(trajectory, choice, one["request"].get("messages") or [], one["response"])


def _message(one: dict[str, Any]) -> dict[str, Any]:
    return one["message"] if "finish_reason" in one else one


def _call(
    trajectory: Record, choice: dict[str, Any], prompt: list[Any], response: Any = None
) -> ModelCall:
    entries = (choice.get("logprobs") or {}).get("content")
    ids = choice.get("token_ids")
    if ids is None and entries and all(x["token"].startswith(_NAMED) for x in entries):
        ids = [int(x["token"].removeprefix(_NAMED)) for x in entries]
    asked = choice.get("prompt_token_ids") or (response or {}).get("prompt_token_ids")
    return ModelCall(
        trajectory.where,
        asked,
        ids,
        None if ids is None or entries is None else [x["logprob"] for x in entries],
        {
            "prompt": json.dumps(prompt, ensure_ascii=False),
            "response": choice["message"].get("content"),
            "finish_reason": choice.get("finish_reason"),
        },
    )


_NONE = "ART's trajectories have no numbers of a trainer"

FORMAT = Format(
    name="art",
    title="OpenPipe ART trajectories/{split}/{step}.parquet",
    containers=(PARQUET,),
    contents=Contents(columns=(*_OWN, *_KEPT)),
    roles=("group", "reward", "mask", "infer_log_probs", "batch", "truncated", "branch", "failure"),
    missing_roles={
        "mask": "the engine returned no token ids: ask for return_token_ids",
        "infer_log_probs": "the engine returned no log-probs",
        "batch": "the file's name is not a step",
        "truncated": "no choice has a finish reason",
        **dict.fromkeys(("log_probs", "old_log_probs", "ref_log_probs", "values"), _NONE),
    },
    sniff=has("group_json", "trajectory_json"),
    rows=_rows,
    own=frozenset({*_OWN, "messages", "tools", "logs", "group_logs"}),
    types=TYPES,
    version=Version("format_version", (2,)),
    options=("map",),
    source="openpipe_art 0.5.23 utils/trajectory_logging.py, format 2",
    fields={
        "prompt_id": "group_index", "step": "the file's name", "reward": "reward",
        "rollout_id": "group_index and trajectory_index", "truncated": "finish_reason",
        "response_mask": "choices (all sampled tokens)", "failure": "the group's exceptions",
        "response_token_ids": "token_ids of choices", "infer_log_probs": "logprobs of choices",
        "policy_version": "initial_policy_version",
    },
    note="Each choice is a row, and a trajectory counts once; --unit row counts choices.",
)  # fmt: skip
