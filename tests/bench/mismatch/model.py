"""A small Qwen2 with trained weights, its checkpoints over a run, and sampling from them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

if TYPE_CHECKING:
    from torch import Tensor

BOS, USER, END, ASSISTANT, TOOL, SYSTEM = range(6)
WORDS, FIRST = 256, 8
"""Size of the vocabulary; its first tokens are markers."""
TRAINED, UPDATES, RATE = 400, 2, 4e-4


class Language:
    """Sentences of a Markov chain whose rows have few likely successors, in chat markers.

    Args:
        seed: of the chain.
        power: the higher, the likelier is the likeliest successor: 0.17 at 3, 0.78 at 16.
    """

    def __init__(self, seed: int, power: float = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        own = torch.empty(WORDS, WORDS).exponential_(generator=generator) ** power
        own[:, :FIRST] = 0
        self.next = own

    def walk(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        """Return [rows, length] words."""
        tokens = torch.randint(FIRST, WORDS, (rows, 1), generator=generator)
        for _ in range(length - 1):
            likely = self.next[tokens[:, -1]]
            tokens = torch.cat([tokens, torch.multinomial(likely, 1, generator=generator)], 1)
        return tokens

    def prompts(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return [rows, S] prompts of one length, with the markers of a chat."""
        words = self.walk(rows, 8, generator)
        return torch.cat([marks(rows, BOS, USER), words, marks(rows, END, ASSISTANT)], 1)

    def observation(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return [rows, S] replies of a tool between two turns."""
        words = self.walk(rows, 4, generator)
        return torch.cat([marks(rows, END, TOOL), words, marks(rows, END, ASSISTANT)], 1)


def marks(rows: int, *tokens: int) -> Tensor:
    """Return the same tokens in each row, [rows, len(tokens)]."""
    return torch.tensor(tokens).expand(rows, -1)


@dataclass(frozen=True)
class Sampling:
    """How an engine samples: temperature, then top-k, top-p and min-p."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def log_probs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs of the distribution that is sampled, and the probability mass kept."""
        full = torch.log_softmax(logits.float() / self.temperature, -1)
        ordered, order = full.sort(-1, descending=True)
        mass = ordered.exp().cumsum(-1)
        kept = mass - ordered.exp() < self.top_p
        if self.top_k:
            kept[..., self.top_k :] = False
        kept &= ordered >= ordered[..., :1] + torch.tensor(max(self.min_p, 1e-30)).log()
        kept = torch.zeros_like(kept).scatter(-1, order, kept)
        total = torch.where(kept, full.exp(), 0).sum(-1, keepdim=True)
        return torch.where(kept, full - total.log(), -torch.inf), total[..., 0]


def trained(seed: int, power: float = 3) -> tuple[Language, Qwen2ForCausalLM]:
    """Return a language, and a model of random weights that was trained on it for some steps."""
    torch.manual_seed(seed)
    language, generator = Language(seed, power), torch.Generator().manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    for _ in range(TRAINED):
        tokens = torch.cat(
            [
                language.prompts(32, generator),
                language.walk(32, 16, generator),
                language.observation(32, generator),
                language.walk(32, 16, generator),
                marks(32, END),
            ],
            1,
        )
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return language, model.eval()


def checkpoints(
    language: Language, model: Qwen2ForCausalLM, count: int, seed: int
) -> list[Qwen2ForCausalLM]:
    """Return the models of a run of policy gradients: the first and after each step."""
    generator = torch.Generator().manual_seed(seed + 1)
    wanted = torch.randperm(WORDS, generator=generator)[: WORDS // 8]
    models, current = [model], copy.deepcopy(model)
    optimizer = torch.optim.Adam(current.parameters(), RATE)
    for _ in range(count - 1):
        for _ in range(UPDATES):
            prompts = language.prompts(64, generator)
            tokens = sampled(current, prompts, 16, Sampling(), generator).tokens
            log_probs = scored(current, tokens)[:, prompts.shape[1] - 1 :]
            reward = torch.isin(tokens[:, prompts.shape[1] :], wanted).float().sum(1)
            advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
            loss = -(advantage[:, None] * log_probs).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        models.append(copy.deepcopy(current))
    return models


def scored(model: Qwen2ForCausalLM, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probs [N, S-1] of the second and later tokens, by one forward pass."""
    logits = model(input_ids=tokens).logits[:, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None])[..., 0]


@dataclass
class Sampled:
    """Tokens with what was sampled, and by which probabilities."""

    tokens: Tensor
    """[N, S]."""
    processed: Tensor
    """[N, length] log-probs of the distribution that was sampled."""
    raw: Tensor
    """[N, length] log-probs of the model at temperature 1."""
    kept: Tensor
    """[N, length] probability mass that top-p, top-k and min-p keep."""


@torch.no_grad()
def sampled(
    model: Qwen2ForCausalLM,
    tokens: Tensor,
    length: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> Sampled:
    """Append tokens, one after another, with a key-value cache as engines have it."""
    cache, given = None, tokens
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(length):
        out = model(input_ids=given, past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, out.logits[:, -1]
        log_probs, kept = sampling.log_probs(logits)
        given = torch.multinomial(log_probs.exp(), 1, generator=generator)
        raw = torch.log_softmax(logits.float(), -1)
        parts.append((log_probs.gather(1, given)[:, 0], raw.gather(1, given)[:, 0], kept))
        tokens = torch.cat([tokens, given], 1)
    return Sampled(tokens, *(torch.stack(one, 1) for one in zip(*parts, strict=True)))
