"""Training of the tiny model: imitation of worked solutions, then GRPO with a critic."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TypeVar

import torch
from tasks import EOS, Problem, encode
from tiny_model import Episode, Policy, Scores, padded, score
from torch import Tensor

IMITATION_RATE = 3e-3
EPOCHS, MINIBATCHES, POLICY_RATE, CLIP, KL_COEF = 2, 4, 1e-4, 0.2, 0.02
CRITIC_STEPS, CRITIC_RATE = 60, 2e-3

Matrices = TypeVar("Matrices", "Batch", Scores)


def own_text(text: str) -> list[int]:
    """1 for the model's own characters, 0 for a reply in brackets."""
    depth = accumulate((character == "[") - (character == "]") for character in text)
    return [int(inside == 0 and c != "]") for inside, c in zip(depth, text, strict=True)]


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the positions where the mask is 1."""
    return (x * mask).sum() / mask.sum()


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step on the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def imitate(policy: Policy, batches: Sequence[Sequence[Problem]]) -> Iterator[float]:
    """Learn the problems' worked solutions, a step for each batch; yields the losses."""
    optimizer = torch.optim.AdamW(policy.parameters(), IMITATION_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, IMITATION_RATE, len(batches), pct_start=0.1
    )
    for problems in batches:
        tokens = padded([[*encode(p.prompt + p.solution), EOS] for p in problems])
        mask = padded([[0] * len(p.prompt) + own_text(p.solution) + [1] for p in problems])[:, 1:]
        loss = -masked_mean(score(policy, tokens).log_probs, mask)
        descend(optimizer, loss)
        schedule.step()
        yield loss.item()


@dataclass(frozen=True)
class Batch:
    """Episodes as right-padded matrices [N, S], with an advantage each [N].

    The mask and the returns start at the second token: [N, S - 1], like `Scores`.
    """

    tokens: Tensor
    mask: Tensor
    returns: Tensor
    advantages: Tensor

    @classmethod
    def of(
        cls, episodes: Sequence[Episode], rewards: Sequence[Sequence[float]], *, group: int
    ) -> "Batch":
        """Build a batch from episodes and rewards; `group` successive episodes form a group."""
        pairs = list(zip(episodes, rewards, strict=True))
        totals = torch.tensor([sum(turns) for turns in rewards]).view(-1, group)
        centred = totals - totals.mean(1, keepdim=True)
        return cls(
            padded([episode.tokens for episode in episodes]),
            padded([[0] * len(e.prompt) + e.mask for e in episodes])[:, 1:],
            padded([[0.0] * len(e.prompt) + returns(e, turns) for e, turns in pairs])[:, 1:],
            (centred / (totals.std(1, keepdim=True) + 1e-6)).flatten(),
        )


def returns(episode: Episode, rewards: Sequence[float]) -> list[float]:
    """Return the sum of the rewards from the turn of each token to the end."""
    to_go = list(accumulate(reversed(rewards)))[::-1]
    turns = zip(episode.turns, to_go, strict=True)
    return [g for turn, g in turns for _ in range(turn.start, turn.stop)]


def warm_up_critic(policy: Policy, batch: Batch) -> float:
    """Fit the value head to episodes of the imitation model; return the loss."""
    optimizer = torch.optim.AdamW(policy.value.parameters(), CRITIC_RATE)
    with torch.no_grad():
        features = policy.trunk(batch.tokens[:, :-1])
    for _ in range(CRITIC_STEPS):
        misfit = (policy.value(features).squeeze(-1) - batch.returns).square()
        loss = masked_mean(misfit, batch.mask)
        descend(optimizer, loss)
    return loss.item()


def policy_loss(now: Scores, old: Scores, ref: Scores, batch: Batch) -> Tensor:
    """Clipped policy gradient, a k3 KL penalty to the reference, and the critic's squared error."""
    advantages = batch.advantages[:, None]
    ratio = (now.log_probs - old.log_probs).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    drift = ref.log_probs - now.log_probs
    penalty = drift.exp() - drift - 1
    misfit = (now.values - batch.returns).square()
    return masked_mean(misfit + KL_COEF * penalty - gain, batch.mask)


def improve(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, old: Scores, ref: Scores
) -> None:
    """One GRPO step: a few epochs over shuffled minibatches."""
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(batch.tokens)).chunk(MINIBATCHES):
            part, old_part, ref_part = (subset(whole, rows) for whole in (batch, old, ref))
            now = score(policy, part.tokens)
            descend(optimizer, policy_loss(now, old_part, ref_part, part))


def subset(whole: Matrices, rows: Tensor) -> Matrices:
    """Select rows of every tensor of a dataclass."""
    return type(whole)(**{f.name: getattr(whole, f.name)[rows] for f in fields(whole)})
