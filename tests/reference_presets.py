"""What frameworks compute, as slow float64 loops written from their sources; no rlpost code.

A function takes a rollout and options, and returns columns: a list per response, of numbers per
token. Numbers on observation tokens are not compared. The table [source] of a preset names the
source.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from reference import Response, Rollout, Tokens, batches, clamp, groups, mean, rows_by, std

if TYPE_CHECKING:
    from collections.abc import Callable

Columns = dict[str, Tokens]


def kl(row: Response, estimator: str, log_clamp: float, bound: float, clamps: str) -> list[float]:
    """The KL of the old policy from the reference at each token."""
    found = []
    for old, ref in zip(row.old, row.ref, strict=True):
        d = clamp(old - ref, -log_clamp, log_clamp)
        one = {"k1": d, "k2": d * d / 2, "k3": math.expm1(-d) + d}[estimator]
        found.append(clamp(one, -bound, bound) if clamps in ("all", estimator) else one)
    return found


def per_group(rows: Rollout, values: list[float], function) -> list[float]:
    """Call a function of a group's values for each group."""
    out = [0.0] * len(rows)
    for members in rows_by(groups(rows)).values():
        numbers = function([values[i] for i in members])
        for i, number in zip(members, numbers, strict=True):
            out[i] = number
    return out


def centred(xs: list[float]) -> list[float]:
    return [x - mean(xs) for x in xs]


def over_tokens(rows: Rollout, numbers: list[float]) -> Tokens:
    return [[x] * len(r.mask) for r, x in zip(rows, numbers, strict=True)]


def whitened(rows: Rollout, values: Tokens, ddof: int, floor: str) -> Tokens:
    """Whiten over the policy tokens of a step; ε 1e-8 is added to the variance or its floor."""
    out: Tokens = [[]] * len(rows)
    for members in batches(rows):
        kept = [x for i in members for x, m in zip(values[i], rows[i].mask, strict=True) if m]
        centre = math.fsum(kept) / len(kept)
        variance = math.fsum((x - centre) ** 2 for x in kept) / (len(kept) - ddof)
        scale = math.sqrt(max(variance, 1e-8) if floor == "clamp" else variance + 1e-8)
        for i in members:
            out[i] = [(x - centre) / scale for x in values[i]]
    return out


def last_policy(row: Response) -> int:
    return max((t for t, m in enumerate(row.mask) if m), default=-1)


def returns(rewards: list[float], gamma: float) -> list[float]:
    """One γ per token, observations included."""
    out, running = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        running = rewards[t] + gamma * running
        out[t] = running
    return out


def gae(
    rewards: list[float], values: list[float], gamma: float, lam: float, cut=lambda _: False
) -> list[float]:
    """Every token is a state; at tokens that cut, nothing comes from the next one."""
    out, running = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        later = 0.0 if t + 1 == len(rewards) or cut(t) else values[t + 1]
        delta = rewards[t] + gamma * later - values[t]
        running = delta + (0.0 if cut(t) else gamma * lam * running)
        out[t] = running
    return out


def plus(one: Tokens, other: Tokens) -> Tokens:
    return [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(one, other, strict=True)]


def row_penalty(rows: Rollout, limit: int, buffer: int, factor: float, lowest: float) -> Rollout:
    """Subtract a penalty for the tokens beyond limit - buffer, observations included."""
    shaped = []
    for r in rows:
        over = len(r.mask) - (limit - buffer)
        shaped.append(replace(r, reward=r.reward + clamp(-over / buffer * factor, lowest, 0.0)))
    return shaped


# NeMo-RL


def leave_one_out(xs: list[float]) -> list[float]:
    """Reward minus the mean of the others, divided by their deviation + 1e-6 unless that is 0."""
    out = []
    for i, x in enumerate(xs):
        others = xs[:i] + xs[i + 1 :]
        spread = std(others) if len(others) > 1 else 0.0
        out.append((x - mean(others)) / (spread + 1e-6 if spread else 1.0) if others else 0.0)
    return out


def nemo_grpo(rows: Rollout) -> Columns:
    scores = per_group(rows, [r.reward for r in rows], leave_one_out)
    return {"advantages": over_tokens(rows, scores)}


def trained_on_answers(rows: Rollout, loop: Callable[[Rollout], Columns]) -> Columns:
    """The numbers of a loop over all rows; then the loss masks of those that failed are 0."""
    values = loop(rows)["advantages"]
    pairs = zip(rows, values, strict=True)
    return {"advantages": [[0.0] * len(own) if r.failure else own for r, own in pairs]}


def nemo_overlong(rows: Rollout, limit: int, buffer: int, factor: float) -> Columns:
    return nemo_grpo(row_penalty(rows, limit, buffer, factor, -math.inf))


def nemo_gdpo(rows: Rollout, weights: dict[str, float]) -> Columns:
    total = [0.0] * len(rows)
    for name, weight in weights.items():
        scores = per_group(rows, [r.components[name] for r in rows], leave_one_out)
        total = [x + weight * y for x, y in zip(total, scores, strict=True)]
    for members in batches(rows):
        own = [total[i] for i in members]
        for i in members:
            total[i] = (total[i] - mean(own)) / std(own)
    return {"advantages": over_tokens(rows, total)}


def nemo_reinforce_plus_plus(rows: Rollout, beta: float = 0.0, estimator: str = "k3") -> Columns:
    scores = per_group(rows, [r.reward for r in rows], centred)
    charged = [[-beta * x for x in kl(r, estimator, 20.0, 10.0, "all")] for r in rows]
    values = plus(over_tokens(rows, scores), charged)
    return {"advantages": whitened(rows, values, 0, "clamp")}


def nemo_raw_reward(rows: Rollout) -> Columns:
    values = over_tokens(rows, [r.reward for r in rows])
    return {"advantages": whitened(rows, values, 0, "clamp")}


def nemo_gae(rows: Rollout, beta: float = 0.0) -> Columns:
    """Observation tokens are skipped: the next policy token's value and sum are carried."""
    advantages, targets = [], []
    for r in rows:
        own = [t for t, m in enumerate(r.mask) if m]
        penalties = kl(r, "k3", 20.0, 10.0, "all")
        rewards = [-beta * penalties[t] + r.reward * (t == last_policy(r)) for t in own]
        found = gae(rewards, [r.values[t] for t in own], 1.0, 0.95)
        spread = [0.0] * len(r.mask)
        for t, x in zip(own, found, strict=True):
            spread[t] = x
        advantages.append(spread)
        targets.append([x + v for x, v in zip(spread, r.values, strict=True)])
    return {"advantages": whitened(rows, advantages, 1, "add"), "returns": targets}


def nemo_opd(rows: Rollout) -> Columns:
    pairs = [zip(r.ref, r.old, strict=True) for r in rows]
    return {"advantages": [[teacher - old for teacher, old in pair] for pair in pairs]}


# Corrections between rollout engine and trainer, as in NeMo-RL, OpenRLHF and slime


def token_ratios(rows: Rollout) -> Tokens:
    return [[math.exp(a - b) for a, b in zip(r.old, r.infer, strict=True)] for r in rows]


def clamped_weights(rows: Rollout, low: float, high: float) -> Columns:
    return {"is_weight": [[clamp(x, low, high) for x in xs] for xs in token_ratios(rows)]}


def masked_weights(rows: Rollout, low: float, high: float) -> Columns:
    return {"is_weight": [[x * (low <= x <= high) for x in xs] for xs in token_ratios(rows)]}


def response_filter(rows: Rollout, low: float, high: float) -> Columns:
    """Plain token weights of the responses whose geometric mean is in range, else 0."""
    found = []
    for r, ratios in zip(rows, token_ratios(rows), strict=True):
        logs = [a - b for a, b, m in zip(r.old, r.infer, r.mask, strict=True) if m]
        kept = not logs or low <= math.exp(mean(logs)) <= high
        found.append([x * kept for x in ratios])
    return {"is_weight": found}


# OpenRLHF


def openrlhf(
    rows: Rollout, name: str, beta: float = 0.0, gamma: float = 1.0, estimator: str = "k1"
) -> Columns:
    scores = [r.reward for r in rows]
    if name == "flash_reinforce":
        for members in batches(rows):
            centre = mean([rows[i].reward for i in members])
            for i in members:
                scores[i] -= centre
    elif name in ("reinforce_baseline", "dr_grpo"):
        scores = per_group(rows, scores, centred)
    elif name == "rloo":
        scores = per_group(rows, scores, _rloo)
    elif name == "group_norm":
        scores = per_group(rows, scores, lambda xs: [x / (std(xs) + 1e-9) for x in centred(xs)])
    advantages, targets = [], []
    for r, score in zip(rows, scores, strict=True):
        penalties = kl(r, estimator, math.inf, 10.0, "all")
        rewards = [-beta * x for x in penalties]
        rewards[last_policy(r)] += clamp(score, -10.0, 10.0)
        rewards = [x * m for x, m in zip(rewards, r.mask, strict=True)]
        values = [x * m for x, m in zip(r.values, r.mask, strict=True)]
        if name == "gae":
            advantages.append(gae(rewards, values, gamma, 1.0))
            targets.append([x + v for x, v in zip(advantages[-1], values, strict=True)])
        else:
            advantages.append(returns(rewards, gamma))
            targets.append(advantages[-1])
    if name in ("gae", "reinforce", "reinforce_baseline"):
        advantages = whitened(rows, advantages, 0, "clamp")
    found = {"advantages": advantages}
    return found | ({"returns": targets} if name == "gae" else {})


def _rloo(xs: list[float]) -> list[float]:
    return [x - (math.fsum(xs) - x) / (len(xs) - 1) for x in xs]


def openrlhf_overlong(rows: Rollout, limit: int, buffer: int, factor: float) -> Columns:
    return openrlhf(row_penalty(rows, limit, buffer, factor, -factor), "dr_grpo")


def openrlhf_truncated(rows: Rollout, coefficient: float) -> Columns:
    """Truncated responses: the reward times a coefficient, or the coefficient if it is negative."""
    shaped = []
    for r in rows:
        scaled = coefficient if coefficient < 0 else r.reward * coefficient
        shaped.append(replace(r, reward=scaled if r.finish_reason == "length" else r.reward))
    return openrlhf(shaped, "dr_grpo")


# slime


def slime(
    rows: Rollout, name: str, beta: float = 0.0, gamma: float = 1.0, estimator: str = "k1"
) -> Columns:
    scores = [r.reward for r in rows]
    penalties = [kl(r, estimator, math.inf, 10.0, "k3") for r in rows]
    if name in ("grpo", "gspo", "cispo"):
        scores = per_group(rows, scores, lambda xs: [x / (std(xs) + 1e-6) for x in centred(xs)])
        return {"advantages": over_tokens(rows, scores)}
    if name == "reinforce_plus_plus_baseline":
        scores = per_group(rows, scores, centred)
        charged = [[-beta * x for x in xs] for xs in penalties]
        values = plus(over_tokens(rows, scores), charged)
        return {"advantages": whitened(rows, values, 1, "add"), "returns": values}
    advantages, targets = [], []
    for r, score, charges in zip(rows, scores, penalties, strict=True):
        rewards = [-beta * x for x in charges]
        if name == "ppo":  # every token is a policy token
            rewards[-1] += score
            advantages.append(gae(rewards, r.values, gamma, 1.0))
            targets.append([x + v for x, v in zip(advantages[-1], r.values, strict=True)])
            continue
        rewards = [x * m for x, m in zip(rewards, r.mask, strict=True)]
        if last_policy(r) >= 0:
            rewards[last_policy(r)] += score
        advantages.append(returns(rewards, gamma))
        targets.append(advantages[-1])
    if name == "reinforce_plus_plus":
        advantages = whitened(rows, advantages, 1, "add")
    return {"advantages": advantages, "returns": targets}


# prime-rl


def prime_rl(rows: Rollout, name: str) -> Columns:
    """Rollouts without trainable tokens are not in their group."""
    scores = [r.reward for r in rows]
    out = [0.0] * len(rows)
    average: dict[str, float] = {}
    for members in rows_by(groups(rows)).values():
        kept = [i for i in members if any(rows[i].mask)]
        centre = mean([scores[i] for i in kept]) if kept else 0.0
        for i in kept:
            if name == "grpo":
                out[i] = scores[i] - centre
            elif name == "max_rl":
                out[i] = (scores[i] - centre) / centre if centre > 0 else 0.0
            else:  # rae: a moving average of the agent's rewards, used before its update
                before = average.get(rows[i].domain, 0.0)
                out[i] = scores[i] - before
                average[rows[i].domain] = 0.9 * before + 0.1 * scores[i]
    return {"advantages": over_tokens(rows, out)}


# open-instruct


def open_instruct(rows: Rollout, name: str) -> Columns:
    """centered, or divided by the population's deviation + 1e-8."""

    def scored(xs: list[float]) -> list[float]:
        deviation = math.sqrt(math.fsum(x * x for x in centred(xs)) / len(xs))
        return [x / (deviation + 1e-8 if name == "standard" else 1.0) for x in centred(xs)]

    return {"advantages": over_tokens(rows, per_group(rows, [r.reward for r in rows], scored))}


def open_instruct_gae(rows: Rollout, gamma: float, lam: float) -> Columns:
    """At a token that is no policy token, nothing comes from the next one."""
    advantages, targets = [], []
    for r in rows:
        rewards = [r.reward * (t + 1 == len(r.mask)) for t in range(len(r.mask))]
        advantages.append(gae(rewards, r.values, gamma, lam, cut=lambda t, r=r: not r.mask[t]))
        targets.append([x + v for x, v in zip(advantages[-1], r.values, strict=True)])
    return {"advantages": advantages, "returns": targets}


def open_instruct_kl(rows: Rollout, estimator: str = "k3") -> Columns:
    """The KL of the current policy, its log ratio in ±40."""
    current = [replace(r, old=r.current) for r in rows]
    return {"kl": [kl(r, estimator, 40.0, math.inf, "all") for r in current]}


def open_instruct_weights(rows: Rollout, cap: float) -> Columns:
    """The ratio, its logarithm in ±10, at most cap."""
    pairs = [zip(r.old, r.infer, strict=True) for r in rows]
    ratios = [[math.exp(clamp(a - b, -10.0, 10.0)) for a, b in pair] for pair in pairs]
    return {"is_weight": [[min(x, cap) for x in xs] for xs in ratios]}


# ROLL


def roll(
    rows: Rollout, name: str, beta: float = 0.0, clip: float = math.inf, estimator: str = "k1"
) -> Columns:
    """Rewards on the last token, lost if that is an observation; every token is a state."""
    scores = [r.reward for r in rows]
    if name == "grpo":
        scores = per_group(rows, scores, lambda xs: [x / (std(xs) + 1e-6) for x in centred(xs)])
    elif name == "deviation":
        scores = per_group(rows, scores, lambda xs: [x / (std(xs) + 1e-6) for x in xs])
    elif name == "batch":  # a domain of a step
        for members in rows_by([(r.batch, r.domain) for r in rows]).values():
            own = [rows[i].reward for i in members]
            for i, x in zip(members, centred(own), strict=True):
                scores[i] = x / (std(own) + 1e-6)
    advantages, targets = [], []
    for r, score in zip(rows, scores, strict=True):
        charges = kl(r, estimator, math.inf, 10.0, "k3")
        rewards = [-beta * x * m for x, m in zip(charges, r.mask, strict=True)]
        rewards[-1] += clamp(score, -clip, clip)
        rewards = [clamp(x, -clip, clip) * m for x, m in zip(rewards, r.mask, strict=True)]
        found = gae(rewards, r.values, 1.0, 0.95) if name == "gae" else returns(rewards, 1.0)
        advantages.append(_by_segment(r, rewards) if name == "agentic_reinforce" else found)
        values = r.values if name == "gae" else [0.0] * len(r.mask)
        targets.append([x + v for x, v in zip(advantages[-1], values, strict=True)])
    return {"advantages": advantages, "returns": targets}


def roll_gigpo(rows: Rollout) -> Columns:
    """Centred episode scores, a row each, plus centred step returns of equal states of a batch."""
    episodes = per_group(rows, [r.episode_score for r in rows], centred)
    steps = [0.0] * len(rows)
    for members in rows_by([(r.batch, r.group, r.traj_id) for r in rows]).values():
        running = 0.0
        for i in sorted(members, key=lambda i: -rows[i].turn):
            running += rows[i].step_score
            steps[i] = running
    for members in rows_by([(r.batch, r.domain, r.state_id) for r in rows]).values():
        own = centred([steps[i] for i in members])
        for i, x in zip(members, own, strict=True):
            steps[i] = x
    shaped = [replace(r, reward=e + s) for r, e, s in zip(rows, episodes, steps, strict=True)]
    advantages = []
    for r in shaped:
        rewards = [r.reward * (t + 1 == len(r.mask)) * m for t, m in enumerate(r.mask)]
        advantages.append(returns(rewards, 0.5))
    return {"advantages": advantages}


def _by_segment(row: Response, rewards: list[float], gamma: float = 0.5) -> list[float]:
    """The discounted sum, over runs of policy tokens, of the last token's reward of each."""
    out, running = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        if row.mask[t] and (t + 1 == len(rewards) or not row.mask[t + 1]):
            running = rewards[t] + gamma * running
        out[t] = running if row.mask[t] else 0.0
    return out


def roll_whitened(rows: Rollout) -> Columns:
    """Returns of reinforce, whitened over a domain of a step."""
    of_domain = [replace(r, batch=f"{r.batch} {r.domain}") for r in rows]
    found = roll(rows, "reinforce")
    return {"advantages": whitened(of_domain, found["advantages"], 1, "add")}
