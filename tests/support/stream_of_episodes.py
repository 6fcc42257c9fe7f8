"""A stream of prime-rl, as the file monitor of its orchestrator writes it."""

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


def write_stream(folder: Path, chunks: Sequence[Iterable[dict[str, Any]]]) -> Path:
    """Write episodes to `folder/stream`, a plain file for each chunk; return the stream."""
    stream = folder / "stream"
    stream.mkdir(parents=True)
    for chunk, records in enumerate(chunks):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (stream / f"{chunk:05}.jsonl").write_text(text)
    return stream
