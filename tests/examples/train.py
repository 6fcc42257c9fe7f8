"""Training loop on a file with advantages: `python train.py out.parquet`.

`rlpost advantages in.parquet out.parquet` writes the file, `rlpost.load` makes the batches, and
`rlpost.functional` computes the loss. Replace the policy, a small transformer, by your own.
"""

from __future__ import annotations

import argparse
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

import rlpost
from rlpost.functional import padded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Batch = dict[str, Any]
BATCH_TOKENS = 2048


class Step(NamedTuple):
    """What an optimiser step measured before its update."""

    loss: float
    gain: float
    """Mean of A · (log p - log p before training) over policy tokens."""
    clipped: float
    """Share of policy tokens at a bound of the clip."""


class Policy(nn.Module):
    """A causal transformer of two layers, with log-probs of the response tokens."""

    def __init__(self, vocabulary: int, width: int = 64, longest: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, batch: Batch) -> Tensor:
        """Return the log-prob of each response token, given the tokens before it: [B, T]."""
        ids, prompt = batch["input_ids"], batch["prompt_token_ids"].shape[1]
        count = ids.shape[1]
        causal = torch.ones(count, count, dtype=torch.bool).triu(1)
        padding = (~batch["attention_mask"])[:, None, :] & ~torch.eye(count, dtype=torch.bool)
        blocked = (causal | padding).repeat_interleave(4, dim=0)  # of each head
        states = self.layers(self.tokens(ids) + self.places(batch["position_ids"]), mask=blocked)
        logits = self.out(states[:, prompt - 1 : -1])
        log_probs: Tensor = logits.log_softmax(-1)
        return log_probs.gather(-1, batch["response_token_ids"][..., None]).squeeze(-1)


def steps_of(path: str | Path, micro_batches: int, seed: int) -> Iterator[list[Batch]]:
    """Yield the batches of each full optimiser step, one epoch after the other."""
    for epoch in count():
        batches = iter(rlpost.load(path, batch_tokens=BATCH_TOKENS, shuffle=seed + epoch))
        while len(step := list(islice(batches, micro_batches))) == micro_batches:
            yield step


def totals_of(batches: list[Batch]) -> dict[str, int]:
    """Return the totals of a step, so that the losses of its batches add up to the step's."""
    parts = [batch["totals"] for batch in batches]
    summed = {name: sum(part[name] for part in parts) for name in parts[0]}
    return {**summed, "longest": max(part["longest"] for part in parts)}


def train(
    path: str | Path, steps: int = 30, loss: str = "ppo", micro_batches: int = 2, seed: int = 0
) -> tuple[list[Step], Policy, Policy]:
    """Train on a file, one epoch after the other.

    Returns:
        The steps, the policy before, and the policy after training.
    """
    torch.manual_seed(seed)
    data = rlpost.load(path, batch_tokens=BATCH_TOKENS)
    vocabulary = 1 + max(int(batch["input_ids"].max()) for batch in data)
    policy, before = Policy(vocabulary), Policy(vocabulary)
    before.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    done: list[Step] = []
    for batches in islice(steps_of(path, micro_batches, seed), steps):
        totals, figures = totals_of(batches), torch.zeros(3)
        for batch in batches:
            advantages, mask = batch["advantages"], batch["mask"]
            with torch.no_grad():
                old = before(batch)
            new = policy(batch)
            result = padded.policy_loss(
                new, old, advantages, mask, loss=loss,
                sample_weight=batch.get("sample_weight"), is_weight=batch.get("is_weight"),
                totals=totals,
            )  # fmt: skip
            result.loss.backward()
            gain = (advantages * (new.detach() - old))[mask].sum() / totals["tokens"]
            clipped = (result.clip > 0).sum() / totals["tokens"]
            figures += torch.stack([result.loss.detach(), gain, clipped])
        optimizer.step()
        optimizer.zero_grad()
        done.append(Step(*figures.tolist()))
    return done, before, policy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small transformer on an enriched file.")
    parser.add_argument("path", help="output of rlpost advantages, with token ids")
    parser.add_argument("--steps", type=int, default=30, help="optimiser steps (default: 30)")
    parser.add_argument("--loss", default="ppo", help="loss, such as gspo (default: ppo)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default: 0)")
    given = parser.parse_args()
    done = train(given.path, given.steps, given.loss, seed=given.seed)[0]
    for number, step in enumerate(done):
        loss, gain, clipped = step
        print(f"step {number:2}  loss {loss:+.3f}  gain {gain:+.3f}  clipped {clipped:.1%}")
