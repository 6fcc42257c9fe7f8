"""Dumps with token data, written field by field as each framework's own writer does."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import torch

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Sample:
    """One response with every list that any framework keeps, one entry per response token."""

    group: int
    index: int
    prompt: list[int]
    tokens: list[int]
    mask: list[int]
    old: list[float]
    ref: list[float]
    infer: list[float]
    values: list[float]
    advantages: list[float]
    reward: float
    truncated: bool = False
    turns: list[tuple[int, int]] = field(default_factory=list)
    """(tokens, mask) of each message of the response, in order."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.tokens]


def made(groups: int = 3, size: int = 4, seed: int = 0) -> list[Sample]:
    """Groups of responses; every third one has tool output between two turns.

    Numbers are multiples of 1/64, which float32 and JSON hold exactly.
    """
    draw = random.Random(seed)  # noqa: S311 - test data
    prompts = [[100 + g, *(draw.randrange(50) for _ in range(1 + g))] for g in range(groups)]
    return [
        _one(draw, index // size, index, prompts[index // size]) for index in range(groups * size)
    ]


def _one(draw: random.Random, group: int, index: int, prompt: list[int]) -> Sample:
    turns = [(draw.randrange(1, 5), 1)]
    if index % 3 == 0:
        turns += [(draw.randrange(1, 3), 0), (draw.randrange(1, 4), 1)]
    mask = [kind for count, kind in turns for _ in range(count)]
    length = len(mask)

    def numbers(low: int, high: int, *, masked: bool = True) -> list[float]:
        return [draw.randrange(low, high) / 64 * (m if masked else 1) for m in mask]

    return Sample(
        group, index, prompt, [draw.randrange(1, 50) for _ in range(length)], mask,
        numbers(-200, -1), numbers(-200, -1), numbers(-200, -1), numbers(-64, 64, masked=False),
        numbers(-64, 64), draw.randrange(-64, 64) / 64, truncated=index % 4 == 1, turns=turns,
    )  # fmt: skip


def lines(path: Path, records: list[object]) -> Path:
    """Records as JSONL, as Python's json writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


# NeMo-RL: tensors padded to the longest sequence, iterated in micro-batches of one


def seekable(data: bytes, frame: int = 1000, *, table=True) -> bytes:
    """Return data as zstd with a table of frames, which end anywhere, as pyzstd writes it."""
    parts = [data[at : at + frame] for at in range(0, len(data), frame)]
    packed = [pa.compress(part, "zstd", asbytes=True) for part in parts]
    entries = b"".join(
        struct.pack("<II", len(a), len(b)) for a, b in zip(packed, parts, strict=True)
    )
    footer = struct.pack("<IBI", len(parts), 0, 0x8F92EAB1)
    head = struct.pack("<II", 0x184D2A5E, len(entries) + len(footer))
    return b"".join(packed) + (head + entries + footer if table else b"")


def nemo_rl(folder: Path, samples: list[Sample], *, on_policy=False, dynamic=False) -> Path:
    longest = max(len(one.ids) for one in samples) + 2

    def padded(lists: list[list], fill) -> torch.Tensor:
        return torch.tensor([[*one, *[fill] * (longest - len(one))] for one in lists])

    def full(name: str) -> list[list[float]]:
        # The policy scores prompts too; the entry of token 0 is a filler.
        return [[0.0, *[-0.5] * (len(s.prompt) - 1), *getattr(s, name)] for s in samples]

    sampled = [[0.0] * len(s.prompt) + s.infer for s in samples]
    previous = [[0.0] * len(s.ids) for s in samples] if on_policy else full("old")
    rewards = torch.tensor([s.reward for s in samples])
    batch = {
        "agent_ref": [{"name": f"agent{s.group % 2}"} for s in samples],
        "content": [f"prompt {s.group} answer {s.index}" for s in samples],
        "rewards": (rewards.flip(0) + 9 if dynamic else rewards).tolist(),
        **({"filtered_rewards": rewards.tolist()} if dynamic else {}),
        "input_lengths": [len(s.ids) for s in samples],
        "token_ids": padded([s.ids for s in samples], 0).tolist(),
        "token_loss_mask": padded([[0] * len(s.prompt) + s.mask for s in samples], 0).tolist(),
        "sample_loss_mask": [1.0 for _ in samples],
        "advantages": padded([[0.0] * len(s.prompt) + s.advantages for s in samples], 0.0).tolist(),
        "generation_logprobs": padded(sampled, 0.0).tolist(),
        "prev_logprobs": padded(previous, 0.0).tolist(),
    }
    return lines(
        folder / "train_data_step7.jsonl",
        [
            {**{name: column[i : i + 1] for name, column in batch.items()}, "idx": i}
            for i in range(len(samples))
        ],
    )


# slime: `Sample.to_dict()` and the trainer's data-parallel shards, put back in order


def slime_sample(one: Sample) -> dict:
    return {
        "group_index": one.group,
        "index": one.index,
        "prompt": f"prompt {one.group}",
        "tokens": one.ids,
        "multimodal_inputs": None,
        "multimodal_train_inputs": None,
        "response": f"answer {one.index}",
        "response_length": len(one.tokens),
        "label": "42",
        "reward": one.reward,
        "loss_mask": one.mask if 0 in one.mask else None,
        "weight_versions": ["3"],
        "rollout_log_probs": one.infer,
        "rollout_routed_experts": None,
        "remove_sample": False,
        "teacher_log_probs": None,
        "status": "truncated" if one.truncated else "completed",
        "metadata": {},
        "generate_function_path": None,
        "train_metadata": None,
        "session_id": None,
        "non_generation_time": 0.0,
        "spec_info": {"spec_accept_token_num": 0},
        "prefix_cache_info": {"cached_tokens": 0, "total_prompt_tokens": 0},
    }


def saved(path: Path, dump: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dump, path)
    return path


def slime_rollout(folder: Path, samples: list[Sample]) -> Path:
    dump = {"rollout_id": 7, "samples": [slime_sample(one) for one in samples]}
    return saved(folder / "rollout_data" / "7.pt", dump)


def slime_train(folder: Path, samples: list[Sample]) -> Path:
    """Two data-parallel shards of interleaved samples, gathered and sorted by position."""
    held = []
    for rank in (1, 0):
        for position in range(rank, len(samples), 2):
            one = samples[position]
            held.append(
                {
                    "data_parallel_rank": rank,
                    "sample_index": one.index,
                    "rollout_position": position,
                    "tokens": torch.tensor(one.ids),
                    "total_lengths": len(one.ids),
                    "response_lengths": len(one.tokens),
                    "loss_masks": torch.tensor(one.mask, dtype=torch.int),
                    "rewards": one.reward / 2,
                    "truncated": int(one.truncated),
                    "rollout_ids": one.index,
                    "log_probs": torch.tensor(one.old),
                    "rollout_log_probs": torch.tensor(one.infer),
                    "ref_log_probs": torch.tensor(one.ref),
                    "values": torch.tensor(one.values, dtype=torch.bfloat16),
                    "advantages": torch.tensor(one.advantages),
                    "returns": torch.tensor(one.advantages),
                }
            )
    held.sort(key=lambda one: one["rollout_position"])
    dump = {
        "format_version": 2,
        "rollout_id": 7,
        "rank": 0,
        "samples": held,
        "dp_shards": [{"rank": 0, "data_parallel_rank": 0, "partition": [0, 2]}],
        "raw_reward": [one.reward for one in samples],
    }
    return saved(folder / "train_data" / "7.pt", dump)


# prime-rl: episodes with message graphs, and what the trainer exports


def _nodes(one: Sample) -> list[dict]:
    scaffold = 1  # the generation prompt stands on the assistant's node, before what is sampled
    nodes: list[dict] = [
        {
            "parent": None,
            "message": {"role": "user", "content": f"prompt {one.group}"},
            "sampled": False,
            "token_ids": one.prompt[:-scaffold],
            "mask": [False] * (len(one.prompt) - scaffold),
            "logprobs": [],
        }
    ]
    at = 0
    for count, sampled in one.turns:
        lead = one.prompt[-scaffold:] if at == 0 else []
        part = slice(at, at + count)
        nodes.append(
            {
                "parent": len(nodes) - 1,
                "message": {"role": "assistant" if sampled else "tool", "content": f"part {at}"},
                "sampled": bool(sampled),
                "token_ids": [*lead, *one.tokens[part]],
                "mask": [*[False] * len(lead), *[bool(sampled)] * count],
                "logprobs": one.infer[part] if sampled else [],
                **({"reference_logprobs": one.ref[part]} if sampled else {}),
                **({"advantages": one.advantages[part]} if sampled else {}),
            }
        )
        at += count
    return nodes


def prime_rl_traces(folder: Path, samples: list[Sample]) -> Path:
    episodes = [
        {
            "id": f"episode{one.index}",
            "env": {"id": "gsm8k", "name": f"env{one.group % 2}"},
            "task": {"type": "T", "data": {"idx": one.group}, "key": f"k{one.group}", "hash": "h"},
            "group": {"id": f"g{one.group}"},
            "run": {"type": "train", "id": "r", "work": {
                "type": "train", "step": 7, "policy": {"start": 5, "end": 6}}},
            "ok": True,
            "errors": [],
            "traces": [
                {
                    "version": 1,
                    "id": f"trace{one.index}",
                    "task": {"type": "T", "data": {}},
                    "agent": {"config": {}, "name": "solver", "trainable": True},
                    "nodes": _nodes(one),
                    "calls": [{"node": 1, "finish_reason": "length" if one.truncated else "stop"}],
                    "rewards": {
                        "correct": {"score": one.reward * 2, "weight": 0.5},
                        "style": {"score": 3.0, "weight": 0.0},
                    },
                    "metrics": {},
                    "info": {},
                    "is_completed": True,
                    "ok": True,
                },
                {
                    "version": 1,
                    "id": f"judge{one.index}",
                    "task": {"type": "T", "data": {}},
                    "agent": {"config": {}, "name": "judge", "trainable": False},
                    "nodes": _nodes(one),
                    "rewards": {},
                },
            ],
        }
        for one in samples
    ]  # fmt: skip
    return lines(folder / "traces" / "step_7" / "train" / "traces.jsonl", episodes)


def prime_rl_tokens(folder: Path, samples: list[Sample]) -> Path:
    def full(one: Sample, values: list, fill) -> list:
        return [*[fill] * len(one.prompt), *values]

    return lines(
        folder / "token_exports" / "step_7" / "rank_0.jsonl",
        [
            {
                "schema_version": 1,
                "step": 7,
                "export_step": 7,
                "rank": 0,
                "micro_step": 0,
                "micro_sequence_idx": place,
                "export_sequence_idx": place,
                "run_id": None,
                "env_name": f"env{one.group % 2}",
                "token_ids": one.ids,
                "position_ids": list(range(len(one.ids))),
                "loss_mask": full(one, [bool(m) for m in one.mask], fill=False),
                "advantages": full(one, one.advantages, 0.0),
                "inference_logprobs": full(one, one.infer, 0.0),
                "trainer_logprobs": full(one, one.old, -0.25),
                "entropy": full(one, [0.5] * len(one.tokens), 0.5),
                "mismatch_kl": [None] * len(one.ids),
                "is_masked": [None] * len(one.ids),
                "rl_weights": [None] * len(one.ids),
            }
            for place, one in enumerate(samples)
        ],
    )


# ROLL: one object of columns


def roll_rollout(folder: Path, samples: list[Sample]) -> Path:
    columns = {
        "id": [f"q{one.group}" for one in samples],
        "source": ["math" for _ in samples],
        "difficulty": ["0.5" if one.group else "hard" for one in samples],
        "prompt": [f"prompt {one.group}" for one in samples],
        "messages": [json.dumps([{"role": "user"}]) for _ in samples],
        "ground_truth": ["42" for _ in samples],
        "domain": [f"domain{one.group % 2}" for one in samples],
        "responses": [f"answer {one.index}" for one in samples],
        "scores": [one.reward for one in samples],
        "sampling_params": ["{}" for _ in samples],
        "global_step": [7 for _ in samples],
    }
    return lines(folder / "rollout_dump_data.step_7.jsonl", [columns])


def roll_agentic(folder: Path, samples: list[Sample]) -> Path:
    columns = {
        "trajectory_data": [
            json.dumps(
                {
                    "trajectory_id": f"t{one.index}",
                    "env_info": {"task_name": f"task{one.group}"},
                    "reward_info": {"episode_reward": one.reward},
                }
            )
            for one in samples
        ],
        "messages": [json.dumps([]) for _ in samples],
        "tools": ["[]" for _ in samples],
        "exp_name": ["run" for _ in samples],
        "global_step": [7 for _ in samples],
    }
    return lines(folder / "rollout_dump_data.step_7.jsonl", [columns])
