"""Reference of every stage except the estimators: slow float64 loops without any rlpost code.

A rollout is a list of `Response`s in file order. Numbers per response are a list of floats, numbers
per token (`Tokens`) a list of lists. There are two masks. `mask` is 1 on policy tokens; the stages
of rewards use it. `final_mask` is also 0 on all tokens of dropped responses; statistics over tokens
and the output use it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

Tokens = list[list[float]]


@dataclass(frozen=True, kw_only=True)
class Response:
    """One row of a rollout file; `kept` is its sample mask."""

    group: str | int
    reward: float
    mask: list[int]
    batch: int | str = 0
    domain: str = ""
    old: list[float] | None = None
    ref: list[float] | None = None
    infer: list[float] | None = None
    current: list[float] | None = None
    values: list[float] | None = None
    token_rewards: list[float] | None = None
    sum_pi_squared: list[float] | None = None
    teachers: dict[str, list[float]] = field(default_factory=dict)
    components: dict[str, float] = field(default_factory=dict)
    difficulty: float | None = None
    reward_baseline: float | None = None
    next_value: float | None = None
    finish_reason: str | None = None
    failure: str | None = None
    traj_id: str = ""
    turn: int = 0
    state_id: str = ""
    step_score: float = 0.0
    episode_score: float = 0.0
    turn_reward: float | None = None
    win_rate: float | None = None
    hack: bool = False
    kept: bool = True
    behind: float = 0.0
    """Value of the state behind the end."""

    @property
    def length(self) -> int:
        """n_i, the number of policy tokens."""
        return sum(self.mask)

    @property
    def final_mask(self) -> list[int]:
        return [m * self.kept for m in self.mask]


Rollout = Sequence[Response]


# Small statistics


def rows_by(keys: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Row numbers by key, keys in order of first appearance."""
    found: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        found.setdefault(key, []).append(row)
    return found


def groups(rows: Rollout) -> list[Hashable]:
    """g(i) = (batch, group): a prompt that returns in a later batch is another group."""
    return [(r.batch, r.group) for r in rows]


def batches(rows: Rollout) -> list[list[int]]:
    """Row numbers of each batch, batches in ascending order."""
    found = rows_by([r.batch for r in rows])
    return [found[key] for key in sorted(found)]  # type: ignore[type-var]


def mean(xs: Sequence[float]) -> float:
    """Σx / n; equal values have exactly that value as their mean."""
    if min(xs) == max(xs):
        return xs[0]
    return math.fsum(xs) / len(xs)


def std(xs: Sequence[float]) -> float:
    """√(Σ(x - mean)² / (n - 1)); 0 for one value and for equal values."""
    if min(xs) == max(xs):
        return 0.0
    centre = mean(xs)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in xs) / (len(xs) - 1))


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def by_key(
    keys: Sequence[Hashable], values: Sequence[float], statistic: Callable[[list[float]], float]
) -> list[float]:
    """For each row, the statistic of the values that share its key."""
    out = [math.nan] * len(keys)
    for members in rows_by(keys).values():
        number = statistic([values[i] for i in members])
        for i in members:
            out[i] = number
    return out


# Stage 1: sample masks. Each is True for the responses that it keeps.


def shorter_kept(rows: Rollout, limit: int) -> list[bool]:
    return [r.length < limit for r in rows]


def difficulty_kept(rows: Rollout, low: float = 0.1, high: float = 0.95) -> list[bool]:
    """low < mean raw reward of the group < high, and every group of one."""
    rewards = [r.reward for r in rows]
    means = by_key(groups(rows), rewards, mean)
    sizes = by_key(groups(rows), rewards, len)
    return [n == 1 or low < m < high for m, n in zip(means, sizes, strict=True)]


def error_max_len_kept(rows: Rollout, limit: int) -> list[bool]:
    """Reward 1, or reward 0 and shorter than the limit; never a reward between 0 and 1."""
    return [r.reward == 1 or (r.reward == 0 and r.length < limit) for r in rows]


def varied_group_kept(rows: Rollout) -> list[bool]:
    """Groups with at least two different rewards, and every group of one."""
    rewards = [r.reward for r in rows]
    spread = by_key(groups(rows), rewards, lambda xs: max(xs) - min(xs))
    sizes = by_key(groups(rows), rewards, len)
    return [n == 1 or width > 0 for n, width in zip(sizes, spread, strict=True)]


def in_company_kept(rows: Rollout) -> list[bool]:
    """Groups of two or more."""
    return [n > 1 for n in by_key(groups(rows), [r.reward for r in rows], len)]


def finished_kept(rows: Rollout) -> list[bool]:
    return [r.finish_reason != "length" for r in rows]


def with_sample_mask(rows: Rollout, *masks: Sequence[bool]) -> list[Response]:
    """The same responses; a response is kept if every mask keeps it."""
    return [replace(r, kept=all(mask[i] for mask in masks)) for i, r in enumerate(rows)]


# Stage 2: reward shaping


def overlong_penalties(
    rows: Rollout, max_length: int, buffer: int, factor: float = 1.0
) -> list[float]:
    """min(0, -(n_i - (max_length - buffer)) / buffer · factor)."""
    return [min(0.0, -(r.length - (max_length - buffer)) / buffer * factor) for r in rows]


# Stage 3: reward normalisation


@dataclass
class RunningMoments:
    """Running mean and population variance; `std` applies Bessel's correction."""

    count: float = 1e-24
    mean: float = 0.0
    var: float = 1.0

    def fold(self, xs: Sequence[float]) -> None:
        """Chan's parallel merge of (count, mean, var) with those of one batch."""
        n, centre = len(xs), mean(xs)
        total, delta = self.count + n, centre - self.mean
        m2_batch = math.fsum((x - centre) ** 2 for x in xs)
        m2 = self.var * self.count + m2_batch + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.var, self.count = m2 / total, total

    @property
    def std(self) -> float:
        """√(var · n / (n - 1)); 0 for a single value."""
        if self.count <= 1:
            return 0.0
        return math.sqrt(self.var * self.count / (self.count - 1))


def running_statistics(
    rows: Rollout, rewards: Sequence[float], moments: dict[str, RunningMoments]
) -> tuple[list[float], list[float]]:
    """Mean and std of each response's domain, including its own batch; updates `moments`."""
    means, stds = [math.nan] * len(rows), [math.nan] * len(rows)
    for batch in batches(rows):
        for domain, places in rows_by([rows[i].domain for i in batch]).items():
            members = [batch[place] for place in places]
            known = moments.setdefault(str(domain), RunningMoments())
            known.fold([rewards[i] for i in members])
            for i in members:
                means[i], stds[i] = known.mean, known.std
    return means, stds


def normalised_rewards(
    rows: Rollout,
    rewards: Sequence[float],
    *,
    mean_of: str = "group",
    std_of: str = "group",
    eps: float = 1e-6,
    moments: dict[str, RunningMoments] | None = None,
) -> list[float]:
    """(r - mean) / (std + ε), each over batch, group, running or none; a std of 0 gives 0."""
    centres, scales = [0.0] * len(rows), [math.nan] * len(rows)
    if "running" in (mean_of, std_of):
        centres, scales = running_statistics(rows, rewards, {} if moments is None else moments)
    keys = {"group": groups(rows), "batch": [r.batch for r in rows]}
    if mean_of != "running":
        centres = by_key(keys[mean_of], rewards, mean) if mean_of in keys else [0.0] * len(rows)
    if std_of in keys:
        scales = by_key(keys[std_of], rewards, std)
    centred = [x - centre for x, centre in zip(rewards, centres, strict=True)]
    if std_of == "none":
        return centred
    return [c / (s + eps) if s > 0 else 0.0 for c, s in zip(centred, scales, strict=True)]


# Stages 4, 5 and 9: clipping


def clipped(xs: Sequence[float], bound: float) -> list[float]:
    return [clamp(x, -bound, bound) for x in xs]


def masked_in(rows: Rollout, values: Tokens) -> list[float]:
    """All token values under the final mask, in one list."""
    cells = [zip(xs, r.final_mask, strict=True) for r, xs in zip(rows, values, strict=True)]
    return [x for row in cells for x, m in row if m]


# Stage 5: token rewards


def divergence(d: float, estimator: str, ratio: float = 1.0) -> float:
    """An estimate of KL(π_old ‖ π_ref) from d = log π_old - log π_ref of one token."""
    if estimator in ("k1", "kl"):
        return d
    if estimator == "abs":
        return abs(d)
    if estimator in ("k2", "mse"):
        return d * d / 2
    if estimator in ("k3", "low_var_kl"):
        return clamp(math.expm1(-d) + d, -10, 10)
    if estimator == "k4":
        return ratio * d
    raise ValueError(estimator)


def token_kl(rows: Rollout, estimator: str = "k1", *, bound: float = 40.0) -> Tokens:
    """KL(old ‖ ref) of each token, 0 on observation tokens."""
    return [row_kl(r, r.ref, estimator, bound) for r in rows]


def row_kl(
    r: Response, other: list[float] | None, estimator: str, bound: float = 40.0
) -> list[float]:
    """d is clamped to ±bound; k4's ratio, of the current to the old policy, is not."""
    assert r.old is not None
    assert other is not None
    out = []
    for m, old, base, new in zip(r.mask, r.old, other, r.current or r.old, strict=True):
        d = clamp(old - base, -bound, bound)
        out.append(divergence(d, estimator, math.exp(new - old)) if m else 0.0)
    return out


def batch_kl(rows: Rollout, kl: Tokens) -> float:
    """Mean over responses of the mean over policy tokens; an empty response counts as 0."""
    means = [math.fsum(xs) / max(r.length, 1) for r, xs in zip(rows, kl, strict=True)]
    return math.fsum(means) / len(rows)


def adaptive_betas(
    rows: Rollout, kl: Tokens, *, beta: float, target: float, horizon: float
) -> list[float]:
    """β of each response; each batch uses the current β, then updates it for the next batch."""
    out = [math.nan] * len(rows)
    for members in batches(rows):
        for i in members:
            out[i] = beta
        seen = batch_kl([rows[i] for i in members], [kl[i] for i in members])
        beta *= 1 + clamp(seen / target - 1, -0.2, 0.2) * len(members) / horizon
    return out


def token_rewards(
    rows: Rollout,
    rewards: Sequence[float],
    kl: Tokens | None = None,
    betas: Sequence[float] | None = None,
) -> Tokens:
    """Process rewards - β·KL, plus the reward on the last policy token; 0 on observations."""
    out = []
    for i, r in enumerate(rows):
        row = [0.0] * len(r.mask)
        last = max((t for t, m in enumerate(r.mask) if m), default=None)
        for t, m in enumerate(r.mask):
            process = r.token_rewards[t] if r.token_rewards is not None else 0.0
            terminal = rewards[i] if t == last else 0.0
            penalty = betas[i] * kl[i][t] if kl is not None and betas is not None else 0.0
            row[t] = (process + terminal - penalty) * m
        out.append(row)
    return out


# Stages 6 and 8: whitening


def whitened_rewards(rows: Rollout, values: Tokens, eps: float = 1e-8) -> Tokens:
    """(x - mean) / √(var + ε) by batch; dropped responses don't count in mean and var."""
    out: Tokens = [[] for _ in rows]
    for members in batches(rows):
        seen = masked_in([rows[i] for i in members], [values[i] for i in members])
        centre, scale = 0.0, 1.0
        if len(seen) > 1:
            centre, scale = mean(seen), math.sqrt(std(seen) ** 2 + eps)
        for i in members:
            out[i] = [
                (x - centre) / scale * m for x, m in zip(values[i], rows[i].mask, strict=True)
            ]
    return out


def final_masked(rows: Rollout, values: Tokens) -> Tokens:
    return [
        [x if m else 0.0 for x, m in zip(xs, r.final_mask, strict=True)]
        for r, xs in zip(rows, values, strict=True)
    ]


def whitened_advantages(rows: Rollout, values: Tokens, eps: float = 1e-8) -> Tokens:
    return final_masked(rows, whitened_rewards(rows, values, eps))


# Stage 10: weights


def difficulty_weights(rows: Rollout) -> list[float]:
    return [0.5 + 1.5 * clamp(r.difficulty or 0.0, 0.0, 1.0) for r in rows]


def length_weights(rows: Rollout) -> list[float]:
    """1.5 - (n_i - min) / (max - min + 1e-8) over the batch."""
    keys, lengths = [r.batch for r in rows], [float(r.length) for r in rows]
    bounds = zip(lengths, by_key(keys, lengths, min), by_key(keys, lengths, max), strict=True)
    return [1.5 - (n - low) / (high - low + 1e-8) for n, low, high in bounds]


def sample_weights(rows: Rollout, *weights: Sequence[float]) -> list[float]:
    """The product of the weights, scaled so that a batch sums to its number of responses."""
    product = [math.prod(factors) for factors in zip(*weights, strict=True)]
    means = by_key([r.batch for r in rows], product, mean)
    return [w / centre for w, centre in zip(product, means, strict=True)]
