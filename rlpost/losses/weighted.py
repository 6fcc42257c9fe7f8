"""Policy gradients with a weight: plain, CISPO, TIS, TOPR, VESPO, with masks, and REAL's groups."""

from __future__ import annotations

import math
from math import inf
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
    """Plain policy gradient: no ratio, nothing clipped."""
    ones = tokens.xp.ones_like(tokens.masked_advantages)
    return through_log_prob(tokens, ones, unbounded(tokens, ones))


def kimi15(tokens: Tokens, *, tau: NonNegative = 0.1) -> Surrogate:
    """Plain policy gradient with a penalty on the squared log ratio.

    Args:
        tokens: T tokens.
        tau: coefficient τ of the penalty.
    """
    return pg(tokens).plus(*squared(tokens, tau / 2))


def dro(tokens: Tokens, *, beta: NonNegative = 0.1) -> Surrogate:
    """Plain policy gradient with a penalty on the squared log ratio.

    Args:
        tokens: T tokens.
        beta: coefficient β of the penalty.
    """
    return pg(tokens).plus(*squared(tokens, beta / 2))


def cispo(
    tokens: Tokens,
    *,
    pg_clip: Offsets = Offsets(inf, 4.0),
    bounds: Literal["offset", "ratio"] = "offset",
    mask_clipped: bool = False,
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Policy gradient with clipped importance weights; keeps all gradients.

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


def tis(tokens: Tokens, *, weight: Range = Range(0, 1), ratio_clamp: Bound = inf) -> Surrogate:
    """Policy gradient with truncated importance weights.

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
    weight: Range = Range(0, 1),
    positive: NonNegative = 1.0,
    negative: NonNegative = 1.0,
    ratio_clamp: Bound = inf,
) -> Surrogate:
    """Plain gradient if reward > 0, truncated importance weights otherwise.

    Without rewards, the sign of the advantage is used.

    Args:
        tokens: T tokens.
        weight: lowest and highest importance weight.
        positive: factor of responses with a reward > 0.
        negative: factor of the other responses.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio, rewarded = importance_weight(tokens, ratio_clamp), tokens.advantage_positive
    if tokens.rewards is not None:
        rewarded = spread(tokens.rewards > 0, tokens.offsets)
    low, high = weight
    clip = clip_states(~rewarded & (ratio < low), ~rewarded & (ratio > high))
    factor = tokens.xp.where(rewarded, positive, negative * ratio.clip(low, high))
    return through_log_prob(tokens, ratio, Bounded(factor, clip))


def kimi_k2(
    tokens: Tokens,
    *,
    tau: NonNegative = 0.1,
    weight: Range = Range(0, 5),
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Policy gradient with truncated weights and the advantage A - τ·log r.

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
    tokens: Tokens, *, pg_clip: Offsets = CLIP, dual_clip: Bound = 3.0, ratio_clamp: Bound = 20.0
) -> Surrogate:
    """Clipped importance weights; 0 for tokens of a high ratio.

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
    """Importance weights; 0 for tokens outside the bounds."""
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
    """Smooth weights of whole responses, by the product of their ratios.

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
    """Classifies the responses of a prompt group by their mean log ratios.

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


LOSSES = (
    Loss("pg", pg, "-A·log π", "Williams 1992", "seq-mean-token-sum", needs=_NO_RATIO),
    # GPG differs in its advantages, the estimator gpg, and in its aggregation.
    Loss("gpg", pg, "-A·log π", "arXiv:2504.02546", needs=_NO_RATIO),
    # Token by token, as in ROLL.
    Loss("kimi15", kimi15, "-A·log π + τ/2·(log r)²", "arXiv:2501.12599", "seq-mean-token-mean"),
    # kimi15 under the name that verl and Tinker use; verl needs `policy_loss.dro_beta`.
    Loss("dro", dro, "-A·log π + β/2·(log r)²", "arXiv:2405.19107"),
    # MiniMax-M1. By default there is no lower bound, and the upper one is a ratio of 5, as in
    # "The Art of Scaling RL Compute for LLMs" (arXiv 2510.13786).
    Loss("cispo", cispo, "-stop(clip(r, 1-ε, 1+ε))·A·log π", "arXiv:2506.13585"),
    # Ionides, "Truncated importance sampling", 2008; with [0, 1] as in TOPR.
    Loss(
        "tis", tis, "-stop(clip(r, low, high))·A·log π", "arXiv:2503.14286", "seq-mean-token-mean"
    ),
    # Le Roux et al.; token by token, as in ROLL.
    Loss(
        "topr", topr, "-A·log π; reward ≤ 0: -stop(clip(r, low, high))·A·log π", "arXiv:2503.14286",
        "seq-mean-token-mean"
    ),
    # openpipe_art 0.5.23, art/loss.py, loss_fn with `kimi_k2_tau`, without `ppo`.
    Loss("kimi_k2", kimi_k2, "-stop(clip(r, low, high)·(A - τ·log r))·log π", "ART"),
    # xtuner/v1/rl/loss/loss_fn.py (commit 981e372), mask_pg_loss_fn: c is `clip_ratio_c`; r
    # divides by the rollout engine (`behaviour="infer"`).
    Loss("mask_pg", mask_pg, "-stop(clip(r, 1-ε, 1+ε))·A·log π; 0 if r > c", "XTuner"),
    # skyrl 0.4.0, skyrl/backends/skyrl_train/utils/ppo_utils.py, rollout_is_policy_loss: r
    # divides by the rollout engine (`behaviour="infer"`). CISPO with that anchor is `cispo`
    # with it.
    Loss("rollout_is", rollout_is, "-stop(r)·A·log π; 0 unless 1-ε < r < 1+ε", "SkyRL"),
    # As in TRL 1.16.0 (trl/trainer/grpo_trainer.py, get_gamma_weights).
    Loss(
        "vespo", vespo, "-stop(exp(λ + k·log w - λw))·A·log π, w = exp(Σ log r)",
        "arXiv:2602.10693", of_responses=True, weighs=True
    ),
    # As in ms-swift 4.6.0 (swift/rlhf_trainers/grpo_trainer.py:1090), where responses without
    # policy tokens have s = 0 and A = 0.
    Loss(
        "real", real, "log(1 + Σ e^s over A ≤ 0) + log(1 + Σ e^-s over A > 0), s = mean(log r)/τ",
        "arXiv:2602.05630", "prompt-mean", of_responses=True, grouped=True
    ),
)  # fmt: skip
