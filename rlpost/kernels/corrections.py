"""How far the trainer's policy is from the rollout engine's: ratios, weights, what to reject.

Tokens are ragged, `values` [T] and `offsets` [N+1]; `mask` [T] tells the policy's own from
observations. A level says what one number is about: a token; a segment, which is a run of policy
tokens without an observation in between; or a response.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rlpost.kernels.segments import (
    bounds_of,
    count_true,
    lengths,
    policy_starts,
    segment_max,
    segment_sum,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Callable


RESPONSE_LEVELS = ("sequence", "geometric", "max")
LARGEST = math.log(torch.finfo(torch.float32).max)  # beyond it a weight has no float32

# Each takes d = log π_trainer - log π_engine of a token that the engine sampled.
_DISTANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": torch.neg,
    "k2": lambda d: d.square() / 2,
    # exp(d) - 1 - d with expm1, which keeps its digits where the policies nearly agree
    "k3": lambda d: torch.expm1(d) - d,
    "tv": lambda d: torch.expm1(d).abs(),
    "error": lambda d: d.abs().exp(),
}


def over_responses(values: Tensor, mask: Tensor, offsets: Tensor, *, level: str) -> Tensor:
    """The sum, mean or maximum over each response's policy tokens, [N]; 0 where it has none.

    Args:
        values: [T]; what stands on observations is not looked at.
        mask: [T] bool.
        offsets: [N+1].
        level: sequence (the sum), geometric (the mean) or max.
    """
    if level == "max":
        highest = segment_max(torch.where(mask, values, -torch.inf), offsets)
        return torch.where(highest == -torch.inf, 0.0, highest)
    total = segment_sum(torch.where(mask, values, 0.0), offsets)
    if level == "sequence":
        return total
    return total / count_true(mask, offsets).clamp(min=1)


def over_runs(values: Tensor, mask: Tensor, offsets: Tensor) -> Tensor:
    """The mean over the run of policy tokens that each belongs to, [T]; 0 on observations."""
    runs = bounds_of(policy_starts(mask, offsets)[mask])
    means = segment_sum(values[mask], runs) / lengths(runs)
    return torch.zeros_like(values).masked_scatter_(mask, spread(means, runs))


def at_level(values: Tensor, mask: Tensor, offsets: Tensor, *, level: str) -> Tensor:
    """What each token's own level comes to, [T]: a response's number is repeated.

    Args:
        values: [T].
        mask: [T] bool.
        offsets: [N+1].
        level: token (the values as they are), segment, sequence, geometric or max.
    """
    if level == "token":
        return values
    if level == "segment":
        return over_runs(values, mask, offsets)
    return spread(over_responses(values, mask, offsets, level=level), offsets)


def log_weights(
    old: Tensor,
    infer: Tensor,
    mask: Tensor,
    offsets: Tensor,
    *,
    level: str,
    clamp: float = math.inf,
    clamp_at: str = "level",
) -> Tensor:
    """Logarithms of importance weights at each token, [T] float64.

    With d = old - infer: token d; segment the mean of d over the run; geometric its mean over
    the response; sequence its sum (truncated importance sampling, Yao et al. 2025; a geometric
    mean as in GSPO, arXiv 2507.18071). An observation has its own d at the level of tokens, 0 at
    that of segments, and its response's number at the others.

    Args:
        old: [T] log-probabilities of the trainer.
        infer: [T] log-probabilities of the rollout engine.
        mask: [T] bool.
        offsets: [N+1].
        level: token, segment, geometric or sequence.
        clamp: bound on the absolute value, nats.
        clamp_at: `level` bounds what is returned, `token` each d before it is added up.
    """
    ratios = old - infer
    if clamp_at == "token":
        return at_level(ratios.clamp(-clamp, clamp), mask, offsets, level=level)
    return at_level(ratios, mask, offsets, level=level).clamp(-clamp, clamp)


class Weights(NamedTuple):
    """Importance weights, and where they are not the plain ratio, [T] each."""

    values: Tensor
    truncated: Tensor
    """Bool: at the cap or the floor."""
    masked: Tensor
    """Bool: 0 since the ratio is outside the bounds."""


def importance_weights(
    logs: Tensor,
    *,
    cap: float = math.inf,
    floor: float = 0.0,
    bounds: tuple[float, float] = (0.0, math.inf),
) -> Weights:
    """min(max(exp(log), floor), cap); 0 where exp(log) is outside the bounds, which belong to it.

    Truncation is TIS (Ionides 2008), a weight of 0 IcePop (arXiv 2510.18855). Weights stay
    finite in float32.

    Args:
        logs: [T] from `log_weights`.
        cap: largest weight.
        floor: smallest weight.
        bounds: smallest and largest ratio whose weight is not 0.

    >>> logs = torch.tensor([0.5, 2.0, 8.0]).log()
    >>> importance_weights(logs, cap=4.0).values.tolist()
    [0.5, 2.0, 4.0]
    >>> importance_weights(logs, bounds=(0.6, 5.0)).values.round(decimals=3).tolist()
    [0.0, 2.0, 0.0]
    """
    ratios = logs.clamp(max=LARGEST).exp()
    masked = (ratios < bounds[0]) | (ratios > bounds[1])
    truncated = ((ratios > cap) | (ratios < floor)) & ~masked
    return Weights(torch.where(masked, 0.0, ratios.clamp(floor, cap)), truncated, masked)


def divergence(
    old: Tensor,
    infer: Tensor,
    mask: Tensor,
    offsets: Tensor,
    *,
    measure: str,
    level: str,
    clamp: float = math.inf,
) -> Tensor:
    """What a filter compares with its bounds: [T] at the level of tokens and segments, else [N].

    With d = old - infer, the tokens' values are: k1 -d, k2 d²/2 and k3 exp(d) - d - 1, estimates
    of KL(engine ‖ trainer) from the engine's tokens; tv |exp(d) - 1|; error exp(|d|); diff
    exp(old) - exp(infer). A segment has their mean, a response their mean (geometric), sum
    (sequence) or max. `ratio` is the exponential of the level's d. Of a response without policy
    tokens it is 0, and 1 for ratio. On observations it means nothing.

    Args:
        old: [T] log-probabilities of the trainer.
        infer: [T] log-probabilities of the rollout engine.
        mask: [T] bool.
        offsets: [N+1].
        measure: ratio, diff, k1, k2, k3, tv or error.
        level: token, segment, sequence, geometric or max.
        clamp: bound on each token's |d|, nats.
    """
    if measure == "diff":
        values = old.exp() - infer.exp()
    else:
        values = (old - infer).clamp(-clamp, clamp)
        values = values if measure == "ratio" else _DISTANCES[measure](values)
    if level in RESPONSE_LEVELS:
        values = over_responses(values, mask, offsets, level=level)
    else:
        values = at_level(values, mask, offsets, level=level)
    return values.exp() if measure == "ratio" else values


def chi_square(excess: Tensor) -> Tensor:
    """exp(2d) - 1, from exp(d) - 1: its mean on engine tokens estimates χ²(trainer ‖ engine)."""
    return excess * (excess + 2)


def sure_but_wrong(old: Tensor, infer: Tensor, *, sure: float = 0.5, nats: float = 2.0) -> Tensor:
    """Tokens that the engine gave at least this probability, more than so many nats off, [T]."""
    return (infer >= math.log(sure)) & ((old - infer).abs() > nats)
