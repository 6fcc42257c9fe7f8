"""Dumps with planted causes of a difference between rollout engine and trainer.

Each is sampled from a real model. The trainer recomputes the log-probs of all tokens in one
forward pass in float32; a cause changes what the engine samples from, what it returns, or what the
trainer is given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from tests.bench.mismatch.model import (
    BOS,
    END,
    SYSTEM,
    TOOL,
    USER,
    Sampling,
    checkpoints,
    sampled,
    trained,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Qwen2ForCausalLM

    from tests.bench.mismatch.model import Language

STEPS, PROMPTS, ROWS = 8, 24, 4
EARLIER = 4
"""Checkpoints before the first step, for stale engines."""
Change = Callable[["np.ndarray", "np.random.Generator"], "np.ndarray"]
Inputs = Callable[["Tensor"], "Tensor"]


@dataclass(frozen=True)
class Setup:
    """How engine and trainer of a run differ; the default is that they do not.

    Args:
        sampling: of the engine.
        raw: the engine returns log-probs of its model instead of those that it samples from.
        trained_at: temperature of the trainer.
        lag: updates by which the engine's weights are older, by row of a step and step.
        claims_lag: `policy_version` has the lag; else it states that there is none.
        engine_type: number type of the engine's forward pass.
        trainer_type: number type of the trainer's forward pass.
        returned: changes the engine's log-probs of a row, [length].
        given: the tokens that the trainer has before those of the policy.
        noise: nats of ordinary noise between kernels.
    """

    sampling: Sampling = field(default_factory=Sampling)
    raw: bool = False
    trained_at: float = 1.0
    lag: Callable[[int, np.random.Generator], int] = lambda _step, _random: 0
    claims_lag: bool = True
    engine_type: torch.dtype = torch.float32
    trainer_type: torch.dtype = torch.float32
    returned: Change = lambda values, _: values
    given: Inputs = lambda tokens: tokens
    noise: float = 0.0


def shifted(by: int) -> Change:
    """Return the change that moves log-probs by some tokens."""

    def change(values: np.ndarray, _: np.random.Generator) -> np.ndarray:
        return np.roll(values, by)

    return change


def perturbed(share: float, nats: float) -> Change:
    """Return the change that lowers or raises the log-probs of a few tokens."""

    def change(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
        hit = random.random(len(values)) < share
        return np.minimum(np.where(hit, values + random.normal(0, nats, len(values)), values), 0.0)

    return change


def rounded(values: np.ndarray, _: np.random.Generator) -> np.ndarray:
    """Return log-probs as bfloat16 stores them."""
    return torch.from_numpy(values).bfloat16().float().numpy()


def without_bos(tokens: Tensor) -> Tensor:
    """Return tokens whose first marker is another word."""
    return torch.where(tokens == BOS, SYSTEM, tokens)


def other_markers(tokens: Tensor) -> Tensor:
    """Return tokens in which replies of tools are those of users."""
    return torch.where(tokens == TOOL, USER, tokens)


TRUNCATED = "truncated-sampling"
SINGLE: dict[str, tuple[str, Setup]] = {
    "T 0.7, processed": ("temperature", Setup(Sampling(0.7))),
    "T 1.3, processed": ("temperature", Setup(Sampling(1.3))),
    "T 0.8 at the trainer alone": ("temperature", Setup(trained_at=0.8)),
    "T 0.7, raw beside a scaled trainer": (
        "temperature",
        Setup(Sampling(0.7), raw=True, trained_at=0.7),
    ),
    "top-p 0.8": (TRUNCATED, Setup(Sampling(top_p=0.8))),
    "top-p 0.95": (TRUNCATED, Setup(Sampling(top_p=0.95))),
    "top-k 20": (TRUNCATED, Setup(Sampling(top_k=20))),
    "min-p 0.05": (TRUNCATED, Setup(Sampling(min_p=0.05))),
    "1 update old": ("stale-weights", Setup(lag=lambda _step, _random: 1)),
    "4 updates old": ("stale-weights", Setup(lag=lambda _step, _random: 4)),
    "0 to 4 updates old": ("stale-weights", Setup(lag=lambda _, random: int(random.integers(5)))),
    "no sync after step 3": (
        "failed-sync",
        Setup(lag=lambda step, _: max(0, step - 3), claims_lag=False),
    ),
    "no sync in steps 4 and 5": (
        "failed-sync",
        Setup(lag=lambda step, _: {4: 1, 5: 2}.get(step, 0), claims_lag=False),
    ),
    "bfloat16 engine": ("precision", Setup(engine_type=torch.bfloat16)),
    "float16 engine": ("precision", Setup(engine_type=torch.float16)),
    "log-probs in bfloat16": ("precision", Setup(returned=rounded)),
    "one token later": ("shift", Setup(returned=shifted(1))),
    "one token earlier": ("shift", Setup(returned=shifted(-1))),
    "no BOS at the trainer": ("template", Setup(given=without_bos)),
    "other markers at the trainer": ("template", Setup(given=other_markers)),
    "1 % of the tokens, 2 nats": ("few-tokens", Setup(returned=perturbed(0.01, 2.0))),
    "0.3 % of the tokens, 6 nats": ("few-tokens", Setup(returned=perturbed(0.003, 6.0))),
}
PAIRS: dict[str, tuple[tuple[str, str], Setup]] = {
    "T 0.8 and 3 updates old": (
        ("temperature", "stale-weights"),
        Setup(Sampling(0.8), lag=lambda _, random: int(random.integers(4))),
    ),
    "T 0.8 and few tokens": (
        ("temperature", "few-tokens"),
        Setup(Sampling(0.8), returned=perturbed(0.01, 2.0)),
    ),
    "T 0.8 and bfloat16": (
        ("temperature", "precision"),
        Setup(Sampling(0.8), engine_type=torch.bfloat16),
    ),
    "top-p 0.9 and 0 to 4 updates old": (
        (TRUNCATED, "stale-weights"),
        Setup(Sampling(top_p=0.9), lag=lambda _, random: int(random.integers(5))),
    ),
    "top-k 20 and few tokens": (
        (TRUNCATED, "few-tokens"),
        Setup(Sampling(top_k=20), returned=perturbed(0.01, 2.0)),
    ),
    "0 to 4 updates old and few tokens": (
        ("stale-weights", "few-tokens"),
        Setup(lag=lambda _, random: int(random.integers(5)), returned=perturbed(0.01, 2.0)),
    ),
    "no sync after step 3 and T 0.8": (
        ("failed-sync", "temperature"),
        Setup(Sampling(0.8), lag=lambda step, _: max(0, step - 3), claims_lag=False),
    ),
    "other markers and T 0.8": (
        ("template", "temperature"),
        Setup(Sampling(0.8), given=other_markers),
    ),
}
CLEAN: dict[str, Setup] = {
    "equal kernels": Setup(),
    "noise of 1e-4": Setup(noise=1e-4),
    "noise of 1e-3": Setup(noise=1e-3),
    "T 0.7 on both sides": Setup(Sampling(0.7), trained_at=0.7),
    "T 1.2 on both sides": Setup(Sampling(1.2), trained_at=1.2),
}


@dataclass
class Planted:
    """A dump, and what is true of it."""

    table: pa.Table
    kept: float
    """Mean probability mass that the sampling keeps, of the sampled tokens."""
    gap: float
    """Mean |old - infer| of the policy tokens, nats."""


@dataclass
class Models:
    """A language and the models of a run, made once a seed."""

    seed: int
    language: Language = field(init=False)
    models: list[Qwen2ForCausalLM] = field(init=False)
    _cast: dict[tuple[int, torch.dtype], Qwen2ForCausalLM] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.language, first = trained(self.seed)
        self.models = checkpoints(self.language, first, EARLIER + STEPS, self.seed)

    def at(self, version: int, kind: torch.dtype) -> Qwen2ForCausalLM:
        """Return the model of a version in a number type."""
        if kind == torch.float32:
            return self.models[version]
        key = version, kind
        if key not in self._cast:
            self._cast[key] = copy.deepcopy(self.models[version]).to(kind)
        return self._cast[key]

    @torch.no_grad()
    def plant(self, setup: Setup) -> Planted:
        """Return the dump of a run of some steps, two turns a response."""
        random = np.random.default_rng(self.seed)
        generator = torch.Generator().manual_seed(self.seed + 7)
        rows: dict[str, list[object]] = {}
        kept: list[np.ndarray] = []
        for step in range(STEPS):
            lags = [setup.lag(step, random) for _ in range(PROMPTS)]
            for lag in sorted({*lags}):
                prompts = lags.count(lag)
                kept += self._batch(setup, step, lag, prompts, rows, random, generator)
        gaps = [
            np.abs(np.subtract(old, infer))[np.asarray(mask) > 0]
            for old, infer, mask in zip(
                rows["old_log_probs"], rows["infer_log_probs"], rows["response_mask"], strict=True
            )
        ]
        numbers = pa.list_(pa.float32())
        types = {"response_mask": pa.list_(pa.uint8())} | dict.fromkeys(
            ("infer_log_probs", "old_log_probs", "entropy"), numbers
        )
        if self.seed % 2:
            rows.pop("entropy")
        table = pa.table({name: pa.array(one, types.get(name)) for name, one in rows.items()})
        return Planted(
            table, float(np.concatenate(kept).mean()), float(np.concatenate(gaps).mean())
        )

    def _batch(
        self,
        setup: Setup,
        step: int,
        lag: int,
        prompts: int,
        rows: dict[str, list[object]],
        random: np.random.Generator,
        generator: torch.Generator,
    ) -> list[np.ndarray]:
        """Add the responses to some prompts of a step; return the kept mass of each."""
        engine = self.at(EARLIER + step - lag, setup.engine_type)
        trainer = self.at(EARLIER + step, setup.trainer_type)
        prompt = self.language.prompts(prompts, generator).repeat_interleave(ROWS, 0)
        count, start = len(prompt), prompt.shape[1]
        first = sampled(engine, prompt, int(random.integers(10, 30)), setup.sampling, generator)
        reply = self.language.observation(count, generator)
        context = torch.cat([first.tokens, reply], 1)
        second = sampled(engine, context, 30, setup.sampling, generator)
        tokens = second.tokens
        logits = trainer(input_ids=setup.given(tokens)).logits[:, :-1].float() / setup.trained_at
        full = torch.log_softmax(logits, -1)
        own = full.gather(-1, tokens[:, 1:, None])[..., 0]
        entropy = -(full.exp() * full).sum(-1)
        observed = torch.zeros_like(reply, dtype=torch.float32)
        name = "raw" if setup.raw else "processed"
        engine_log_probs = torch.cat([getattr(first, name), observed, getattr(second, name)], 1)
        mask = torch.cat([torch.ones_like(first.raw), observed, torch.ones_like(second.raw)], 1)
        mass = torch.cat([first.kept, second.kept], 1)
        group = len({*rows.get("prompt_id", [])})
        for row in range(count):
            replied = first.raw.shape[1] + reply.shape[1]
            ends = np.flatnonzero(tokens[row, start + replied :].numpy() == END)
            cut = replied + (int(ends[0]) + 1 if len(ends) else int(random.integers(12, 31)))
            values = engine_log_probs[row, :cut].numpy().astype(np.float32)
            noisy = values + random.normal(0, setup.noise, cut).astype(np.float32)
            own_mask = mask[row, :cut].numpy().astype(np.uint8)
            returned = values * 0
            policy = own_mask > 0
            returned[policy] = np.minimum(setup.returned(noisy[policy], random), 0)
            entry = {
                "prompt_id": f"{step}-{group + row // ROWS}",
                "step": step,
                "policy_version": step - lag if setup.claims_lag else step,
                "reward": float(random.integers(0, 2)),
                "prompt_token_ids": tokens[row, :start].tolist(),
                "response_token_ids": tokens[row, start : start + cut].tolist(),
                "response_mask": own_mask.tolist(),
                "infer_log_probs": returned.tolist(),
                "old_log_probs": own[row, start - 1 : start - 1 + cut].tolist(),
                "entropy": entropy[row, start - 1 : start - 1 + cut].tolist(),
            }
            for column, value in entry.items():
                rows.setdefault(column, []).append(value)
        return [mass.flatten().numpy()]
