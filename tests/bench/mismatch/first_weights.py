"""An engine that keeps its first weights while every sync reports success.

    python -m tests.bench.mismatch.first_weights FILE

A miniature of the first real run of martingale 0.2.0, in which small updates of float32 weights
rounded away in an engine of bfloat16. The mean log-ratio is -0.41, as there. A model this small
follows its trainer even in bfloat16, so the engine keeps the first weights wholly. It generates
what the trainer learns from, and is nearly certain of most tokens; `policy_version` states that it
has the weights of the step. The script needs transformers.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tests.bench.mismatch.model import RATE, WORDS, Sampling, sampled, scored, trained

SEED, POWER = 11, 16
STEPS, PROMPTS, ROWS, LENGTH, UPDATES = 6, 12, 4, 16, 4
STORED = 24
"""Rows of a step that the dump has."""


def main(path: Path) -> None:
    """Write the dump."""
    torch.set_num_threads(1)
    language, model = trained(SEED, POWER)
    trainer = model.bfloat16().float()
    engine = copy.deepcopy(trainer).bfloat16()
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.Adam(trainer.parameters(), RATE)
    wanted = torch.randperm(WORDS, generator=generator)[: WORDS // 8]
    rows: list[dict[str, object]] = []
    for step in range(STEPS):
        prompts = language.prompts(PROMPTS, generator).repeat_interleave(ROWS, 0)
        start = prompts.shape[1]
        rollout = sampled(engine, prompts, LENGTH, Sampling(), generator)
        reward = torch.isin(rollout.tokens[:, start:], wanted).float().sum(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        for update in range(UPDATES):
            log_probs = scored(trainer, rollout.tokens)[:, start - 1 :]
            rows += [
                {
                    "prompt_id": f"{step}-{row // ROWS}",
                    "step": step,
                    "policy_version": step,
                    "reward": float(reward[row]),
                    "prompt_token_ids": rollout.tokens[row, :start].tolist(),
                    "response_token_ids": rollout.tokens[row, start:].tolist(),
                    "infer_log_probs": rollout.processed[row].tolist(),
                    "old_log_probs": log_probs[row].tolist(),
                }
                for row in range(STORED if update == 0 else 0)
            ]
            loss = -(advantage[:, None] * log_probs).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    types = dict.fromkeys(("infer_log_probs", "old_log_probs"), pa.list_(pa.float32()))
    types |= dict.fromkeys(("prompt_token_ids", "response_token_ids"), pa.list_(pa.int32()))
    names = {name: pa.array([row[name] for row in rows], types.get(name)) for name in rows[0]}
    pq.write_table(pa.table(names), path, compression="zstd")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
