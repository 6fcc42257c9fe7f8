"""Slow float64 loops for the off-policy correction; nothing here comes from rlpost.

`old` are the trainer's log-probabilities, `infer` the rollout engine's, which sampled the tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reference import batches, clamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reference import Response, Rollout, Tokens


def runs(mask: Sequence[int]) -> list[list[int]]:
    """The tokens of each contiguous run of policy tokens."""
    found: list[list[int]] = []
    for t, own in enumerate(mask):
        if own and t and mask[t - 1]:
            found[-1].append(t)
        elif own:
            found.append([t])
    return found


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs) if xs else 0.0


def at_level(values: Sequence[float], mask: Sequence[int], level: str) -> list[float]:
    """What each token's level comes to."""
    own = [x for x, m in zip(values, mask, strict=True) if m]
    if level == "token":
        return list(values)
    if level == "segment":
        out = [0.0] * len(values)
        for run in runs(mask):
            for t in run:
                out[t] = mean([values[s] for s in run])
        return out
    whole = {"sequence": math.fsum(own), "geometric": mean(own), "max": max(own, default=0.0)}
    return [whole[level]] * len(values)


def token_value(old: float, infer: float, measure: str, bound: float) -> float:
    if measure in ("diff", "prob_gap", "bkl"):
        p, q = math.exp(infer), math.exp(old)
        if measure != "bkl":
            return q - p if measure == "diff" else abs(q - p)
        p, q = clamp(p, 1e-6, 1 - 1e-6), clamp(q, 1e-6, 1 - 1e-6)
        return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    d = clamp(old - infer, -bound, bound)
    return {
        "ratio": d,
        "k1": -d,
        "k2": d * d / 2,
        "k3": math.exp(d) - d - 1,
        "tv": abs(math.exp(d) - 1),
        "error": math.exp(abs(d)),
    }[measure]


def divergences(row: Response, measure: str, level: str, bound: float = 40.0) -> list[float]:
    """What a filter compares with its bounds, at each token."""
    pairs = zip(row.old, row.infer, strict=True)
    values = [token_value(old, infer, measure, bound) for old, infer in pairs]
    found = at_level(values, row.mask, level)
    return [math.exp(x) for x in found] if measure == "ratio" else found


def log_weights(row: Response, level: str, bound: float = 40.0, at: str = "level") -> list[float]:
    ratios = [old - infer for old, infer in zip(row.old, row.infer, strict=True)]
    if at == "token":
        return at_level([clamp(d, -bound, bound) for d in ratios], row.mask, level)
    return [clamp(d, -bound, bound) for d in at_level(ratios, row.mask, level)]


def weight(log: float, cap: float = math.inf, floor: float = 0.0, bounds=(0.0, math.inf)) -> float:
    ratio = math.exp(log)
    return clamp(ratio, floor, cap) if bounds[0] <= ratio <= bounds[1] else 0.0


def weights(rows: Rollout, level: str, *, normalise: bool = False, **limits) -> Tokens:
    """Weights on policy tokens, 0 on observations; divided by the mean of their batch."""
    out = [
        [
            weight(log, **limits) * m
            for log, m in zip(log_weights(row, level), row.mask, strict=True)
        ]
        for row in rows
    ]
    if not normalise:
        return out
    for members in batches(rows):
        units: list[float] = []
        for i in members:
            own = [w for w, m in zip(out[i], rows[i].mask, strict=True) if m]
            units += own if level in ("token", "segment") else own[:1]
        divisor = mean(units) or 1.0
        for i in members:
            out[i] = [w / divisor for w in out[i]]
    return out


def accepted(row: Response, filters: Sequence[tuple[str, str, float, float]]) -> list[int]:
    """The row's mask without the tokens that a filter rejects."""
    out = list(row.mask)
    for level, measure, low, high in filters:
        for t, value in enumerate(divergences(row, measure, level)):
            out[t] *= low <= value <= high
    return out


def effective_share(values: Sequence[float]) -> float | None:
    """(Σw)² / (n Σw²)."""
    squares = math.fsum(w * w for w in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None


def chi_squares(rows: Rollout, bound: float = 40.0) -> dict[str, float]:
    tokens, whole = [], []
    for row in rows:
        own = [o - i for o, i, m in zip(row.old, row.infer, row.mask, strict=True) if m]
        tokens += [math.exp(2 * clamp(d, -bound, bound)) - 1 for d in own]
        whole += [math.exp(2 * clamp(math.fsum(own), -bound, bound)) - 1] if own else []
    return {"token": mean(tokens), "sequence": mean(whole)}
