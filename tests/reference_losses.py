"""Slow float64 loops for policy losses, from the papers; nothing here comes from rlpost.

A loss takes one response and gives (loss, clip state, ratio) of each policy token. `new` carries
the gradient; `frozen` is the same policy where a formula stops it, so that a difference quotient
in `new` is the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

NONE, LOW, HIGH, DUAL, SELECTED = 0, 1, 2, 3, 4
Found = list[tuple[float, int, float]]


@dataclass(frozen=True)
class Row:
    """The policy tokens of one response."""

    new: list[float]
    frozen: list[float]
    old: list[float]
    ref: list[float]
    advantages: list[float]
    reward: float
    group: int = 0
    places: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.new)


def clip(x: float, low: float, high: float) -> float:
    return max(low, min(high, x))


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs) if xs else 0.0


def ratio_of(row: Row, t: int, clamp: float = math.inf) -> float:
    return math.exp(clip(row.new[t] - row.old[t], -clamp, clamp))


def stopped(row: Row, t: int, clamp: float = math.inf) -> float:
    return math.exp(clip(row.frozen[t] - row.old[t], -clamp, clamp))


def pessimistic(
    ratio: float, advantage: float, low: float, high: float, dual: float
) -> tuple[float, int, float]:
    """PPO's objective, eq. 7, as a loss; then dual clip."""
    plain, clipped = ratio * advantage, clip(ratio, low, high) * advantage
    state, objective = NONE, plain
    if clipped < plain:
        objective, state = clipped, LOW if ratio < low else HIGH
    if advantage < 0 and objective < dual * advantage:
        objective, state = dual * advantage, DUAL
    return -objective, state, ratio


def ppo(row: Row, low=0.2, high=0.2, dual=math.inf, clamp=20.0) -> Found:
    return [
        pessimistic(ratio_of(row, t, clamp), row.advantages[t], 1 - low, 1 + high, dual)
        for t in range(len(row))
    ]


def pg(row: Row) -> Found:
    return [(-a * x, NONE, 1.0) for a, x in zip(row.advantages, row.new, strict=True)]


def gspo(row: Row, low=3e-4, high=4e-4, dual=math.inf, clamp=20.0, cap=math.inf) -> Found:
    """GSPO-token: the response's ratio, and the token's own gradient."""
    whole = mean([x - y for x, y in zip(row.frozen, row.old, strict=True)])
    found = []
    for t, advantage in enumerate(row.advantages):
        log_ratio = whole + row.new[t] - row.frozen[t]
        ratio = math.exp(clip(log_ratio, -clamp, min(clamp, cap)))
        found.append(pessimistic(ratio, advantage, 1 - low, 1 + high, dual))
    return found


def weighted(row: Row, t: int, weight: float) -> float:
    return -weight * row.advantages[t] * row.new[t]


def outside(ratio: float, low: float, high: float) -> int:
    return LOW if ratio < low else HIGH if ratio > high else NONE


def cispo(row: Row, low=0.0, high=5.0, masked=False, clamp=20.0) -> Found:
    """MiniMax-M1; the bounds are ratios."""
    found = []
    for t, advantage in enumerate(row.advantages):
        ratio = stopped(row, t, clamp)
        loss = weighted(row, t, clip(ratio, low, high))
        away = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
        found.append((0.0 if masked and away else loss, outside(ratio, low, high), ratio))
    return found


def tis(row: Row, low=0.0, high=1.0) -> Found:
    ratios = [stopped(row, t) for t in range(len(row))]
    return [
        (weighted(row, t, clip(x, low, high)), outside(x, low, high), x)
        for t, x in enumerate(ratios)
    ]


def topr(row: Row, low=0.0, high=1.0, positive=1.0, negative=1.0) -> Found:
    found = []
    for t in range(len(row)):
        ratio = stopped(row, t)
        if row.reward > 0:
            found.append((weighted(row, t, positive), NONE, ratio))
        else:
            weight = negative * clip(ratio, low, high)
            found.append((weighted(row, t, weight), outside(ratio, low, high), ratio))
    return found


def kimi15(row: Row, tau=0.1) -> Found:
    return [
        (-row.advantages[t] * row.new[t] + tau / 2 * (row.new[t] - row.old[t]) ** 2, NONE, 1.0)
        for t in range(len(row))
    ]


def geo_mean(row: Row, low=0.4, high=0.4) -> Found:
    """GMPO: min(sign·log r, sign·clip(log r)), its mean, the exponential of that."""
    kept, states = [], []
    for t, advantage in enumerate(row.advantages):
        sign = (advantage > 0) - (advantage < 0)
        log_ratio = row.new[t] - row.old[t]
        clipped = clip(log_ratio, -low, high)
        kept.append(sign * min(sign * log_ratio, sign * clipped))
        states.append(NONE if sign * log_ratio <= sign * clipped else HIGH if sign > 0 else LOW)
    ratio = math.exp(mean(kept))
    return [(-mean(row.advantages) * ratio, state, ratio) for state in states]


def sapo(row: Row, positive=1.0, negative=1.05, clamp=20.0) -> Found:
    found = []
    for t, advantage in enumerate(row.advantages):
        ratio, tau = ratio_of(row, t, clamp), positive if advantage > 0 else negative
        gate = 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
        found.append((-advantage * gate, NONE, ratio))
    return found


def _masked(row: Row, t: int, advantage: float, state: int, square: float):
    ratio, log_ratio = ratio_of(row, t), row.new[t] - row.old[t]
    loss = 0.0 if state else -advantage * ratio
    return loss + square * log_ratio**2, state, ratio


def _moved(row: Row, t: int) -> float:
    return math.exp(row.frozen[t]) - math.exp(row.old[t])


def dppo(row: Row, low=0.2, high=0.2, square=1e-3) -> Found:
    found = []
    for t, advantage in enumerate(row.advantages):
        state = HIGH if advantage > 0 and _moved(row, t) > high else NONE
        state = LOW if advantage < 0 and _moved(row, t) < -low else state
        found.append(_masked(row, t, advantage, state, square))
    return found


def ipo(row: Row, bound=0.1, square=1e-3) -> Found:
    return [
        _masked(row, t, advantage, outside(_moved(row, t), -bound, bound), square)
        for t, advantage in enumerate(row.advantages)
    ]


def ref_kl(row: Row, low=0.2, square=1e-3) -> Found:
    return [
        _masked(row, t, row.ref[t] - row.frozen[t], LOW if _moved(row, t) < -low else NONE, square)
        for t in range(len(row))
    ]


def _truncated(row: Row, t: int, state: int, most: float, clamp: float):
    ratio = stopped(row, t, clamp)
    if state == NONE:
        state = DUAL if ratio > most else NONE
        return weighted(row, t, min(ratio, most)), state, ratio
    return 0.0, state, ratio


def dppo_tv(row: Row, low=0.15, high=0.15, most=20.0, clamp=20.0) -> Found:
    """arXiv 2602.04879: two choices differ in total variation by the change of the probability."""
    found = []
    for t, advantage in enumerate(row.advantages):
        state = HIGH if advantage > 0 and _moved(row, t) > high else NONE
        state = LOW if advantage <= 0 and _moved(row, t) < -low else state
        found.append(_truncated(row, t, state, most, clamp))
    return found


def bernoulli_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p + 1e-8) / (1 - q + 1e-8))


def dppo_kl(row: Row, low=0.05, high=0.05, most=20.0, clamp=20.0) -> Found:
    """arXiv 2602.04879: KL(old, new) of a coin that shows the token or any other."""
    found = []
    for t, advantage in enumerate(row.advantages):
        old, new = math.exp(row.old[t]), math.exp(row.frozen[t])
        # Above 1 there is no probability, and the logarithm is that of a negative number.
        far = bernoulli_kl(old, new) if new < 1 + 1e-8 else math.nan
        state = HIGH if advantage > 0 and new > old and not far <= high else NONE
        state = LOW if advantage <= 0 and new < old and not far <= low else state
        found.append(_truncated(row, t, state, most, clamp))
    return found


def mask_pg(row: Row, low=0.2, high=0.2, most=3.0, clamp=20.0) -> Found:
    """xtuner/v1/rl/loss/loss_fn.py:86, commit 981e372."""
    found = []
    for t in range(len(row)):
        ratio = stopped(row, t, clamp)
        state = DUAL if ratio > most else outside(ratio, 1 - low, 1 + high)
        weight = 0.0 if ratio > most else clip(ratio, 1 - low, 1 + high)
        found.append((weighted(row, t, weight), state, ratio))
    return found


def rollout_is(row: Row, low=0.2, high=0.2, clamp=20.0) -> Found:
    """skyrl 0.4.0, skyrl/backends/skyrl_train/utils/ppo_utils.py:825."""
    ratios = [stopped(row, t, clamp) for t in range(len(row))]
    return [
        (weighted(row, t, x if 1 - low < x < 1 + high else 0.0), outside(x, 1 - low, 1 + high), x)
        for t, x in enumerate(ratios)
    ]


def vespo(row: Row, k=(2.0, 3.0), lam=(3.0, 2.0), clamp=20.0) -> Found:
    """TRL 1.16.0, trl/trainer/grpo_trainer.py:2972; k and λ if A >= 0, and otherwise."""
    total = math.fsum(math.log(stopped(row, t, clamp)) for t in range(len(row)))
    total = clip(total, math.log(1e-8), 20.0)
    found = []
    for t, advantage in enumerate(row.advantages):
        power, decay = k[advantage < 0], lam[advantage < 0]
        weight = math.exp(decay + power * total - decay * math.exp(total))
        found.append((weighted(row, t, weight), NONE, math.exp(total)))
    return found


def covariances(rows: Sequence[Row]) -> list[list[float]]:
    """(A - mean A)(log π - mean log π), with means over all tokens of all rows."""
    center = mean([x for row in rows for x in row.advantages])
    usual = mean([x for row in rows for x in row.frozen])
    return [
        [(a - center) * (x - usual) for a, x in zip(row.advantages, row.frozen, strict=True)]
        for row in rows
    ]


def count_of(share: float, rows: Sequence[Row]) -> int:
    return max(1, math.floor(share * sum(map(len, rows))))


def kl_cov(rows: Sequence[Row], coef=1.0, share=2e-4, clamp=math.inf) -> list[Found]:
    """arXiv 2505.22617: the tokens of highest covariance are penalised."""
    by_row = covariances(rows)
    order = sorted(((x, i, t) for i, own in enumerate(by_row) for t, x in enumerate(own)))
    chosen = {(i, t) for _, i, t in order[-count_of(share, rows) :]}
    found = []
    for i, row in enumerate(rows):
        losses = []
        for t, advantage in enumerate(row.advantages):
            ratio, picked = ratio_of(row, t, clamp), (i, t) in chosen
            penalty = coef * abs(row.new[t] - row.old[t]) if picked else 0.0
            losses.append((-advantage * ratio + penalty, SELECTED if picked else NONE, ratio))
        found.append(losses)
    return found


def clip_cov_candidates(
    rows: Sequence[Row], low=0.2, high=0.2, floor=1.0, ceiling=5.0, clamp=math.inf
) -> list[tuple[int, int]]:
    """arXiv 2505.22617: the tokens of which some are dropped at random."""
    plain = [ppo(row, low, high, clamp=clamp) for row in rows]
    return [
        (i, t)
        for i, own in enumerate(covariances(rows))
        for t, x in enumerate(own)
        if floor < x < ceiling and plain[i][t][1] == NONE
    ]


def clip_cov_all(rows: Sequence[Row], low=0.2, high=0.2, floor=1.0, ceiling=5.0) -> list[Found]:
    """Every candidate is dropped: the share is 1."""
    frozen = [replace(row, new=row.frozen) for row in rows]
    chosen = {*clip_cov_candidates(frozen, low, high, floor, ceiling)}
    return [
        [
            (0.0, SELECTED, one[2]) if (i, t) in chosen else one
            for t, one in enumerate(ppo(row, low, high, clamp=math.inf))
        ]
        for i, row in enumerate(rows)
    ]


def fipo(row: Row, low=0.2, high=0.2, dual=math.inf, half=32.0, least=0.0, most=0.2, safety=4.0):
    """ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py:885 to 924 and 1048 to 1060."""
    found = []
    for t, (loss, state, ratio) in enumerate(ppo(row, low, high, dual, math.inf)):
        future = 0.0
        for s in range(t, len(row)):
            if stopped(row, s) <= dual:
                decay = 2 ** (-(row.places[s] - row.places[t]) / half)
                future += decay * (row.frozen[s] - row.old[s])
        influence = clip(math.exp(future), 1 - least, 1 + most)
        if row.advantages[t] < 0 and stopped(row, t) > safety:
            influence = clip(influence, 0.8, 1.0)
        found.append((loss * influence, state, ratio))
    return found


def oreal(row: Row, low=0.2, high=0.2, dual=3.0, positive=1.0, sft=1.0, negative=1.0) -> Found:
    """xtuner/v1/rl/loss/oreal_loss.py:81 to 170, commit a1cd6e0, before divisions."""
    found = []
    for t, (loss, state, ratio) in enumerate(ppo(row, low, high, dual)):
        up = row.advantages[t] > 0
        total = positive * loss - sft * row.new[t] if up else negative * loss
        found.append((total, state, ratio))
    return found


def kimi_k2(row: Row, tau=0.1, low=0.0, high=5.0, clamp=20.0) -> Found:
    """openpipe_art 0.5.23, art/loss.py:336 to 380."""
    found = []
    for t, advantage in enumerate(row.advantages):
        ratio = stopped(row, t, clamp)
        shifted = advantage - tau * (row.frozen[t] - row.old[t])
        loss = -clip(ratio, low, high) * shifted * row.new[t]
        found.append((loss, outside(ratio, low, high), ratio))
    return found


def real(rows: Sequence[Row], tau=0.5) -> list[Found]:
    """ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py:1090 to 1122; not of empty rows."""
    found = []
    for row in rows:
        own = [one for one in rows if one.group == row.group and len(one)]
        scores = [mean([x - y for x, y in zip(one.new, one.old, strict=True)]) for one in own]
        sides = [mean(one.advantages) > 0 for one in own]
        loss = 0.0
        if any(sides) and not all(sides):
            terms = [
                (side, math.exp(s / tau * (-1) ** side))
                for s, side in zip(scores, sides, strict=True)
            ]
            loss = sum(math.log(1 + sum(x for y, x in terms if y == side)) for side in (0, 1))
        ratio = math.exp(mean([x - y for x, y in zip(row.frozen, row.old, strict=True)]))
        found.append([(loss, NONE, ratio)] * len(row))
    return found


OF_BATCHES = (kl_cov, clip_cov_all, real)
"""Losses that get all rows of a batch, and return a list for each."""


def kl(
    row: Row,
    estimator: str,
    log_clamp=40.0,
    clamp=10.0,
    by_ratio=False,
    *,
    to_itself=False,
    of_product=False,
    clamps_all=False,
) -> list[float]:
    """The KL loss of each token; k3 alone is clamped, or every estimator with `clamps_all`.

    The ratio divides by `old`, or by the frozen policy itself; `of_product` clamps ratio times KL.
    """
    found = []
    for t in range(len(row)):
        d = clip(row.new[t] - row.ref[t], -log_clamp, log_clamp)
        base = row.frozen if to_itself else row.old
        new = row.frozen if of_product and abs(row.frozen[t] - row.ref[t]) > log_clamp else row.new
        ratio = math.exp(new[t] - base[t])
        one = {
            "k1": d,
            "abs": abs(d),
            "k2": d * d / 2,
            "k3": math.expm1(-d) + d,
            "k4": ratio * d,
        }[estimator]
        bound = clamp if clamps_all or estimator == "k3" else math.inf
        if of_product:
            found.append(clip(one * ratio if by_ratio else one, -bound, bound))
        else:
            found.append(clip(one, -bound, bound) * (ratio if by_ratio else 1.0))
    return found


def aggregate(
    rows: Sequence[Sequence[float]],
    lengths: Sequence[int],
    how: str,
    *,
    weights: Sequence[float] | None = None,
    every_row: bool = False,
    by_rows: bool = False,
    length: int | None = None,
    units: Sequence[Hashable] | None = None,
    advantages: Sequence[Sequence[float]] | None = None,
) -> float:
    """One number of the losses of policy tokens, row by row; `lengths` count observations, too.

    `units` are the prompts or rollouts of rows, `advantages` those of policy tokens.
    """
    weights = [1.0] * len(rows) if weights is None else weights
    if how == "token-mean-by-sign":
        return by_sign(rows, advantages, weights)
    if how in ("prompt-mean", "rollout-mean"):
        return over_units(rows, units, weights, every=every_row)
    by_row = how == "seq-mean-token-mean"
    reduce: Callable[[Sequence[float]], float] = mean if by_row else math.fsum
    total = math.fsum(w * reduce(row) for w, row in zip(weights, rows, strict=True))
    counted = len(rows) if every_row else sum(1 for row in rows if row)
    below = counted
    if how == "token-mean":
        below = sum(map(len, rows))
    elif how == "token-sum":
        below = 1
    elif how == "seq-mean-token-sum-norm":
        below = max(lengths, default=0) if length is None else length
        below *= counted if by_rows else 1
    return total / below if below else 0.0


def by_sign(
    rows: Sequence[Sequence[float]],
    advantages: Sequence[Sequence[float]],
    weights: Sequence[float],
) -> float:
    """xtuner, xtuner/v1/rl/loss/oreal_loss.py:81 to 125: each token over the number of its sign."""
    counts, total = {True: 0, False: 0}, 0.0
    for gains in advantages:
        for gain in gains:
            counts[gain > 0] += 1
    for row, gains, weight in zip(rows, advantages, weights, strict=True):
        for value, gain in zip(row, gains, strict=True):
            total += weight * value / counts[gain > 0]
    return total


def over_units(
    rows: Sequence[Sequence[float]],
    units: Sequence[Hashable],
    weights: Sequence[float],
    *,
    every: bool = False,
) -> float:
    """SkyRL, skyrl/backends/skyrl_train/utils/ppo_utils.py:1209 to 1216: 1 / (P · tokens of p)."""
    tokens: dict[Hashable, int] = {}
    for row, unit in zip(rows, units, strict=True):
        tokens[unit] = tokens.get(unit, 0) + len(row)
    number = sum(1 for count in tokens.values() if count or every)
    total = 0.0
    for row, unit, weight in zip(rows, units, weights, strict=True):
        for value in row:
            total += weight * value / (number * tokens[unit])
    return total
