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

from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.formats.annotations import LISTS, Annotations, fold
from rlpost.formats.attempts import ATTEMPT
from rlpost.formats.base import Field, Format, has
from rlpost.formats.calls import TYPES, call_rows
from rlpost.formats.containers import JSON, STREAM
from rlpost.formats.fields import same_tokens
from rlpost.formats.layout import (
    as_mask,
    as_vector,
    check_length,
    padded,
    response_start,
    spread_over_mask,
)
from rlpost.formats.records import Row, as_record, rounded_sum
from rlpost.io.finish_reasons import TRUNCATED
from rlpost.io.input_paths import step_key_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlpost.formats.base import ReadOptions
    from rlpost.formats.records import Record


_NODE_LISTS = {
    "logprobs": "infer_log_probs",
    "trainer_logprobs": "old_log_probs",
    "reference_logprobs": "ref_log_probs",
    "entropies": "entropy",
    "advantages": "dumped_advantages",
    "is_masked": "dumped_is_masked",
    "mismatch_kl": "dumped_mismatch_kl",
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


def annotations_beside(chunk: Path) -> Path:
    """Return the folder of the annotations of a chunk's traces, which need not exist."""
    return chunk.parent.parent / "annotations"


def _trace_rows(records: Iterator[Record], options: ReadOptions) -> Iterator[Row]:
    """Yield the branches of traces whose agent was trainable, if they have policy tokens.

    A trace that failed before its first policy token is a row without tokens.
    """
    for record in records:
        notes = _annotations(Path(record.file), options)
        if _is_stream(record) and _field(record, "run", "work", "type") == "eval":
            options.stats.evaluated += 1
            continue
        keys = _episode_keys(record, step_key_of(record.file))
        if _is_stream(record):  # a relaunch continues the stream, with an id of its own
            run = _field(record, "run", "id")
            keys[ATTEMPT] = options.stats.runs.setdefault(run, len(options.stats.runs) + 1)
        if not record.fields.get("traces", True):
            yield from _without_traces(record, keys, options)
        for trace in _traces(record):
            _annotate(trace, notes, options)
            if not _field(trace, "agent", "trainable", default=True):
                options.stats.counts["trace", "of agents that are not trained left out"] += 1
                continue
            facts = {**keys, **_trace_facts(trace, keys), **_failure(record, trace)}
            made = (_branch_row(trace, facts, *branch, notes.lists) for branch in _branches(trace))
            rows = [row for row in made if row is not None]
            if not rows and facts["failure"]:
                rows = [*call_rows(trace, facts, ())]
            if not rows:
                options.stats.counts["trace", "without an answer of its model left out"] += 1
            yield from rows


def _without_traces(episode: Record, keys: dict[str, Any], options: ReadOptions) -> Iterator[Row]:
    """Yield an episode that failed before its first trace as a row; another one is counted."""
    facts = {**keys, "rollout_id": episode.fields.get("id"), "agent_role": "unknown"}
    facts |= _failure(episode, episode)
    if facts["failure"]:
        yield from call_rows(episode, facts, ())
    else:
        options.stats.counts["episode", "without traces left out"] += 1


def _annotations(chunk: Path, options: ReadOptions) -> Annotations:
    """Return the annotations of the traces of a file, which are read once."""
    folder = annotations_beside(chunk)
    if folder not in options.beside:
        options.beside[folder] = Annotations(folder)
    notes: Annotations = options.beside[folder]
    return notes


def _annotations_of(path: Path, options: ReadOptions) -> Annotations:
    """Return the annotations of a dump: a stream, or a file of traces."""
    return _annotations(path / "*" if path.is_dir() else path, options)


def _failure(episode: Record, trace: Record) -> dict[str, Any]:
    """Return the type and the message of what failed: the trace, else its whole episode."""
    for one in (trace.fields, episode.fields):
        if one.get("ok", True):
            continue
        errors = [x for x in one.get("errors") or () if isinstance(x, dict)]
        last = errors[-1] if errors else {}
        reason = last.get("type") or one.get("stop_condition") or "not ok"
        return {"failure": reason, "error": last.get("message")}
    return {"failure": None}


def _is_stream(record: Record) -> bool:
    """Return whether a record is of the stream of a run, which has training and evaluation."""
    return record.file.parent.name == "stream"


def _annotate(trace: Record, notes: Annotations, options: ReadOptions) -> None:
    """Write the annotations of a trace into its nodes."""
    fields: Any = trace.fields
    branches: list[list[int]] | None = None
    for update in notes.updates(fields.get("id")):
        options.stats.annotated.add(str(fields.get("id")))
        if branches is None:
            branches = [path for _, path in _paths(trace)]
        fold(update, fields, branches)


def _warn(path: Path, options: ReadOptions) -> None:
    """Record what of a stream has no row."""
    if evaluated := options.stats.evaluated:
        episodes = counted(evaluated, "episode")
        options.stats.warnings.append(f"{episodes} of evaluation left out; the stream has both")
    notes = _annotations_of(path, options)
    if new := notes.lists - {"index", *LISTS}:
        names = ", ".join(f"`{name}`" for name in sorted(new))
        options.stats.warnings.append(f"{notes.folder}: no column is made of the new {names}")
    unknown = sorted(notes.traces - options.stats.annotated)
    if unknown:
        options.stats.warnings.append(
            f"{notes.folder}: annotates {counted(len(unknown), 'trace')} that the input lacks, "
            f"such as {unknown[0]}"
        )


def _traces(record: Record) -> Iterator[Record]:
    if "traces" not in record:
        yield record
        return
    for i, one in enumerate(record.array("traces")):
        yield as_record(f"{record.where}, trace {i}", one, record.file)


def _field(record: Record, *names: str, default: Any = None) -> Any:
    """Return a nested field, or the default if any part of the path is missing."""
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
    if trace.fields.get("version", _VERSION) != _VERSION:
        raise trace.error("version", trace.get("version"), f"{_VERSION}, of verifiers 0.4,")
    if not isinstance(trace.get("nodes"), list):
        raise trace.error("nodes", trace.get("nodes"), "a list of message nodes")
    if keys["prompt_id"] is None:
        raise DataError(
            f"{trace.where}: has no group.id, task.key or task.hash, so its group is unknown; omit "
            "groups with --map group=none"
        )
    calls = [
        as_record(f"{trace.where}, `calls`", call).fields
        for call in (trace.array("calls") if trace.has("calls") else ())
    ]
    done = [call for call in calls if not call.get("error")]
    last = done[-1].get("finish_reason") if done else None
    return {
        "rollout_id": trace.fields.get("id"),
        "step": _field(trace, "info", "ship", "step", default=keys["step"]),
        "dumped_advantage": _field(trace, "info", "advantage"),
        "reward": _reward(trace),
        "truncated": not TRUNCATED.isdisjoint({last, trace.fields.get("stop_condition")}),
        "agent_role": _field(trace, "agent", "name"),
        "seconds": _seconds(_field(trace, "timing", "agent", default={})),
    }


def _seconds(span: dict[str, Any]) -> float | None:
    """Return the length of a time span; None if it has not ended."""
    return max(0.0, span["end"] - span["start"]) if span.get("end") else None


def _reward(trace: Record) -> float | None:
    """Return the sum of score · weight, rounded once; None if scoring did not run."""
    rewards = trace.nested("rewards")
    parts = []
    for name, part in rewards.fields.items():
        if isinstance(part, dict):
            one = rewards.nested(name)
            weight = one.number("weight") if "weight" in one else 1.0
            parts.append(one.number("score") * weight)
        elif part is not None:
            parts.append(rewards.number(name))
    return rounded_sum(parts) if parts else None


def _branch_row(
    trace: Record, facts: dict[str, Any], number: int, nodes: list[Record], annotated: set[str]
) -> Row | None:
    """Return a branch as a row; None if its model gave no answer.

    A branch whose nodes have no tokens, as a client without a tokenizer writes it, has texts alone.
    Its turn is that of its last sampled message among those of the trace, from 0.
    """
    tokens = _branch_tokens(nodes, annotated)
    answered = any(node.fields.get("sampled") for node in nodes)
    if tokens is None and (not answered or any(node.fields.get("token_ids") for node in nodes)):
        return None
    sampled = [one for one in trace.array("nodes") if one.get("sampled")]
    last = next((n.fields for n in reversed(nodes) if n.fields.get("sampled")), None)
    prompt, response = _texts(nodes)
    finish = next(
        (n.fields["finish_reason"] for n in reversed(nodes) if n.has("finish_reason")), None
    )
    return Row(
        trace.part(f"branch {number}", trace.fields),
        {
            **facts,
            "sample_id": f"{facts['rollout_id']}:{number}",
            "branch": str(number),
            "turn": next((i for i, one in enumerate(sampled) if one is last), 0),
            "truncated": facts["truncated"] or finish == "length",
            "prompt": prompt,
            "response": response,
            **(tokens or {}),
        },
    )


def _branches(trace: Record) -> Iterator[tuple[int, list[Record]]]:
    """Yield the number of each branch that is a response, and its nodes, root first.

    A leaf that is an attempt to compact the conversation counts only if the conversation
    continued from it.

    Raises:
        DataError: a node is not an object, or its parent is not one of the nodes before it.
    """
    nodes = _node_records(trace)
    accepted = {link.get("node") for node in nodes for link in _links(node, "compaction")}
    for number, path in _paths(trace):
        leaf = path[-1]
        if any(_links(nodes[leaf], "compaction_attempt")) and leaf not in accepted:
            continue
        yield number, [nodes[i] for i in path]


def _node_records(trace: Record) -> list[Record]:
    return [as_record(f"{trace.where}, node {i}", x) for i, x in enumerate(trace.array("nodes"))]


def _paths(trace: Record) -> Iterator[tuple[int, list[int]]]:
    """Yield each path from a root to a leaf: the leaf's number and the nodes' indexes."""
    parents = [_parent(node, i) for i, node in enumerate(_node_records(trace))]
    inner = {*parents}
    for number, leaf in enumerate(i for i in range(len(parents)) if i not in inner):
        path: list[int] = []
        i: int | None = leaf
        while i is not None:
            path.append(i)
            i = parents[i]
        yield number, path[::-1]


def _parent(node: Record, i: int) -> int | None:
    if not node.has("parent"):
        return None
    parent = node.integer("parent")
    if not 0 <= parent < i:
        raise DataError(f"{node.where}: its parent is {parent}; the parent must be an earlier node")
    return parent


def _links(node: Record, kind: str) -> list[dict[str, Any]]:
    links = node.fields.get("semantic_parents") or []
    return [link for link in links if isinstance(link, dict) and link.get("type") == kind]


def _branch_tokens(nodes: list[Record], annotated: set[str]) -> dict[str, Any] | None:
    """Return a branch's lists, one entry per response token, and its ids; None without samples.

    Raises:
        DataError: a node's mask does not fit its tokens, or a compact list its mask.
    """
    if not any(node.fields.get("token_ids") for node in nodes):
        return None
    ids = [as_vector(node.where, "token_ids", node.get("token_ids")) for node in nodes]
    masks = [as_mask(node.where, "mask", node.get("mask")) for node in nodes]
    for node, tokens, mask in zip(nodes, ids, masks, strict=True):
        check_length(node.where, "mask", mask, len(tokens), "token_ids")
    mask = np.concatenate(masks) if masks else np.zeros(0, np.uint8)
    if not mask.any():
        return None
    lists = {}
    for name, column in _NODE_LISTS.items():
        if name in annotated or any(node.fields.get(name) for node in nodes):
            lists[column] = np.concatenate(
                [_spread(node, name, mask) for node, mask in zip(nodes, masks, strict=True)]
            )
    for name in _full_lists(nodes):
        parts = [_full_list(node, name, len(mask)) for node, mask in zip(nodes, masks, strict=True)]
        lists[name] = np.concatenate(parts)
    tokens = np.concatenate(ids)
    where = nodes[-1].where
    cut = padded(where, mask, {**lists, "response_token_ids": tokens}, len(tokens))
    prompt = tokens[: response_start(mask)]
    lengths = {"prompt_length": len(prompt), "response_length": len(cut["response_mask"])}
    return {**cut, **lengths, "prompt_token_ids": prompt}


_WEIGHTS = "loss_weights."


def _full_lists(nodes: list[Record]) -> list[str]:
    """Return the columns of lists of nodes with an entry for each token."""
    weights = {name: None for node in nodes for name in node.fields.get("loss_weights") or {}}
    content = any(node.fields.get("is_content") for node in nodes)
    return [*(_WEIGHTS + name for name in weights), *(["is_content"] if content else [])]


def _full_list(node: Record, column: str, length: int) -> Any:
    """Return a node's list with an entry for each token; 0 if it has none."""
    outer = node.fields
    if column.startswith(_WEIGHTS):
        outer, column = node.fields.get("loss_weights") or {}, column.removeprefix(_WEIGHTS)
    return as_vector(node.where, column, outer[column]) if outer.get(column) else np.zeros(length)


def _spread(node: Record, name: str, mask: Any) -> Any:
    """Return a node's compact list over all its tokens: NaN if unknown, 0 for other tokens."""
    if not node.fields.get(name):
        return np.where(mask, np.nan, 0.0)
    array = as_vector(node.where, name, node.get(name))
    check_length(node.where, name, array, int(mask.sum()), "the mask's count of ones")
    return spread_over_mask(mask, array)


def _texts(nodes: list[Record]) -> tuple[str, str]:
    """Return the text of the messages before the first sampled one, and the text from it on."""
    first = next((i for i, node in enumerate(nodes) if node.fields.get("sampled")), len(nodes))
    contents = [_content(node.fields.get("message")) for node in nodes]
    return "\n".join(contents[:first]), "\n".join(contents[first:])


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in parts if isinstance(text, str))
    return content if isinstance(content, str) else ""


TRACES = Format(
    name="prime-rl",
    title="verifiers 0.4 and prime-rl traces.jsonl, or traces/stream with its annotations",
    containers=(JSON, STREAM),
    beside=("annotations/*", "*.index.jsonl", "live/*"),
    missing_roles={
        "mask": "the client of the model recorded no tokens",
        "infer_log_probs": "the client of the model recorded no tokens",
        "log_probs": _NO_LOG_PROBS,
        "old_log_probs": "traces contain the trainer's log-probs only if the trainer added them; "
        "token_exports/ always contains them",
        "ref_log_probs": "the run had no reference model",
        "values": "prime-rl has no critic",
        "batch": "the run did not train", "policy_version": "", "entropy": "", "domain": "",
        "run_attempt": "only the stream of a run has its relaunches",
    },
    sniff=_is_traces,
    rows=_trace_rows,
    prepare=_annotations_of,
    finish=_warn,
    types={
        **TYPES, "seconds": pa.float64(), "dumped_is_masked": pa.list_(pa.float32()),
        "dumped_mismatch_kl": pa.list_(pa.float32()),
    },
    source="verifiers 0.4.0 v1/trace.py, v1/utils/trace_store.py; prime_rl/monitors/file/traces "
    "(chunks.py at 551bfc39, update.py at 799bb508)",
    fields={
        **{column: f"nodes.{name}" for name, column in _NODE_LISTS.items()},
        "prompt_id": "group.id, or the task's key", "response_mask": "nodes.mask",
        "reward": "rewards (score · weight, summed)", "step": "run.work.step",
        "domain": "env.name", "truncated": "finish_reason and stop_condition",
        "agent_role": "agent.name", "rollout_id": "id", "branch": "the order of the leaves",
        "policy_version": "run.work.policy.start",
        "failure": "the type of the last error", "turn": "the branch's last sampled message",
        "run_attempt": "the order of run.id in the stream",
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
        "sample_id": Field("step, rank and export_sequence_idx", _sequence),
        "response_mask": "loss_mask", "response_token_ids": "token_ids", "entropy": "entropy",
        "infer_log_probs": "inference_logprobs", "old_log_probs": "trainer_logprobs",
        "dumped_advantages": "advantages",
        "sequence_length": Field("token_ids", lambda record: len(record.array("token_ids"))),
    },
    missing_roles={
        "reward": "token exports have no rewards; traces.jsonl has them",
        "log_probs": _NO_LOG_PROBS,
        "ref_log_probs": "token exports have no log-probs of a reference policy",
        "values": "prime-rl has no critic",
        "domain": "", "entropy": "",
    },
    layout="padded",
)  # fmt: skip
