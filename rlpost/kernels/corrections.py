"""Off-policy correction: ratios of trainer to rollout engine, importance weights, divergences.

Tokens are ragged: `values` [T], `offsets` [N+1], and `mask` [T], true on policy tokens. A level is
the unit that one number describes: a token; a policy segment, which is a run of policy tokens with
no observation token in between; or a response.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.arrays import Array, namespace
from rlpost.kernels.segments import (
    count_true,
    lengths,
    policy_segments,
    positions_of,
    segment_max,
    segment_sum,
    spread,
)

if TYPE_CHECKING:
    from collections.abc import Callable


RESPONSE_LEVELS = ("sequence", "geometric", "max")
MAX_LOG_WEIGHT = math.log(float(np.finfo(np.float32).max))  # a larger weight overflows float32

# Functions of d = log π_trainer - log π_engine of a token that the engine sampled.
_DISTANCES: dict[str, Callable[[Array], Array]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d * d / 2,
    # exp(d) - 1 - d with expm1, which keeps its digits if the policies nearly agree
    "k3": lambda d: namespace(d).expm1(d) - d,
    "tv": lambda d: abs(namespace(d).expm1(d)),
    "error": lambda d: namespace(d).exp(abs(d)),
}
_LEAST_PROBABILITY = 1e-6
_LEAST_MIXTURE = 1e-10


def binary_kl(old: Array, infer: Array) -> Array:
    """Return the KL of whether each token was sampled, engine from trainer, [T], in nats.

        p log(p/q) + (1-p) log((1-p)/(1-q)), p = exp(infer), q = exp(old), both in [1e-6, 1 - 1e-6]

    Source: OpenRLHF 0.11.2, openrlhf/models/loss.py:216.
    """
    xp = namespace(old)
    p, q = (xp.exp(x).clip(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY) for x in (infer, old))
    return p * xp.log(p / q) + (1 - p) * xp.log((1 - p) / (1 - q))


# Functions of both log-probs of a token, which no bound on d changes.
_GAPS: dict[str, Callable[[Array, Array], Array]] = {
    "diff": lambda old, infer: namespace(old).exp(old) - namespace(old).exp(infer),
    "prob_gap": lambda old, infer: abs(namespace(old).exp(old) - namespace(old).exp(infer)),
    "bkl": binary_kl,
}


def reduce_responses(values: Array, mask: Array, offsets: Array, *, level: str) -> Array:
    """Return the sum, mean or maximum over each response's policy tokens, [N]; 0 for no token.

    Args:
        values: [T]; values of observation tokens are not used, NaN or not.
        mask: [T] bool.
        offsets: [N+1] of the responses.
        level: sequence (the sum), geometric (the mean) or max.
    """
    xp = namespace(values)
    if level == "max":
        highest = segment_max(xp.where(mask, values, -math.inf), offsets)
        return xp.where(highest == -math.inf, 0.0, highest)
    total = segment_sum(xp.where(mask, values, 0.0), offsets)
    if level == "sequence":
        return total
    return total / xp.astype(count_true(mask, offsets).clip(1), total.dtype)


def segment_means(values: Array, mask: Array, offsets: Array) -> Array:
    """Return the mean over the policy segment of each token, [T]; 0 on observation tokens."""
    xp, segments, policy = namespace(values), policy_segments(mask, offsets), positions_of(mask)
    total = segment_sum(values[policy], segments)
    means = total / xp.astype(lengths(segments), total.dtype)
    return xp.placed(spread(means, segments), policy, len(values))


def at_level(values: Array, mask: Array, offsets: Array, *, level: str) -> Array:
    """Return the number of each token's level at the token, [T].

    Args:
        values: [T].
        mask: [T] bool.
        offsets: [N+1] of the responses.
        level: token or batch (the values unchanged), segment, sequence, geometric or max.
    """
    if level in ("token", "batch"):
        return values
    if level == "segment":
        return segment_means(values, mask, offsets)
    return spread(reduce_responses(values, mask, offsets, level=level), offsets)


def values_at(values: Array, mask: Array, offsets: Array, *, level: str) -> Array:
    """Return the number of each unit of a level: [N] for levels of responses, else [T].

    Args: as of `at_level`.
    """
    by_response = level in RESPONSE_LEVELS
    return (reduce_responses if by_response else at_level)(values, mask, offsets, level=level)


def proximal_log_probs(new: Array, infer: Array, age: Array, *, how: str) -> Array:
    """Return log-probs of the policy one version before the current one, interpolated, [T].

    Of a token that a policy of age a sampled, with α = max(0, 1 - 1/a), and 0 if a is 0:

        loglinear  log p = (1-α)·infer + α·new
        linear     log p = log((1-α)·exp(infer) + α·exp(new) + 1e-10)

    Args:
        new: [T] log-probs of the current policy.
        infer: [T] log-probs of the policy that sampled.
        age: [T] versions from that policy to the current one, 0 or above.
        how: loglinear or linear.

    Source: areal 1.0.4, areal/trainer/ppo/actor.py:604, compute_prox_logp_approximations.
    """
    xp = namespace(new)
    share = 1.0 - 1.0 / age.clip(1.0)
    if how == "loglinear":
        return infer + share * (new - infer)
    return xp.log((1.0 - share) * xp.exp(infer) + share * xp.exp(new) + _LEAST_MIXTURE)


def log_weights(
    old: Array,
    infer: Array,
    mask: Array,
    offsets: Array,
    *,
    level: str,
    clamp: float = math.inf,
    clamp_at: str = "level",
) -> Array:
    """Return the logarithm of the importance weight at each token, [T] float64.

    With d = old - infer:

        token      d
        segment    mean of d over the policy segment
        geometric  mean of d over the response's policy tokens (as in GSPO, arXiv 2507.18071)
        sequence   sum of d over the response's policy tokens (Yao et al. 2025)

    An observation token has its own d at level token, 0 at level segment, and the number of its
    response at the other levels.

    Args:
        old: [T] log-probs of the trainer.
        infer: [T] log-probs of the rollout engine.
        mask: [T] bool.
        offsets: [N+1] of the responses.
        level: token, segment, geometric or sequence.
        clamp: bound on the absolute value, in nats.
        clamp_at: `level` bounds the result, `token` bounds each d before it is reduced.
    """
    ratios = old - infer
    if clamp_at == "token":
        return at_level(ratios.clip(-clamp, clamp), mask, offsets, level=level)
    return at_level(ratios, mask, offsets, level=level).clip(-clamp, clamp)


class Weights(NamedTuple):
    """Importance weights, and where they differ from the plain ratio, [T] each."""

    values: Array
    """Importance weight of each token."""
    truncated: Array
    """Bool: the ratio is above the cap or below the floor."""
    masked: Array
    """Bool: the weight is 0, since the ratio is outside the bounds."""


def importance_weights(
    logs: Array,
    *,
    cap: float = math.inf,
    floor: float = 0.0,
    bounds: tuple[float, float] = (0.0, math.inf),
) -> Weights:
    """Return min(max(exp(log), floor), cap), and 0 if exp(log) is outside the inclusive bounds.

    Truncation is TIS (Ionides 2008), masking IcePop (arXiv 2510.18855). Weights are finite in
    float32.

    Args:
        logs: [T] from `log_weights`.
        cap: largest weight.
        floor: smallest weight.
        bounds: smallest and largest ratio whose weight is not 0.

    >>> logs = np.log([0.5, 2.0, 8.0])
    >>> importance_weights(logs, cap=4.0).values.round(3).tolist()
    [0.5, 2.0, 4.0]
    >>> importance_weights(logs, bounds=(0.6, 5.0)).values.round(3).tolist()
    [0.0, 2.0, 0.0]
    """
    xp = namespace(logs)
    ratios = xp.exp(logs.clip(max=MAX_LOG_WEIGHT))
    masked = (ratios < bounds[0]) | (ratios > bounds[1])
    truncated = ((ratios > cap) | (ratios < floor)) & ~masked
    return Weights(xp.where(masked, 0.0, ratios.clip(floor, cap)), truncated, masked)


def divergence(
    old: Array,
    infer: Array,
    mask: Array,
    offsets: Array,
    *,
    measure: str,
    level: str,
    clamp: float = math.inf,
) -> Array:
    """Return what a filter compares: [T] for levels token, batch and segment, else [N].

    With d = old - infer, the value of a token is:

        k1        -d                   estimates of KL(engine ‖ trainer) from the engine's tokens
        k2        d²/2
        k3        exp(d) - d - 1
        tv        |exp(d) - 1|
        error     exp(|d|)
        diff      q - p, with q = exp(old) and p = exp(infer)
        prob_gap  |q - p|
        bkl       p log(p/q) + (1-p) log((1-p)/(1-q)), see `binary_kl`

    A segment has the mean of its tokens, a response the mean (geometric), sum (sequence) or
    maximum (max). `ratio` is the exponential of d at the level. A response without policy tokens
    has 0, and 1 for `ratio`. Values on observation tokens are undefined.

    Args:
        old: [T] log-probs of the trainer.
        infer: [T] log-probs of the rollout engine.
        mask: [T] bool.
        offsets: [N+1] of the responses.
        measure: ratio, k1, k2, k3, tv, error, diff, prob_gap or bkl.
        level: token, batch (as token), segment, sequence, geometric or max.
        clamp: bound on |d| of each token, in nats.
    """
    xp = namespace(old)
    if measure in _GAPS:
        values = _GAPS[measure](old, infer)
    else:
        values = (old - infer).clip(-clamp, clamp)
        values = values if measure == "ratio" else _DISTANCES[measure](values)
    values = values_at(values, mask, offsets, level=level)
    return xp.exp(values) if measure == "ratio" else values
