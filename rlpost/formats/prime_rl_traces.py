"""prime-rl: `traces.jsonl`, one episode a line; each branch of its message graphs is a response.

A trace is a graph of messages, each with the tokens that it adds. The path from the root to a leaf
is a branch, and a branch is one training sample. Lists per node are compact: one entry for each
token with mask true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlpost.errors import DataError
from rlpost.formats.base import Format
from rlpost.formats.fields import apply_map
from rlpost.formats.fields import step_key_of as step_of
from rlpost.formats.message_graph import LISTS, OWN_RATIO, branch_tokens, branches, texts
from rlpost.formats.records import Record, first_fields, record_of, records
from rlpost.formats.rows import Row, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from rlpost.formats.base import ReadOptions


_CUT_OFF = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens",
            "compaction_failed"}  # fmt: skip


def sniff(path: Path) -> bool:
    """Whether the first record is an episode, or a trace by itself."""
    fields = first_fields(path)
    episode = {"traces", "task", "env"} <= fields.keys()
    return episode or {"nodes", "rewards", "task"} <= fields.keys()


def read(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The branches that trained, of the traces whose agent was trainable."""
    return batches(_rows(path, options), options)


def _rows(path: Path, options: ReadOptions) -> Iterator[Row]:
    step = step_of(path)
    for record in records(path):
        keys = _episode_keys(record, step)
        for trace in _traces(record):
            if not _field(trace, "agent", "trainable", default=True):
                continue
            facts = {**keys, **_trace_facts(trace, keys)}
            for number, nodes in branches(trace):
                row = _row(trace, facts, number, nodes)
                if row is not None:
                    yield apply_map(row, trace, options.map)


def _traces(record: Record) -> Iterator[Record]:
    if "traces" not in record:
        yield record
        return
    for place, one in enumerate(record.array("traces")):
        yield record_of(f"{record.where}, trace {place}", one)


def _field(record: Record, *names: str, default: Any = None) -> Any:
    """A nested field, or the default where any part of the way is missing."""
    value: Any = record.fields
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return default if value is None else value


def _episode_keys(record: Record, step: int | None) -> dict[str, Any]:
    task = _field(record, "task", "key") or _field(record, "task", "hash")
    return {
        "step": _field(record, "run", "work", "step", default=step),
        "prompt_id": _field(record, "group", "id") or task,
        "domain": _field(record, "env", "name") or _field(record, "env", "id") or None,
        "policy_version": _field(record, "run", "work", "policy", "start"),
    }


def _trace_facts(trace: Record, keys: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(trace.get("nodes"), list):
        raise trace.wrong("nodes", trace.get("nodes"), "a list of message nodes")
    if keys["prompt_id"] is None:
        raise DataError(
            f"{trace.where}: no group.id, task.key or task.hash tells its group; leave groups "
            "out with --map group=none"
        )
    calls = [
        record_of(f"{trace.where}, `calls`", call).fields
        for call in (trace.array("calls") if trace.has("calls") else ())
    ]
    done = [call for call in calls if not call.get("error")]
    last = done[-1].get("finish_reason") if done else None
    return {
        "rollout_id": trace.fields.get("id"),
        "reward": _reward(trace),
        "truncated": last == "length" or trace.fields.get("stop_condition") in _CUT_OFF,
    }


def _reward(trace: Record) -> float | None:
    """The sum of score · weight; None where scoring did not run."""
    rewards = trace.nested("rewards")
    total, scored = 0.0, False
    for name, part in rewards.fields.items():
        if isinstance(part, dict):
            one = rewards.nested(name)
            weight = one.number("weight") if "weight" in one else 1.0
            total, scored = total + one.number("score") * weight, True
        elif part is not None:
            total, scored = total + rewards.number(name), True
    return total if scored else None


def _row(trace: Record, facts: dict[str, Any], number: int, nodes: list[Record]) -> Row | None:
    """A branch as a row; None if the policy produced none of its tokens."""
    tokens = branch_tokens(nodes)
    if tokens is None:
        return None
    prompt, response = texts(nodes)
    finish = next(
        (n.fields["finish_reason"] for n in reversed(nodes) if n.has("finish_reason")), None
    )
    return Row(
        f"{trace.where}, branch {number}",
        {
            **facts,
            "sample_id": f"{facts['rollout_id']}:{number}",
            "truncated": facts["truncated"] or finish == "length",
            "prompt": prompt,
            "response": response,
            "prompt_length": len(tokens["prompt_token_ids"]),
            "response_length": len(tokens["response_mask"]),
            **tokens,
        },
    )


FORMAT = Format(
    name="prime-rl",
    title="prime-rl traces.jsonl (verifiers v1 episodes)",
    suffixes=(".jsonl",),
    gives=(
        "group", "reward", "mask", "infer_log_probs", "old_log_probs", "ref_log_probs", "batch",
        "domain", "truncated",
    ),
    lacks={
        "log_probs": OWN_RATIO,
        "old_log_probs": "traces have the trainer's log-probs only where it annotated them; "
        "token_exports/ has them always",
        "ref_log_probs": "the run scored no reference model",
        "values": "prime-rl has no critic",
    },
    sniff=sniff,
    read=read,
    takes=("map",),
    source="verifiers/v1/episode.py to_record, prime_rl/monitors/file.py (2026)",
    fields={
        **{column: f"nodes.{name}" for name, column in LISTS.items()},
        "prompt_id": "group.id, else the task's key", "response_mask": "nodes.mask",
        "reward": "rewards (score · weight, summed)", "step": "run.work.step",
        "domain": "env.name", "truncated": "finish_reason and stop_condition",
    },
    note="One row per branch; newer traces keep log-probs to 4 decimals only.",
)  # fmt: skip
