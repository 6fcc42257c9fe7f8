"""Dump files as each framework's own writer makes them, from rollouts that a test knows.

Each function follows one writer: its fields, their order and nesting, its padding and its quirks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PAD = "<|endoftext|>"


@dataclass(frozen=True)
class Rollout:
    """One response: what a writer is given, and what a conversion is to give back."""

    step: int
    group: int
    prompt: str
    response: str
    reward: float
    tokens: list[int]
    prompt_tokens: list[int]
    old: list[float]
    ref: list[float]
    values: list[float]
    parts: dict[str, float | None] = field(default_factory=dict)
    """The reward functions' values."""

    @property
    def length(self) -> int:
        return len(self.tokens)


def rollouts(groups: int = 3, size: int = 4, steps: int = 2, seed: int = 0) -> list[Rollout]:
    """Responses of 1 to 9 tokens, `size` to a prompt, values that float32 holds."""
    rng = np.random.default_rng(seed)
    made = []
    for step in range(1, steps + 1):
        for group in range(groups):
            for _ in range(size):
                length = int(rng.integers(1, 10))
                numbers = np.float32(rng.normal(-1, 0.5, (3, length))).tolist()
                right, form = float(rng.integers(2)), float(np.float32(rng.random()))
                made.append(
                    Rollout(
                        step=step,
                        group=group,
                        prompt=f"What is {group} + {group}? “ß”\n",
                        response=" ".join(["w"] * length),
                        reward=right + form,
                        tokens=rng.integers(5, 99, length).tolist(),
                        prompt_tokens=rng.integers(5, 99, 2 + group).tolist(),
                        old=[-abs(x) for x in numbers[0]],
                        ref=[-abs(x) for x in numbers[1]],
                        values=numbers[2],
                        parts={"accuracy": right, "format": form},
                    )
                )
    return made


def write_lines(path: Path, records: Sequence[dict[str, Any]], **options: Any) -> Path:
    """One JSON object a line, as `json.dumps` writes it: NaN and Infinity are literals."""
    text = "".join(json.dumps(record, **options) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")
    return path


def open_instruct(path: Path, made: Sequence[Rollout], *, logprobs: bool = True) -> Path:
    """`RolloutRecord`s; `prompt_idx` counts within the step, in blocks."""
    within: dict[int, int] = {}
    records = []
    for one in made:
        place = within[one.step] = within.get(one.step, -1) + 1
        info = {
            "num_calls": 0, "timeouts": 0, "tool_errors": "", "tool_outputs": "",
            "tool_runtimes": 0.0, "tool_calleds": False, "tool_call_stats": [],
            "rollout_state": {},
        }  # fmt: skip
        records.append(
            {
                "step": one.step,
                "sample_idx": place,
                "prompt_idx": one.group,
                "prompt_tokens": one.prompt_tokens,
                "response_tokens": one.tokens,
                "reward": one.reward,
                "advantage": 0.0,
                "finish_reason": "length" if one.length == 9 else "stop",
                "dataset": "gsm8k",
                "ground_truth": [7, 8],
                "request_info": info,
                "logprobs": one.old if logprobs else None,
            }
        )
    return write_lines(path, records)


def roll_board(path: Path, made: Sequence[Rollout]) -> Path:
    """Padded tensors, cut at the first response token only: the right padding stays.

    Log-probabilities and masks have the shifted layout (entry t is of token t + 1); the token
    rewards are written uncut, and written a second time under `values`.
    """
    prompt_length = max(len(one.prompt_tokens) for one in made)
    response_length = max(one.length for one in made)
    shifted = prompt_length + response_length - 1
    records = []
    for one in made:
        first, end = prompt_length - 1, prompt_length - 1 + one.length
        mask, old, ref, token_rewards = (np.zeros(shifted) for _ in range(4))
        mask[first:end] = 1
        old[:], ref[:] = -3.25, -3.5  # the model has something to say on padding, too
        old[first:end], ref[first:end] = one.old, one.ref
        token_rewards[first:end] = -0.5 * (np.array(one.old) - np.array(one.ref))
        token_rewards[end - 1] += one.reward
        words = [f"t{token}" for token in one.tokens]
        padding = [PAD] * (response_length - one.length)
        records.append(
            {
                "log_probs2": old[first:].tolist(),
                "logprobs": old[first:].tolist(),
                "new_response_mask": mask[first:].astype(int).tolist(),
                "prompt": one.prompt,
                "response": one.response + "".join(padding),
                "old_log_probs2_entropy": np.ones(shifted - first).tolist(),
                "ref_logprobs": ref[first:].tolist(),
                "values": token_rewards.tolist(),
                "token_rewards": token_rewards.tolist(),
                "reward": one.reward,
                "step": one.step,
                "response_tokens": [*words, *padding],
            }
        )
    return write_lines(path, records, ensure_ascii=False)


def verl(path: Path, made: Sequence[Rollout], **extra: Sequence[Any]) -> Path:
    """One file a step; every reward-extra list of the right length becomes a field."""
    columns: dict[str, Sequence[Any]] = {
        "input": [one.prompt for one in made],
        "output": [one.response for one in made],
        "gts": [{"answer": one.group} if one.group else str(one.group) for one in made],
        "score": [one.reward for one in made],
        "step": [one.step for one in made],
    }
    columns |= {name: values for name, values in extra.items() if len(values) == len(made)}
    records = [{name: values[row] for name, values in columns.items()} for row in range(len(made))]
    return write_lines(path, records, ensure_ascii=False)


def trl(path: Path, made: Sequence[Rollout], *, chat: bool = False, **extra: pa.Array) -> Path:
    """A data frame: one column a reward function, missing values as null, a scalar advantage.

    Prompts and completions of conversations are lists of messages.
    """
    names = [*made[0].parts]

    def texts(role: str, values: list[str]) -> pa.Array:
        messages = [[{"role": role, "content": text}] for text in values]
        return pa.array(messages) if chat else pa.array(values, pa.large_string())

    table = pa.table(
        {
            "step": pa.array([one.step for one in made], pa.int64()),
            "prompt": texts("user", [one.prompt for one in made]),
            "completion": texts("assistant", [one.response for one in made]),
            **{n: pa.array([one.parts[n] for one in made], pa.float64()) for n in names},
            **extra,
            "advantage": pa.array([0.0] * len(made), pa.float64()),
        }
    )
    pq.write_table(table, path)
    return path


def ms_swift_ray(path: Path, made: Sequence[Rollout]) -> Path:
    """One response a line, with the sum of its rewards."""
    records = [
        {
            "gen_step": one.step,
            "prompt": one.prompt,
            "completion": one.response,
            "reward": one.reward,
        }
        for one in made
    ]
    return write_lines(path, records, ensure_ascii=False)


def ms_swift(path: Path, made: Sequence[Rollout]) -> Path:
    """One object of columns a line, one line a step, which is text."""
    records = []
    for step in sorted({one.step for one in made}):
        batch = [one for one in made if one.step == step]
        records.append(
            {
                "step": [str(step)] * len(batch),
                "prompt": [one.prompt for one in batch],
                "completion": [one.response for one in batch],
                **{name: [one.parts[name] for one in batch] for name in batch[0].parts},
                "advantages": [0.0] * len(batch),
            }
        )
    return write_lines(path, records, ensure_ascii=False)
