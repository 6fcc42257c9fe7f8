"""Training loop on a file with advantages: `python train.py out.parquet`.

`rlpost advantages in.parquet out.parquet --whiten-advantages` writes the file. pyarrow reads it,
torch makes the batches, and rlpost computes the loss. Replace the policy, a small recurrent
network, by your own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from rlpost.functional import padded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Sample = dict[str, Tensor]
TOKENS = ("prompt_tokens", "response_tokens", "response_mask", "advantages")


class Rollouts(Dataset[Sample]):
    """Responses of a file with advantages: the tokens and advantages of each."""

    def __init__(self, path: str | Path) -> None:
        masked = ["sample_mask"] if "sample_mask" in pq.read_schema(path).names else []
        table = pq.read_table(path, columns=[*TOKENS, *masked], memory_map=True)
        # Responses that the sample masks drop have zero advantages, so they give no gradient.
        kept = table.filter(table["sample_mask"]) if masked else table
        self.table = kept.combine_chunks()

    def __len__(self) -> int:
        """Return the number of responses that the sample masks keep."""
        return int(self.table.num_rows)

    def __getitem__(self, row: int) -> Sample:
        """Return one response as tensors."""
        return {name: torch.tensor(self.table[name][row].values.to_numpy()) for name in TOKENS}


def collate(samples: Sequence[Sample]) -> Sample:
    """Right-pad responses to [B, T]; the mask is 0 on prompts and padding."""
    sequences = [torch.cat([one["prompt_tokens"], one["response_tokens"]]) for one in samples]
    before = [torch.zeros(len(one["prompt_tokens"])) for one in samples]
    behind = {
        name: pad_sequence(
            [torch.cat([zero, one[name]]) for zero, one in zip(before, samples, strict=True)],
            batch_first=True,
        )
        for name in ("response_mask", "advantages")
    }
    tokens = pad_sequence(sequences, batch_first=True).long()
    return {"tokens": tokens, "mask": behind["response_mask"], "advantages": behind["advantages"]}


class Policy(nn.Module):
    """A recurrent network that predicts the next token."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the log-prob of each token after the first, given its prefix: [B, T-1]."""
        logits = self.out(self.mix(self.embed(tokens[:, :-1]))[0])
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def train(path: str | Path, epochs: int = 4, batch_size: int = 64) -> list[float]:
    """Train with PPO on one file; return the mean loss of each epoch."""
    torch.manual_seed(0)
    data = Rollouts(path)
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, collate_fn=collate)
    vocabulary = 1 + max(int(data.table[name].combine_chunks().values.to_numpy().max())
                         for name in ("prompt_tokens", "response_tokens"))  # fmt: skip
    policy, before = Policy(vocabulary), Policy(vocabulary)
    before.load_state_dict(policy.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    means = []
    for _ in range(epochs):
        losses = []
        for batch in loader:
            with torch.no_grad():
                old = before(batch["tokens"])
            result = padded.policy_loss(
                policy(batch["tokens"]), old, batch["advantages"][:, 1:], batch["mask"][:, 1:]
            )
            optimizer.zero_grad()
            result.loss.backward()
            optimizer.step()
            losses.append(result.loss.item())
        means.append(sum(losses) / len(losses))
    return means


if __name__ == "__main__":
    for epoch, loss in enumerate(train(sys.argv[1])):
        print(f"epoch {epoch}: loss {loss:.4f}")
