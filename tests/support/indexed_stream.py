"""A stream of prime-rl with its index, as the file monitor of its orchestrator writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


def episode(
    number: int, *, reward: float = 1.0, step: int = 0, env: str = "math", tokens: int = 6,
    run: str = "a", traces: int = 1, **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return an episode: a prompt, and one answer of each trace, whose log-probs are -0.5."""
    sampled = [number % 7, *range(1, tokens)]
    nodes = [
        {"parent": None, "message": {"role": "user", "content": "?"}, "sampled": False,
         "token_ids": [9, 9], "mask": [False, False]},
        {"parent": 0, "message": {"role": "assistant", "content": "!"}, "sampled": True,
         "token_ids": sampled, "mask": [True] * tokens, "logprobs": [-0.5] * tokens},
    ]  # fmt: skip
    return {
        "id": f"e{number}",
        "env": {"id": env, "name": env},
        "task": {"type": "T", "data": {}, "key": f"k{number // 4}", "hash": "h"},
        "group": {"id": f"g{number // 4}"},
        "run": {"type": "train", "id": run, "work": {"type": "train", "step": step}},
        "ok": True,
        "errors": [],
        "traces": [
            {
                "version": 1, "id": f"t{number}.{one}", "task": {"type": "T", "data": {}},
                "agent": {"config": {}, "name": "solver", "trainable": True}, "nodes": nodes,
                "calls": [{"node": 1, "finish_reason": "stop"}],
                "rewards": {"r": {"score": reward + one, "weight": 1.0}}, "metrics": {},
                "info": {}, "is_completed": True, "ok": True, "stop_condition": "done",
            }
            for one in range(traces)
        ],
        **fields,
    }  # fmt: skip


def index_row(line: int, record: dict[str, Any], chunk: int, offset: int) -> dict[str, Any]:
    """Return what prime-rl's index has about an episode, as far as conditions name it."""
    rewards = [trace["rewards"]["r"]["score"] for trace in record["traces"]]
    return {
        "cost": None, "line": line, "offset": offset, "id": record["id"], "kind": "train",
        "trace_ids": [trace["id"] for trace in record["traces"]],
        "env": record["env"]["name"], "group": record["group"]["id"], "ok": record["ok"],
        "num_errors": len(record["errors"]), "reward": sum(rewards) / len(rewards),
        "advantage": None, "input_tokens": 2, "output_tokens": 6, "turns": 1, "branches": 1,
        "stop_condition": "done", "truncated": False, "duration": float(line), "chunk": chunk,
    }  # fmt: skip


def write_stream(
    folder: Path, chunks: Sequence[Iterable[dict[str, Any]]], *, indexed: bool = True
) -> Path:
    """Write episodes to `folder/stream`, a plain file for each chunk; return the stream."""
    stream, line = folder / "stream", 0
    stream.mkdir(parents=True)
    rows = []
    for chunk, records in enumerate(chunks):
        offset = 0
        with (stream / f"{chunk:05}.jsonl").open("wb") as file:
            for record in records:
                line += 1
                rows.append(index_row(line, record, chunk, offset))
                offset += file.write(json.dumps(record).encode() + b"\n")
    if indexed:
        write_index(stream, rows)
    return stream


def write_index(stream: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write the index of a stream."""
    path = stream.with_name(f"{stream.name}.index.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_index(stream: Path) -> list[dict[str, Any]]:
    """Return the rows of the index of a stream."""
    path = stream.with_name(f"{stream.name}.index.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]
