"""A character-level transformer with a value head, and a rollout engine that samples from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from tasks import CALL_END, EOS, PAD, VOCABULARY, decode, encode
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the usual name

WIDTH, HEADS, LAYERS = 96, 4, 3


class Block(nn.Module):
    """Pre-norm causal self-attention with rotary positions, then a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [N, S, WIDTH] to the same shape."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair of features by the angle of its position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Policy(nn.Module):
    """Next-token logits and prefix values; the critic's gradient doesn't reach the trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(VOCABULARY), WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, len(VOCABULARY), bias=False)
        self.value = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))

    def trunk(self, tokens: Tensor) -> Tensor:
        """Features [N, S, WIDTH] of each prefix."""
        x = self.embed(tokens)
        half = WIDTH // HEADS // 2
        rates = 100.0 ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(tokens.shape[1]), rates)
        for block in self.blocks:
            x = block(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        return self.norm(x)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Float32 log-probabilities [N, S, vocabulary] and values [N, S] after each token."""
        x = self.trunk(tokens)
        return self.logits(x).float().log_softmax(-1), self.value(x.detach()).float().squeeze(-1)


@dataclass(frozen=True)
class Scores:
    """Scores of tokens, [N, S - 1]; entry t belongs to token t + 1."""

    log_probs: Tensor
    values: Tensor
    sum_pi_squared: Tensor
    entropy: Tensor


def score(policy: Policy, tokens: Tensor) -> Scores:
    """Teacher-forced scores of right-padded tokens [N, S]."""
    log_pi, values = policy(tokens[:, :-1])
    chosen = log_pi.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    constant = log_pi.detach()
    pi = constant.exp()
    return Scores(chosen, values, pi.square().sum(-1), -(pi * constant).sum(-1))


def padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """Ragged rows as one right-padded matrix, of the rows' own type."""
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=PAD)


@dataclass(frozen=True)
class Turn:
    """A range of the response: policy tokens, then the observation that follows them.

    `finish` is "length" if a limit, on its tokens or on the turns, ended the episode.
    """

    start: int
    stop: int
    finish: str


@dataclass(frozen=True)
class Limits:
    """Limits on turns and tokens of an episode, and the tool that replies to its calls."""

    turns: int
    turn_tokens: int
    tool: Callable[[str], str] | None = None


@dataclass
class Episode:
    """One prompt and its response so far."""

    prompt: list[int]
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    infer_log_probs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    observation: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def tokens(self) -> list[int]:
        """Prompt and response."""
        return self.prompt + self.response

    @property
    def turn_start(self) -> int:
        """Start of the current turn."""
        return self.turns[-1].stop if self.turns else 0

    def extend(self, sampled: int, log_probs: Tensor, limits: Limits) -> None:
        """Append the next token of a pending observation, otherwise the sampled token."""
        forced = bool(self.observation)
        token = self.observation.pop(0) if forced else sampled
        self.response.append(token)
        self.mask.append(int(not forced))
        self.infer_log_probs.append(float(log_probs[token]))
        if forced and not self.observation:
            cut = len(self.turns) + 1 == limits.turns
            self._end_turn("length" if cut else "stop", done=cut)
        elif not forced:
            self._react(token, limits)

    def _react(self, token: int, limits: Limits) -> None:
        if token == EOS:
            self._end_turn("stop", done=True)
        elif token == CALL_END and limits.tool is not None:
            self.observation = encode(limits.tool(decode(self.response[self.turn_start :])))
        elif len(self.response) - self.turn_start == limits.turn_tokens:
            self._end_turn("length", done=True)

    def _end_turn(self, finish: str, *, done: bool) -> None:
        self.turns.append(Turn(self.turn_start, len(self.response), finish))
        self.done = done


@torch.no_grad()
def rollout(
    engine: Policy, prompts: Sequence[str], limits: Limits, *, greedy: bool = False
) -> list[Episode]:
    """Continue each prompt at temperature 1 (or greedily) until its episode ends."""
    episodes = [Episode(encode(prompt)) for prompt in prompts]
    while live := [episode for episode in episodes if not episode.done]:
        tokens = padded([episode.tokens for episode in live])
        last = torch.tensor([len(episode.tokens) - 1 for episode in live])
        log_pi = engine(tokens)[0][torch.arange(len(live)), last]
        sampled = log_pi.argmax(-1) if greedy else torch.multinomial(log_pi.exp(), 1).squeeze(-1)
        for episode, token, row in zip(live, sampled.tolist(), log_pi, strict=True):
            episode.extend(token, row, limits)
    return episodes
