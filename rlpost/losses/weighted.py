"""Policy gradients with a weight: plain, CISPO, TIS, TOPR, VESPO, with masks, and REAL's groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlpost.errors import UsageError
from rlpost.kernels.arrays import like, on_host
from rlpost.kernels.corrections import at_level
from rlpost.kernels.segments import count_true, segment_sum, spread
from rlpost.losses.base import (
    Bounded,
    Loss,
    Surrogate,
    clip_states,
    importance_weight,
    limits,
    squared,
    through_log_prob,
    unbounded,
)
from rlpost.losses.clipped import CLIP
from rlpost.recipe.base import Bound, NonNegative, Offsets, Positive, Range

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


_CLAMP, _LOWEST = 20.0, 1e-8  # of VESPO, nats and a ratio
_MOST = 500.0  # its exponential, and the sum of many, is finite in float64


def pg(tokens: Tokens) -> Surrogate:
    """The plain policy gradient: no ratio, nothing clipped."""
    ones = tokens.xp.ones_like(tokens.masked_advantages)
    return through_log_prob(tokens, ones, unbounded(tokens, ones))


def kimi15(tokens: Tokens, *, tau: NonNegative = 0.1) -> Surrogate:
    """The plain policy gradient with a penalty τ/2·(log r)².

    Args:
        tokens: T tokens.
        tau: coefficient τ of the penalty.
    """
    return pg(tokens).plus(*squared(tokens, tau / 2))


def dro(tokens: Tokens, *, beta: NonNegative = 0.1) -> Surrogate:
    """The plain policy gradient with a penalty β/2·(log r)².

    Args:
        tokens: T tokens.
        beta: coefficient β of the penalty.
    """
    return pg(tokens).plus(*squared(tokens, beta / 2))


def cispo(
    tokens: Tokens,
    *,
    pg_clip: Offsets = Offsets(math.inf, 4.0),
    bounds: Literal["offset", "ratio"] = "offset",
    mask_clipped: bool = False,
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Policy gradient with the weight clip(r, 1 - ε_low, 1 + ε_high), for any advantage.

    Args:
        tokens: T tokens.
        pg_clip: bounds of the weight.
        bounds: unit of pg_clip: offset from 1, or the ratio itself.
        mask_clipped: the weight is 0 where PPO would clip.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio = importance_weight(tokens, ratio_clamp)
    low, high = limits(pg_clip, bounds)
    below, above, weight = ratio < low, ratio > high, ratio.clip(low, high)
    if mask_clipped:
        masked = (above & tokens.advantage_positive) | (below & tokens.advantage_negative)
        weight = tokens.xp.where(masked, 0.0, weight)
    return through_log_prob(tokens, ratio, Bounded(weight, clip_states(below, above)))


def _truncated(ratio: Array, bounds: Range) -> Bounded:
    """Return clip(r, low, high)."""
    low, high = bounds
    return Bounded(ratio.clip(low, high), clip_states(ratio < low, ratio > high))


def tis(
    tokens: Tokens, *, weight: Range = Range(0.0, 1.0), ratio_clamp: Bound = math.inf
) -> Surrogate:
    """Policy gradient with a truncated importance weight.

    Args:
        tokens: T tokens.
        weight: lowest and highest importance weight.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio = importance_weight(tokens, ratio_clamp)
    return through_log_prob(tokens, ratio, _truncated(ratio, weight))


def topr(
    tokens: Tokens,
    *,
    weight: Range = Range(0.0, 1.0),
    positive: NonNegative = 1.0,
    negative: NonNegative = 1.0,
    ratio_clamp: Bound = math.inf,
) -> Surrogate:
    """Plain policy gradient if the reward is > 0, with a truncated weight otherwise.

    Without rewards, the sign of the advantage is used.

    Args:
        tokens: T tokens.
        weight: lowest and highest importance weight.
        positive: factor of responses with a reward > 0.
        negative: factor of the other responses.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio, rewarded = importance_weight(tokens, ratio_clamp), tokens.reward_positive
    low, high = weight
    clip = clip_states(~rewarded & (ratio < low), ~rewarded & (ratio > high))
    factor = tokens.xp.where(rewarded, positive, negative * ratio.clip(low, high))
    return through_log_prob(tokens, ratio, Bounded(factor, clip))


def kimi_k2(
    tokens: Tokens,
    *,
    tau: NonNegative = 0.1,
    weight: Range = Range(0.0, 5.0),
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Policy gradient with a truncated weight, and A - τ·log r as the advantage.

    Args:
        tokens: T tokens.
        tau: coefficient τ of log r in the advantage.
        weight: lowest and highest importance weight.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio = importance_weight(tokens, ratio_clamp)
    bounded = _truncated(ratio, weight)
    slope = tau * (bounded.weight * tokens.constant(tokens.log_ratio))
    return through_log_prob(tokens, ratio, bounded).plus(slope * tokens.masked_log_probs, slope)


def mask_pg(
    tokens: Tokens,
    *,
    pg_clip: Offsets = CLIP,
    dual_clip: Bound = 3.0,
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Policy gradient with a clipped weight, 0 with the state DUAL if r > c; for any advantage.

    Args:
        tokens: T tokens.
        pg_clip: offsets of the weight from 1.
        dual_clip: highest ratio c, for any advantage.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio, (low, high) = importance_weight(tokens, ratio_clamp), limits(pg_clip)
    masked = ratio > dual_clip
    weight = tokens.xp.where(masked, 0.0, ratio.clip(low, high))
    clip = clip_states(ratio < low, (ratio > high) & ~masked, masked)
    return through_log_prob(tokens, ratio, Bounded(weight, clip))


def rollout_is(tokens: Tokens, *, pg_clip: Offsets = CLIP, ratio_clamp: Bound = 20.0) -> Surrogate:
    """Policy gradient with the weight r if 1 - ε_low < r < 1 + ε_high, else 0; for any A."""
    ratio, (low, high) = importance_weight(tokens, ratio_clamp), limits(pg_clip)
    below, above = ratio <= low, ratio >= high
    weight = tokens.xp.where(below | above, 0.0, ratio)
    return through_log_prob(tokens, ratio, Bounded(weight, clip_states(below, above)))


def vespo(
    tokens: Tokens,
    *,
    k_pos: NonNegative = 2.0,
    lambda_pos: Positive = 3.0,
    k_neg: NonNegative = 3.0,
    lambda_neg: Positive = 2.0,
) -> Surrogate:
    """Policy gradient with a smooth weight φ of the product w of a response's ratios.

        φ(w) = exp(λ + k·log w - λ·w), with k and λ by the sign of the advantage; φ(1) = 1

    Log ratios of tokens are clamped to ±20, and w is in [1e-8, e^20]. Importance weights are
    factors of w, in its range each.

    Args:
        tokens: T tokens.
        k_pos: power k of the ratio if A ≥ 0.
        lambda_pos: decay λ by the ratio if A ≥ 0.
        k_neg: power k of the ratio if A < 0.
        lambda_neg: decay λ by the ratio if A < 0.
    """
    xp, log_ratio = tokens.xp, tokens.constant(tokens.log_ratio).clip(-_CLAMP, _CLAMP)
    if tokens.weights is not None:
        weights = xp.where(tokens.mask, tokens.weights, 1.0)
        log_ratio = log_ratio + xp.log(weights.clip(_LOWEST, math.exp(_CLAMP)))
    total = at_level(log_ratio, tokens.mask, tokens.offsets, level="sequence")
    ratio = xp.exp(total.clip(math.log(_LOWEST), _CLAMP))
    log_ratio = xp.log(ratio)
    positive, negative = (
        xp.exp(decay + power * log_ratio - decay * ratio)
        for power, decay in ((k_pos, lambda_pos), (k_neg, lambda_neg))
    )
    weight = xp.where(tokens.advantage_negative, negative, positive)
    return through_log_prob(tokens, ratio, unbounded(tokens, ratio)._replace(weight=weight))


def real(tokens: Tokens, *, tau: Positive = 0.5) -> Surrogate:
    """One loss for a prompt group, from the scores s = mean(log r)/τ of its responses.

        L = log(1 + Σ e^s over A ≤ 0) + log(1 + Σ e^-s over A > 0)

    A is the mean advantage of a response, and |s| is bounded by 500. A group whose responses are
    all on one side has L = 0; responses without policy tokens are in no sum. Every token has its
    group's L, so that the aggregation prompt-mean is the mean over groups, those with L = 0
    included. The sum over a group is the gradient of the formula.

    Args:
        tokens: T tokens.
        tau: temperature τ of the scores.

    Raises:
        UsageError: the tokens have no groups.
    """
    if tokens.group is None:
        raise UsageError("loss real: the prompt group of each response is needed: units=")
    counts = on_host(count_true(tokens.mask, tokens.offsets))
    score, advantage = (
        on_host(segment_sum(tokens.constant(x), tokens.offsets)) / counts.clip(1)
        for x in (tokens.log_ratio, tokens.masked_advantages)
    )
    score, positive = (score / tau).clip(-_MOST, _MOST), advantage > 0
    codes = np.unique(on_host(tokens.group), return_inverse=True)[1]
    terms = np.where(counts > 0, np.exp(np.where(positive, -score, score)), 0.0)
    high, low = (np.bincount(codes, terms * side) for side in (positive, ~positive))
    losses = np.where((high > 0) & (low > 0), np.log1p(high) + np.log1p(low), 0.0)[codes]
    share = terms / (1 + np.where(positive, high[codes], low[codes])) * np.where(positive, -1, 1)
    slopes = share * np.bincount(codes, counts)[codes] / (tau * counts.clip(1))

    def of_tokens(values: Array) -> Array:
        values = like(np.where(losses > 0, values, 0.0), tokens.mask)
        return tokens.xp.astype(spread(values, tokens.offsets), tokens.new.dtype)

    gradient, log_probs = of_tokens(slopes), tokens.masked_log_probs
    values = of_tokens(losses) + gradient * (log_probs - tokens.constant(log_probs))
    none = tokens.xp.zeros_like(tokens.mask)
    return Surrogate(
        values, clip_states(none, none), gradient, tokens.xp.exp(tokens.mean_log_ratio)
    )


_NO_RATIO = ("advantages", "log_probs")
PG = Loss(
    "pg",
    pg,
    formula="-A·log π",
    source="Williams 1992",
    aggregation="seq-mean-token-sum",
    needs=_NO_RATIO,
)
GPG = Loss("gpg", pg, formula="-A·log π", source="arXiv:2504.02546", needs=_NO_RATIO)
"""GPG differs in its advantages, the estimator gpg, and in its aggregation."""
KIMI15 = Loss(
    "kimi15",
    kimi15,
    formula="-A·log π + τ/2·(log r)²",
    source="arXiv:2501.12599",
    aggregation="seq-mean-token-mean",
)
"""Token by token, as in ROLL."""
DRO = Loss("dro", dro, formula="-A·log π + β/2·(log r)²", source="arXiv:2405.19107")
"""kimi15 under the name that verl and Tinker use; verl needs `policy_loss.dro_beta`."""
CISPO = Loss("cispo", cispo, formula="-stop(clip(r, 1-ε, 1+ε))·A·log π", source="arXiv:2506.13585")
"""MiniMax-M1. By default there is no lower bound, and the upper one is a ratio of 5, as in "The Art
of Scaling RL Compute for LLMs" (arXiv 2510.13786)."""
TIS = Loss(
    "tis",
    tis,
    formula="-stop(clip(r, low, high))·A·log π",
    source="arXiv:2503.14286",
    aggregation="seq-mean-token-mean",
)
"""Ionides, "Truncated importance sampling", 2008; with [0, 1] as in TOPR."""
TOPR = Loss(
    "topr",
    topr,
    formula="-A·log π; reward ≤ 0: -stop(clip(r, low, high))·A·log π",
    source="arXiv:2503.14286",
    aggregation="seq-mean-token-mean",
)
"""Le Roux et al.; token by token, as in ROLL."""
KIMI_K2 = Loss(
    "kimi_k2", kimi_k2, formula="-stop(clip(r, low, high)·(A - τ·log r))·log π", source="ART"
)
"""openpipe_art 0.5.23, art/loss.py, loss_fn with `kimi_k2_tau`, without `ppo`."""
MASK_PG = Loss(
    "mask_pg", mask_pg, formula="-stop(clip(r, 1-ε, 1+ε))·A·log π; 0 if r > c", source="XTuner"
)
"""xtuner/v1/rl/loss/loss_fn.py (commit 981e372), mask_pg_loss_fn: c is `clip_ratio_c`; r divides by
the rollout engine (`behaviour="infer"`)."""
ROLLOUT_IS = Loss(
    "rollout_is",
    rollout_is,
    formula="-stop(r)·A·log π; 0 unless 1-ε < r < 1+ε",
    source="SkyRL",
)
"""skyrl 0.4.0, skyrl/backends/skyrl_train/utils/ppo_utils.py, rollout_is_policy_loss: r divides by
the rollout engine (`behaviour="infer"`). CISPO with that anchor is `cispo` with it."""
VESPO = Loss(
    "vespo",
    vespo,
    formula="-stop(exp(λ + k·log w - λw))·A·log π, w = exp(Σ log r)",
    source="arXiv:2602.10693",
    of_responses=True,
    weighs=True,
)
"""As in TRL 1.16.0 (trl/trainer/grpo_trainer.py, get_gamma_weights)."""
REAL = Loss(
    "real",
    real,
    formula="log(1 + Σ e^s over A ≤ 0) + log(1 + Σ e^-s over A > 0), s = mean(log r)/τ",
    source="arXiv:2602.05630",
    aggregation="prompt-mean",
    of_responses=True,
    grouped=True,
)
"""As in ms-swift 4.6.0 (swift/rlhf_trainers/grpo_trainer.py:1090), where responses without policy
tokens have s = 0 and A = 0."""
