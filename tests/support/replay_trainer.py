"""Made rollouts, and a trainer that records what it computes from them, in plain loops.

A fault of the trainer is a changed field: everything before it is right, and everything after it
follows from the wrong number. Nothing here uses rlpost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Tokens = list[np.ndarray]
"""Numbers per token, an array for each response."""


def rollouts(
    seed: int,
    *,
    responses: int = 128,
    steps: int = 3,
    group: int | None = None,
    scale: float = 1.0,
    observations: bool = True,
) -> pa.Table:
    """Return rollouts of several steps, some of whose prompts return in a later step.

    Args:
        seed: of all random numbers.
        responses: about how many there are.
        steps: how many there are.
        group: the size of every prompt group; None: unequal sizes, with some groups of one.
        scale: factor of the rewards, which are otherwise about 0 to 1.
        observations: whether there are responses of several turns, with observation tokens between
            them and, in some, at the end.
    """
    rng = np.random.default_rng(seed)
    prompts = rng.permutation(10_000)
    used, rows = 0, []
    for step in range(steps):
        if step:
            used -= 4  # the last prompts of the step before return
        start = len(rows)
        for kind in range(responses):  # far more groups than fit
            size = group or int(rng.choice((1, 2, 3, 4, 6, 8), p=(0.2, 0.15, 0.2, 0.2, 0.15, 0.1)))
            rewards = _rewards(rng, size, kind) * scale
            rows += [(step, f"p{prompts[used]}", float(np.float32(r))) for r in rewards]
            used += 1
            if len(rows) - start >= responses / steps:
                break
        mixed = [rows[start + i] for i in rng.permutation(len(rows) - start)]
        rows[start:] = mixed
    masks = [_mask(rng, observations=observations) for _ in rows]
    old = [np.minimum(-rng.gamma(0.6, 1.5, len(m)), -1e-4) for m in masks]
    values = [np.cumsum(rng.normal(0, 0.1, len(m))) + rng.normal(0.4, 0.2) * scale for m in masks]
    return pa.table(
        {
            "step": pa.array([step for step, _, _ in rows], pa.int64()),
            "prompt_id": [prompt for _, prompt, _ in rows],
            "reward": pa.array([reward for _, _, reward in rows], pa.float32()),
            "response_mask": pa.array(masks, pa.list_(pa.uint8())),
            "old_log_probs": lists(old),
            "ref_log_probs": lists([_near(rng, x, 0.2) for x in old]),
            "infer_log_probs": lists([_near(rng, x, 0.03) for x in old]),
            "values": lists(values),
        }
    )


def _rewards(rng: np.random.Generator, size: int, kind: int) -> np.ndarray:
    """Return the rewards of a group: of ten, one has equal rewards, two have almost equal ones."""
    centre = rng.uniform(0.1, 0.9)
    width = {3: 0.0, 5: 0.01, 8: 0.01}.get(kind % 10, 0.35)
    return centre + width * rng.normal(size=size) + 0.4 * width * rng.exponential(size=size)


def _mask(rng: np.random.Generator, *, observations: bool) -> np.ndarray:
    length = int(rng.integers(3, 41))
    if not observations or rng.random() < 0.5:
        return np.ones(length, np.uint8)
    turns: list[int] = []
    while len(turns) < length:
        turns += [1] * int(rng.integers(2, 9)) + [0] * int(rng.integers(1, 6))
    mask = np.array(turns[:length], np.uint8)
    if rng.random() < 0.6:
        mask[-1] = 1  # most end with a token of the policy
    return mask


def _near(rng: np.random.Generator, log_probs: np.ndarray, noise: float) -> np.ndarray:
    return np.minimum(log_probs + rng.normal(0, noise, len(log_probs)), -1e-5)


def lists(rows: Sequence[np.ndarray]) -> pa.Array:
    """Return a column of float32 lists."""
    return pa.array([np.asarray(row, np.float32) for row in rows], pa.list_(pa.float32()))


def column(table: pa.Table, name: str) -> list[Any]:
    """Return a column: numbers or texts, or a float64 array for each list."""
    rows = table[name].to_pylist()
    is_list = pa.types.is_list(table.schema.field(name).type)
    return [np.array(row, np.float64) for row in rows] if is_list else rows


def shifted(values: np.ndarray, by: int) -> np.ndarray:
    """Return the tokens' values moved to later tokens, or to earlier ones if `by` is negative."""
    out = np.zeros_like(values)
    if by > 0:
        out[by:] = values[:-by]
    elif by < 0:
        out[:by] = values[-by:]
    return out if by else values


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What a trainer computes and records, stage by stage."""

    records: tuple[str, ...] = ("advantages",)
    noise: float = 0.0
    """Relative rounding error of normalised rewards and of raw advantages, one sigma."""

    mask_shift: int = 0
    reads_mask: bool = True
    value_shift: int = 0
    ref_shift: int = 0
    old: str = "old_log_probs"
    ref: str = "ref_log_probs"

    group_keys: tuple[str, ...] = ("step", "prompt_id")
    group_rows: int = 0
    """Groups are so many consecutive rows, whatever their prompts."""
    baseline: str = "none"
    """Subtracted from rewards: mean, others, none."""
    std: bool = False
    ddof: int = 1
    eps: float = 1e-6
    eps_inside: bool = False
    rounds_mean: bool = False
    """The mean of equal rewards is rounded to float32, which may differ from them."""
    single: str = "zero"
    """Reward of a group of one: zero, raw, or the formula's."""
    clip: float | None = None
    overlong: tuple[int, int, float] | None = None
    """Longest response, tokens before it that are penalised, and the penalty at its end."""

    beta: float = 0.0
    kl: str = "k1"
    kl_sign: int = 1
    place: str = "last_policy_token"
    """Token of the reward: last_policy_token, last_token."""
    sums_tokens: bool = False
    """The KL penalty of a response is on its last token, too."""

    credit: str = "response"
    """Advantage: response, return, gae."""
    gamma: float = 1.0
    lam: float = 1.0
    states: bool = False
    """Observation tokens have their own step of γ."""

    whiten: bool = False
    whiten_ddof: int = 1
    whiten_over: str = "policy"
    """Cells of the statistics: policy (tokens), padded (the rectangle of a step)."""

    masks_advantages: bool = True
    advantage_shift: int = 0

    def record(self, table: pa.Table) -> pa.Table:
        """Return the table with the recorded columns after its own."""
        found = self.columns(table)
        for name in self.records:
            numbers = found[name]
            rows = name == "response_level_rewards"
            new = pa.array(np.array(numbers, np.float32)) if rows else lists(numbers)
            table = table.append_column(name, new)
        return table

    def columns(self, table: pa.Table) -> dict[str, Any]:
        """Return all columns that the trainer can record."""
        steps = column(table, "step")
        masks = [shifted(m, self.mask_shift) for m in column(table, "response_mask")]
        masks = masks if self.reads_mask else [np.ones_like(m) for m in masks]
        values = [shifted(v, self.value_shift) for v in column(table, "values")]
        rng = np.random.default_rng(table.num_rows)
        rewards = [r * (1 + self.noise * rng.normal()) for r in self.normalised(table, masks)]
        if self.clip is not None:
            rewards = [min(max(r, -self.clip), self.clip) for r in rewards]
        kl = self.divergence(table, masks)
        tokens = [self.placed(*row) for row in zip(rewards, kl, masks, strict=True)]
        scans = [self.scanned(*row) for row in zip(tokens, values, masks, strict=True)]
        if self.credit == "response":
            scans = [np.full(len(m), r) for r, m in zip(rewards, masks, strict=True)]
        scans = [a * (1 + self.noise * rng.normal(size=len(a))) for a in scans]
        raw = [a * m if self.masks_advantages else a for a, m in zip(scans, masks, strict=True)]
        whitened = self.whitened(raw, masks, steps) if self.whiten else raw
        parts = zip(raw, values, masks, strict=True)
        returns = [(a + (v if self.credit == "gae" else 0)) * m for a, v, m in parts]
        return {
            "response_level_rewards": rewards,
            "kl": kl,
            "token_level_rewards": tokens,
            "raw_advantages": raw,
            "advantages": [shifted(a, self.advantage_shift) for a in whitened],
            "returns": returns,
        }

    def normalised(self, table: pa.Table, masks: Tokens) -> list[float]:
        """Return (r - baseline) / std of the group, or a part of that."""
        rewards = column(table, "reward")
        if self.overlong is not None:
            length, buffer, factor = self.overlong
            over = [max(0, int(m.sum()) - (length - buffer)) / buffer for m in masks]
            rewards = [r - factor * x for r, x in zip(rewards, over, strict=True)]
        keys = list(zip(*(column(table, name) for name in self.group_keys), strict=True))
        keys = [i // self.group_rows for i in range(len(keys))] if self.group_rows else keys
        members: dict[Any, list[int]] = {}
        for i, key in enumerate(keys):
            members.setdefault(key, []).append(i)
        out = list(rewards)
        for rows in members.values():
            xs = np.array([rewards[i] for i in rows])
            if len(xs) == 1:
                alone = {"zero": 0.0, "raw": xs[0]}.get(self.single, xs[0] - xs[0])
                out[rows[0]] = xs[0] if self.baseline == "none" else alone
                continue
            constant = xs.min() == xs.max() and not self.rounds_mean
            for i, x in zip(rows, xs, strict=True):
                out[i] = 0.0 if constant and self.std else self.centred(x, xs)
                out[i] /= 1.0 if constant or not self.std else self.spread(xs)
        return out

    def centred(self, x: float, xs: np.ndarray) -> float:
        if self.baseline == "none":
            return x
        if self.baseline == "others":
            return x - (xs.sum() - x) / (len(xs) - 1)
        if xs.min() == xs.max():
            total = np.float32(0)
            for one in xs:
                total = np.float32(total + np.float32(one))
            return float(x - total / np.float32(len(xs))) if self.rounds_mean else 0.0
        return x - xs.sum() / len(xs)

    def spread(self, xs: np.ndarray) -> float:
        var = ((xs - xs.mean()) ** 2).sum() / (len(xs) - self.ddof)
        return float(np.sqrt(var + self.eps) if self.eps_inside else np.sqrt(var) + self.eps)

    def divergence(self, table: pa.Table, masks: Tokens) -> Tokens:
        read = (shifted(x, self.ref_shift) for x in column(table, self.ref))
        gaps = [a - b for a, b in zip(column(table, self.old), read, strict=True)]
        kl = [np.expm1(-d) + d if self.kl == "k3" else d for d in gaps]
        return [x * m for x, m in zip(kl, masks, strict=True)]

    def placed(self, reward: float, kl: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return -β·KL, plus the reward on one token."""
        out = -self.kl_sign * self.beta * kl
        policy = np.flatnonzero(mask)
        if self.place == "last_token" and mask[-1]:
            out[-1] += reward
        elif self.place != "last_token" and len(policy):
            out[policy[-1]] += reward
        if self.sums_tokens and len(policy):
            total, out = out.sum(), np.zeros_like(out)
            out[policy[-1]] = total
        return out

    def scanned(self, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the return-to-go of each token, or its advantage of GAE."""
        out, later, value = np.zeros(len(rewards)), 0.0, 0.0
        for t in reversed(range(len(rewards))):
            if mask[t]:
                critic = self.gamma * value - values[t] if self.credit == "gae" else 0.0
                rate = self.gamma * (self.lam if self.credit == "gae" else 1.0)
                later = out[t] = rewards[t] + critic + rate * later
                value = values[t]
            elif self.states:
                later *= self.gamma
        return out

    def whitened(self, advantages: Tokens, masks: Tokens, steps: list[int]) -> Tokens:
        """Return the advantages of each step less their mean, by their standard deviation."""
        out = list(advantages)
        of_steps = [np.flatnonzero(np.array(steps) == one) for one in sorted(set(steps))]
        for rows in of_steps:
            cells = np.concatenate([advantages[i][masks[i] > 0] for i in rows])
            if self.whiten_over == "padded":
                width = max(len(masks[i]) for i in rows)
                cells = np.concatenate([cells, np.zeros(width * len(rows) - len(cells))])
            scale = np.sqrt(cells.var(ddof=self.whiten_ddof) + 1e-8)
            for i in rows:
                out[i] = (advantages[i] - cells.mean()) / scale * masks[i]
        return out
