"""verifiers and prime-rl: `traces.jsonl` of episodes, and `token_exports/` of the trainer.

A trace is a graph of messages, each with the tokens that it adds. The path from the root to a leaf
is a branch, and each branch is one response. Lists of a node are compact: one entry for each token
with mask true.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.attempts import ATTEMPT
from rlpost.formats.base import Format, has
from rlpost.formats.calls import CALLS, TYPES, ModelCall
from rlpost.formats.containers import JSON, STREAM
from rlpost.formats.fields import same_tokens
from rlpost.formats.layout import SEQUENCE_LENGTH, as_vector, check_length
from rlpost.formats.records import Field, Record, as_record, rounded_sum
from rlpost.io.finish_reasons import TRUNCATED
from rlpost.io.input_paths import step_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlpost.formats.base import ReadOptions


_NODE_LISTS = {
    "logprobs": "infer_log_probs",
    "trainer_logprobs": "old_log_probs",
    "reference_logprobs": "ref_log_probs",
    "entropies": "entropy",
    "advantages": "dumped_advantages",
}
"""Field of a node, compact over its mask -> column."""
_VERSION = 1
"""Of the schema of traces that verifiers 0.4 writes."""
_NO_LOG_PROBS = (
    "prime-rl writes the trainer's log-probs once (old_log_probs). For its ratio of the trainer to "
    "the engine, run: rlpost loss --map log_probs=old_log_probs --map old_log_probs=infer_log_probs"
)
"""Why a dump of prime-rl has no `log_probs`, and what to use instead."""


def _is_traces(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields are those of an episode or of a trace."""
    episode = {"traces", "task", "env"} <= fields.keys()
    return episode or {"nodes", "rewards", "task"} <= fields.keys()


def _traces(records: Iterator[Record], options: ReadOptions) -> Iterator[Record]:
    """Yield the traces of episodes whose agents are trained, and episodes that failed before any.

    A stream has training and evaluation, and a relaunch continues it, with an id of its own. What
    annotations beside it say is not read.
    """
    counts, runs = options.stats.counts, dict[object, int]()
    for record in records:
        episode = record
        if episode.file.parent.name == "stream":
            if Path(episode.file).parents[1].joinpath("annotations").is_dir():
                options.stats.left_out["annotations"] = None
            if episode.find("run.work.type") == "eval":
                counts["episode", "of evaluation left out; the stream has both"] += 1
                continue
            attempt = runs.setdefault(episode.find("run.id"), len(runs) + 1)
            episode = Record(record.where, {**record.fields, ATTEMPT: attempt}, record.file)
        traces = [*episode.rows("traces")] if "traces" in episode else [episode]
        for trace in traces:
            if trace.find("agent.trainable") is False:
                counts["trace", "of agents that are not trained left out"] += 1
            else:
                yield trace
        if not traces and _failure(episode):
            yield episode
        elif not traces:
            counts["episode", "without traces left out"] += 1


def _calls(trace: Record, options: ReadOptions) -> list[ModelCall] | None:
    """Return the branches of a trace; none of one that failed before its first answer."""
    branches = [*_branches(trace)] if _is_trace(trace) else []
    if branches or _failure(trace):
        return branches
    options.stats.counts["trace", "without an answer of its model left out"] += 1
    return None


def _is_trace(record: Record) -> bool:
    """Return whether a record is a trace, and no episode without any."""
    if "traces" in record:
        return False
    if record.fields.get("version", _VERSION) != _VERSION:
        raise record.error("version", record.get("version"), f"{_VERSION}, of verifiers 0.4,")
    if not isinstance(record.get("nodes"), list):
        raise record.error("nodes", record.get("nodes"), "a list of message nodes")
    return True


def _failure(trace: Record) -> tuple[str, str | None] | None:
    """Return the type and the message of what failed: the trace, else its whole episode."""
    for record in filter(None, (trace, trace.outer)):
        get = record.fields.get
        if not get("ok", True):
            errors = [x for x in get("errors") or () if isinstance(x, dict)]
            last = errors[-1] if errors else {}
            reason = last.get("type") or get("stop_condition") or "not ok"
            return reason, last.get("message")
    return None


def _group(trace: Record) -> Any:
    group = trace.find("group.id | task.key | task.hash")
    if group is None:
        raise DataError(
            f"{trace.where}: has no group.id, task.key or task.hash, so its group is unknown; omit "
            "groups with --map group=none"
        )
    return group


def _truncated(trace: Record) -> bool:
    """Return whether the last call that succeeded, or the trace, ended at a limit."""
    calls = [*trace.rows("calls")] if trace.has("calls") else []
    ends = [call.find("finish_reason") for call in calls if not call.fields.get("error")]
    return not TRUNCATED.isdisjoint({*ends[-1:], trace.fields.get("stop_condition")})


def _seconds(trace: Record) -> float | None:
    span = trace.find("timing.agent") or {}
    return max(0.0, span["end"] - span["start"]) if span.get("end") else None


def _reward(trace: Record) -> float | None:
    """Return the sum of score · weight, rounded once; None if scoring did not run."""
    if not _is_trace(trace):
        return None
    rewards, parts = trace.nested("rewards"), []
    for name, part in rewards.fields.items():
        if isinstance(part, dict):
            score = rewards.nested(name)
            weight = score.number("weight") if "weight" in score else 1.0
            parts.append(score.number("score") * weight)
        elif part is not None:
            parts.append(rewards.number(name))
    return rounded_sum(parts) if parts else None


def _branches(trace: Record) -> Iterator[ModelCall]:
    """Yield the branches that have an answer.

    The turn is that of a branch's last answer among those of the trace. A leaf that is an attempt
    to compact the conversation counts only if the conversation continued from it.
    """
    nodes = _nodes(trace)
    accepted = {link.get("node") for node in nodes for link in _links(node, "compaction")}
    answers = [i for i, node in enumerate(nodes) if node.get("sampled")]
    for number, path in enumerate(_paths(trace)):
        if _links(nodes[path[-1]], "compaction_attempt") and path[-1] not in accepted:
            continue
        branch, sampled = [nodes[i] for i in path], [i for i in path if i in answers]
        tokens = _branch_tokens(branch)
        if tokens is None:
            continue
        first = path.index(sampled[0]) if sampled else len(path)
        texts = [_content(node.fields.get("message")) for node in branch]
        ends = [node.fields["finish_reason"] for node in branch if node.has("finish_reason")]
        values = {
            "sample_id": f"{trace.find('id')}:{number}",
            "branch": str(number),
            "turn": answers.index(sampled[-1]) if sampled else 0,
            "truncated": _truncated(trace) or ends[-1:] == ["length"],
            "prompt": "\n".join(texts[:first]),
            "response": "\n".join(texts[first:]),
            **tokens,
        }
        yield ModelCall(f"{trace.where}, branch {number}", values=values)


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _nodes(trace: Record) -> list[Record]:
    return [as_record(f"{trace.where}, node {i}", x) for i, x in enumerate(trace.array("nodes"))]


def _links(node: Record, kind: str) -> list[dict[str, Any]]:
    links = node.fields.get("semantic_parents") or []
    return [link for link in links if isinstance(link, dict) and link.get("type") == kind]


def _paths(trace: Record) -> list[list[int]]:
    """Return each path from a root to a leaf, by the indexes of its nodes; the leaves in order.

    Raises:
        DataError: a node is not an object, or its parent is not one of the nodes before it.
    """
    parents: list[int | None] = []
    for i, node in enumerate(_nodes(trace)):
        parent = node.integer("parent") if node.has("parent") else None
        if parent is not None and not 0 <= parent < i:
            raise DataError(
                f"{node.where}: its parent is {parent}; the parent must be an earlier node"
            )
        parents.append(parent)
    paths = [[leaf] for leaf in sorted({*range(len(parents))} - {*parents})]
    for path in paths:
        while (parent := parents[path[0]]) is not None:
            path.insert(0, parent)
    return paths


def _branch_tokens(nodes: Sequence[Record]) -> dict[str, Any] | None:
    """Return a branch's lists, one entry per token; None without an answer.

    They are empty if no node has tokens, as a client without a tokenizer writes it.

    Raises:
        DataError: a node's mask does not fit its tokens, or a list its mask.
    """
    if not any(node.fields.get("token_ids") for node in nodes):
        return {} if any(node.fields.get("sampled") for node in nodes) else None
    ids = [as_vector(node.where, "token_ids", node.get("token_ids")) for node in nodes]
    masks = [as_vector(node.where, "mask", node.get("mask")) for node in nodes]
    for node, tokens, mask in zip(nodes, ids, masks, strict=True):
        check_length(node.where, "mask", mask, len(tokens), "token_ids")
    mask = np.concatenate(masks)
    if not mask.any():
        return None
    return {
        "response_mask": mask,
        "response_token_ids": np.concatenate(ids),
        SEQUENCE_LENGTH: len(mask),
        **{column: np.concatenate([_list(*pair, name) for pair in zip(nodes, masks, strict=True)])
           for name, column in _NODE_LISTS.items() if any(x.fields.get(name) for x in nodes)},
    }  # fmt: skip


def _list(node: Record, mask: Any, name: str) -> Any:
    """Return a node's list over all of its tokens: 0 outside of the mask, NaN without a list."""
    values = node.find(name)
    if not values:
        return np.where(mask, np.nan, 0.0)
    array = as_vector(node.where, name, values)
    check_length(node.where, name, array, int(mask.sum()), "the mask's count of ones")
    spread = np.zeros(len(mask), array.dtype)
    spread[mask != 0] = array
    return spread


TRACES = Format(
    name="prime-rl",
    title="verifiers 0.4 and prime-rl traces.jsonl, or traces/stream",
    containers=(JSON, STREAM),
    beside=("annotations/*", "*.index.jsonl", "live/*"),
    lacks={
        "mask": "the client of the model recorded no tokens",
        "infer_log_probs": "the client of the model recorded no tokens",
        "log_probs": _NO_LOG_PROBS,
        "old_log_probs": "traces contain the trainer's log-probs only if the trainer added them; "
        "token_exports/ always contains them",
        "ref_log_probs": "the run had no reference model", "batch": "the run did not train",
        "policy_version": "", "entropy": "", "domain": "",
        "run_attempt": "only the stream of a run has its relaunches",
    },
    sniff=_is_traces,
    prepare=_traces,
    calls=_calls,
    layout="padded",
    reads=frozenset({"version", "nodes", "calls", "info", "traces", "run", ATTEMPT}),
    keeps=False,
    types={**TYPES, "seconds": pa.float64()},
    source="verifiers 0.4.0 v1/trace.py, v1/utils/trace_store.py; prime_rl/monitors/file/traces "
    "(chunks.py at 551bfc39)",
    fields={
        **CALLS, **{column: f"nodes.{name}" for name, column in _NODE_LISTS.items()},
        "response_mask": "nodes.mask", "response_token_ids": "nodes.token_ids",
        "prompt_id": Field("group.id | task.key | task.hash", _group),
        "reward": Field("rewards (score · weight, summed)", _reward), "rollout_id": "id",
        "step": Field("info.ship.step | run.work.step", lambda trace: step_key_of(trace.file)
                      if (step := trace.find("info.ship.step | run.work.step")) is None else step),
        "domain": "env.name | env.id", "agent_role": Field("agent.name", lambda trace: trace.find(
            "agent.name") or "unknown"),
        "truncated": Field("stop_condition | calls.finish_reason", _truncated),
        "policy_version": "run.work.policy.start", "dumped_advantage": "info.advantage",
        "failure": Field("ok | errors", lambda trace: (_failure(trace) or (None,))[0]),
        "error": Field("errors", lambda trace: (_failure(trace) or (None, None))[1]),
        "run_attempt": ATTEMPT, "seconds": Field("timing", _seconds),
    },
    note="Each branch of a trace is one response. Newer traces store log-probs with 4 decimals.",
)  # fmt: skip


def _sequence(record: Record) -> str:
    return ":".join(str(record.integer(x)) for x in ("step", "rank", "export_sequence_idx"))


TOKENS = Format(
    name="prime-rl-tokens",
    title="prime-rl token_exports/step_{N}/rank_{R}.jsonl",
    source="prime_rl trainer/rl token export, schema_version 1 (2026)",
    containers=(JSON,),
    sniff=has("export_sequence_idx", "trainer_logprobs", "inference_logprobs", "loss_mask"),
    fields={
        "step": "step", "prompt_id": same_tokens("token_ids"), "domain": "env_name",
        "sample_id": Field("step | rank | export_sequence_idx", _sequence),
        "response_mask": "loss_mask", "response_token_ids": "token_ids", "entropy": "entropy",
        "infer_log_probs": "inference_logprobs", "old_log_probs": "trainer_logprobs",
        "dumped_advantages": "advantages",
        "sequence_length": Field("token_ids", lambda record: len(record.array("token_ids"))),
    },
    lacks={
        "reward": "token exports have no rewards; traces.jsonl has them",
        "log_probs": _NO_LOG_PROBS, "domain": "", "entropy": "",
    },
    layout="padded",
    keeps=False,
)  # fmt: skip
