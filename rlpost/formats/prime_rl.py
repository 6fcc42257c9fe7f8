"""verifiers and prime-rl: `traces.jsonl` of episodes, and `token_exports/` of the trainer.

A trace is a graph of messages, each with the tokens that it adds. The path from the root to a leaf
is a branch, and each branch is one response. Lists of a node are compact: one entry for each token
with mask true.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.formats.attempts import ATTEMPT
from rlpost.formats.base import Format, has
from rlpost.formats.calls import CALLS, TYPES, ModelCall, call_rows
from rlpost.formats.containers import JSON, STREAM
from rlpost.formats.fields import joined_text, same_tokens
from rlpost.formats.layout import SEQUENCE_LENGTH
from rlpost.formats.records import Field, rounded_sum
from rlpost.io.finish_reasons import TRUNCATED
from rlpost.io.input_paths import step_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


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


def _rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Record]:
    """Yield the branches of traces whose agents are trained, and episodes that failed before any.

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
            episode = replace(record, fields={**record.fields, ATTEMPT: attempt})
        traces = [*episode.rows("traces")] if "traces" in episode else [episode]
        if not traces and _failure(episode)[0]:
            yield from call_rows(episode, str(episode.find("id")), [])
        elif not traces:
            counts["episode", "without traces left out"] += 1
        for trace in traces:
            if trace.find("agent.trainable") is False:
                counts["trace", "of agents that are not trained left out"] += 1
                continue
            branches = [*_branches(trace)]
            if branches or _failure(trace)[0]:
                yield from call_rows(trace, str(trace.find("id")), branches)
            else:
                counts["trace", "without an answer of its model left out"] += 1


def _failure(trace: Record) -> tuple[str | None, str | None]:
    """Return the type and the message of what failed: the trace, else its whole episode."""
    for record in filter(None, (trace, trace.outer)):
        get = record.fields.get
        if not get("ok", True):
            errors = [x for x in get("errors") or () if isinstance(x, dict)]
            last = errors[-1] if errors else {}
            return last.get("type") or get("stop_condition") or "not ok", last.get("message")
    return None, None


def _truncated(trace: Record) -> bool:
    """Return whether the last call that succeeded, or the trace, ended at a limit."""
    calls = [call for call in trace.find("calls") or () if not call.get("error")]
    ends = [call.get("finish_reason") for call in calls[-1:]]
    return not TRUNCATED.isdisjoint({*ends, trace.fields.get("stop_condition")})


def _reward(trace: Record) -> float | None:
    """Return the sum of score · weight, rounded once; None if scoring did not run."""
    rewards = trace.nested("rewards") if "nodes" in trace else trace
    parts = []
    for name in rewards.fields if "nodes" in trace else ():
        value = rewards.get(name)
        if isinstance(value, dict):
            score = rewards.nested(name)
            weight = score.typed("weight", float) if "weight" in score else 1.0
            value = score.typed("score", float) * weight
        if value is not None:
            parts.append(value)
    return rounded_sum(parts) if parts else None


def _branches(trace: Record) -> Iterator[ModelCall]:
    """Yield the branches that have an answer.

    The turn is that of a branch's last answer among those of the trace. A leaf that is an attempt
    to compact the conversation counts only if the conversation continued from it.
    """
    if trace.fields.get("version", _VERSION) != _VERSION:
        raise trace.error("version", trace.get("version"), f"{_VERSION}, of verifiers 0.4,")
    nodes = [trace.part(f"node {i}", x) for i, x in enumerate(trace.typed("nodes", list))]
    accepted = {link.get("node") for node in nodes for link in _links(node, "compaction")}
    answers = [i for i, node in enumerate(nodes) if node.find("sampled")]
    for number, path in enumerate(_paths(nodes)):
        branch, sampled = [nodes[i] for i in path], [i for i in path if i in answers]
        tokens = _tokens(branch)
        attempt = _links(branch[-1], "compaction_attempt") and path[-1] not in accepted
        if attempt or tokens is None:
            continue
        first = path.index(sampled[0]) if sampled else len(path)
        texts = [joined_text((node.find("message") or {}).get("content")) for node in branch]
        ends = [x for node in branch if (x := node.find("finish_reason")) is not None]
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


def _links(node: Record, kind: str) -> list[dict[str, Any]]:
    links = node.find("semantic_parents") or []
    return [link for link in links if isinstance(link, dict) and link.get("type") == kind]


def _paths(nodes: Sequence[Record]) -> list[list[int]]:
    """Return each path from a root to a leaf, by the indexes of its nodes; the leaves in order.

    Raises:
        DataError: a node's parent is not one of the nodes before it.
    """
    paths: dict[int, list[int]] = {}
    parents: set[int] = set()
    for i, node in enumerate(nodes):
        above: list[int] = []
        if node.find("parent") is not None:
            parent = node.typed("parent", int)
            if parent not in paths:
                raise node.error("parent", parent, "the number of an earlier node")
            parents.add(parent)
            above = paths[parent]
        paths[i] = [*above, i]
    return [path for leaf, path in paths.items() if leaf not in parents]


def _tokens(nodes: Sequence[Record]) -> dict[str, Any] | None:
    """Return a branch's lists, one entry per token; None without an answer.

    They are empty if no node has tokens, as a client without a tokenizer writes it.

    Raises:
        DataError: a node's mask does not fit its tokens, or a list its mask.
    """
    if not any(node.find("token_ids") for node in nodes):
        return {} if any(node.find("sampled") for node in nodes) else None
    ids = [np.array(node.typed("token_ids", list), np.float64) for node in nodes]
    masks = [_vector(node, "mask", len(tokens)) for node, tokens in zip(nodes, ids, strict=True)]
    mask = np.concatenate(masks)
    if not mask.any():
        return None
    lists = {
        column: np.concatenate([_spread(*pair, name) for pair in zip(nodes, masks, strict=True)])
        for name, column in _NODE_LISTS.items()
        if any(node.find(name) for node in nodes)
    }
    return {"response_mask": mask, "response_token_ids": np.concatenate(ids),
            SEQUENCE_LENGTH: len(mask), **lists}  # fmt: skip


def _vector(node: Record, name: str, length: int) -> NDArray[Any]:
    vector = np.array(node.typed(name, list), np.float64)  # null is NaN
    if len(vector) != length:
        raise node.error(name, node.get(name), f"a list of {length}, as its tokens need,")
    return vector


def _spread(node: Record, mask: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a node's list over all of its tokens: 0 outside of the mask, NaN without a list."""
    spread = np.where(mask != 0, np.nan, 0.0)
    if node.find(name):
        spread[mask != 0] = _vector(node, name, int(mask.sum()))
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
    rows=_rows,
    layout="padded",
    reads=frozenset({"version", "nodes", "calls", "info", "traces", "run", ATTEMPT}),
    keeps=False,
    types=TYPES,
    source="verifiers 0.4.0 v1/trace.py, v1/utils/trace_store.py; prime_rl/monitors/file/traces "
    "(chunks.py at 551bfc39)",
    fields={
        **CALLS, **{column: f"nodes.{name}" for name, column in _NODE_LISTS.items()},
        "response_mask": "nodes.mask", "response_token_ids": "nodes.token_ids",
        "prompt_id": "group.id | task.key | task.hash",
        "reward": Field("rewards (score · weight, summed)", _reward), "rollout_id": "id",
        "step": Field("info.ship.step | run.work.step", lambda trace: step_key_of(trace.file)
                      if (step := trace.find("info.ship.step | run.work.step")) is None else step),
        "domain": "env.name | env.id", "agent_role": Field("agent.name", lambda trace: trace.find(
            "agent.name") or "unknown"),
        "truncated": Field("stop_condition | calls.finish_reason", _truncated),
        "policy_version": "run.work.policy.start", "dumped_advantage": "info.advantage",
        "failure": Field("ok | errors", lambda trace: _failure(trace)[0]),
        "error": Field("errors", lambda trace: _failure(trace)[1]),
        "run_attempt": ATTEMPT,
    },
    note="Each branch of a trace is one response. Newer traces store log-probs with 4 decimals.",
)  # fmt: skip


def _sequence(record: Record) -> str:
    return ":".join(str(record.typed(x, int)) for x in ("step", "rank", "export_sequence_idx"))


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
        "sequence_length": Field("token_ids", lambda record: len(record.typed("token_ids", list))),
    },
    lacks={
        "reward": "token exports have no rewards; traces.jsonl has them",
        "log_probs": _NO_LOG_PROBS, "domain": "", "entropy": "",
    },
    layout="padded",
    keeps=False,
)  # fmt: skip
