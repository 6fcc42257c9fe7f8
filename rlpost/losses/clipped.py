"""Surrogates of a ratio that is clipped: PPO, GSPO, GMPO, SAPO, FIPO, OREAL, Clip-Cov and KL-Cov.

The last two select tokens by their covariance (A - mean A)·(log π - mean log π), with means over
the policy tokens of a batch: the update of a token of high covariance lowers the policy's entropy.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

from rlpost.kernels.scans import reverse_scan
from rlpost.losses.base import (
    NONE,
    SELECTED,
    Bounded,
    Loss,
    Ratio,
    Surrogate,
    clip_states,
    clipped_along,
    through_ratio,
    token_ratio,
    unbounded,
)
from rlpost.losses.tokens import Selection, Tokens
from rlpost.recipe.base import Bound, NonNegative, Offsets, Positive, Range, Share

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array


CLIP = Offsets(0.2, 0.2)
_TINY = 1e-10
_MOST = 80.0  # nats; its exponential is finite in float32
_CAUTIOUS = (0.8, 1.0)


def ppo(
    tokens: Tokens, *, pg_clip: Offsets = CLIP, dual_clip: Bound = inf, ratio_clamp: Bound = 20.0
) -> Surrogate:
    """PPO's clipped surrogate, with separate bounds and dual clip."""
    ratio = token_ratio(tokens, ratio_clamp)
    return through_ratio(tokens, ratio, clipped_along(tokens, ratio.value, pg_clip, dual_clip))


def gspo(
    tokens: Tokens,
    *,
    pg_clip: Offsets = Offsets(3e-4, 4e-4),
    dual_clip: Bound = inf,
    ratio_clamp: Bound = 20.0,
    ratio_cap: Bound = inf,
) -> Surrogate:
    """PPO's surrogate with one ratio for a whole response.

    Args:
        tokens: T tokens.
        pg_clip: offsets of the ratio from 1.
        dual_clip: highest ratio if A < 0.
        ratio_clamp: bound on |log s|, nats.
        ratio_cap: upper bound on log s, nats; never: no bound.
    """
    ratio = response_ratio(tokens, ratio_clamp, ratio_cap)
    return through_ratio(tokens, ratio, clipped_along(tokens, ratio.value, pg_clip, dual_clip))


def response_ratio(tokens: Tokens, clamp: float, cap: float) -> Ratio:
    """Return s = exp(mean over the response of new - old), for each of its tokens.

    The gradient reaches a token through its own log-prob alone (GSPO-token): s·∇new. If all
    advantages of a response are equal, as in the paper, that is the gradient of the mean.
    Importance weights w of tokens count as advantages do: the gradient of a token is w·A·s·∇new
    with its own w and A, where that of s itself has the response's mean of w·A at each token.
    """
    mean, high = tokens.mean_log_ratio, min(clamp, cap)
    log_probs = tokens.masked_log_probs
    own_gradient = log_probs - tokens.constant(log_probs)  # its value is 0
    ratio = tokens.xp.exp((mean + own_gradient).clip(-clamp, high))
    return Ratio(ratio, (mean < -clamp) | (mean > high))


def geo_mean(tokens: Tokens, *, pg_clip: Offsets = Offsets(0.4, 0.4)) -> Surrogate:
    """PPO's surrogate of the geometric mean of a response's clipped ratios.

        A > 0: l = min(log r, ε_high)      A < 0: l = max(log r, -ε_low)      A = 0: l = 0
        L = -mean(A)·exp(mean(l)), the means over the response's policy tokens

    Every token has its response's L. The gradient reaches a token through its own log ratio; the
    sum over a response is the gradient of the formula. Importance weights between rollout engine
    and trainer multiply L by their geometric mean over the response (of weights plus 1e-10).

    Args:
        tokens: T tokens.
        pg_clip: bounds on the log ratio.
    """
    log_ratio, where = tokens.log_ratio, tokens.xp.where
    positive, zero = tokens.advantage_positive, tokens.masked_advantages == 0
    mean_advantage = tokens.response_mean(tokens.masked_advantages)
    below = tokens.advantage_negative & (log_ratio < -pg_clip.low)
    above = positive & (log_ratio > pg_clip.high)
    clipped = where(positive, log_ratio.clip(max=pg_clip.high), log_ratio.clip(-pg_clip.low))
    clipped = where(zero, 0.0, clipped)
    own_gradient = clipped - tokens.constant(clipped)  # its value is 0
    ratio = tokens.xp.exp(tokens.response_mean(clipped) + own_gradient)
    values = -mean_advantage * ratio
    gradient = where(below | above | zero, 0.0, tokens.constant(values))
    if tokens.weights is not None:
        weights = tokens.xp.exp(tokens.response_mean(tokens.xp.log(tokens.weights + _TINY)))
        values, gradient = values * weights, gradient * weights
    return Surrogate(values, clip_states(below, above), gradient, ratio)


def sapo(
    tokens: Tokens, *, tau_pos: Positive = 1.0, tau_neg: Positive = 1.05, ratio_clamp: Bound = 20.0
) -> Surrogate:
    """Smooth gate on the ratio in place of a clip.

    L = -A·σ(τ·(r - 1))·4/τ, with one τ if A > 0 and another otherwise.

    At r = 1 its gradient is that of -A·r. Nothing is clipped.

    Args:
        tokens: T tokens.
        tau_pos: steepness τ of the gate if A > 0.
        tau_neg: steepness τ of the gate otherwise.
        ratio_clamp: bound on |log r|, nats.
    """
    none, ratio = tokens.xp.zeros_like(tokens.mask), tokens.ratio(ratio_clamp)
    xp, advantages = tokens.xp, tokens.masked_advantages
    of_positive, of_negative = (xp.full((), tau, advantages) for tau in (tau_pos, tau_neg))
    tau = xp.where(tokens.advantage_positive, of_positive, of_negative)
    # torch.sigmoid rounds by a token's position in the tensor, so chunks would change bits.
    decay = xp.exp(tau * (1 - ratio))
    gate = 1 / (1 + decay)
    gradient = tokens.constant(4 * tokens.negated_advantages * (gate * gate * decay) * ratio)
    beyond = tokens.beyond(ratio_clamp)
    if beyond is not False:
        gradient = xp.where(beyond, 0.0, gradient)
    values = tokens.negated_advantages * gate * (4 / tau)
    return Surrogate(values, clip_states(none, none), gradient, ratio)


def fipo(
    tokens: Tokens,
    *,
    pg_clip: Offsets = CLIP,
    dual_clip: Bound = inf,
    half_life: Positive = 32.0,
    influence: Range = Range(1.0, 1.2),
    safety: Bound = 4.0,
    ratio_clamp: Bound = inf,
) -> Surrogate:
    """Ppo, weighted by how far the rest of the response moved.

        F_t = Σ over s ≥ t of γ^(s-t)·log r_s,  without tokens of r_s > c;  γ = 2^(-1/half-life)
        f = clip(e^F, low, high);  clip(f, 0.8, 1) if A < 0 and r > safety

    Observation tokens add 0 to F, and count in distances s - t.

    Args:
        tokens: T tokens.
        pg_clip: offsets of the ratio from 1.
        dual_clip: highest ratio c if A < 0.
        half_life: distance, in tokens, at which a log ratio counts half.
        influence: lowest and highest f.
        safety: f is in [0.8, 1] if A < 0 and the ratio is above this; never: no bound.
        ratio_clamp: bound on |log r|, nats.
    """
    where, log_ratio = tokens.xp.where, tokens.constant(tokens.log_ratio)
    plain = tokens.constant(tokens.ratio())
    future = reverse_scan(
        where(plain > dual_clip, 0.0, log_ratio), tokens.offsets, 2 ** (-1 / half_life)
    )
    factor = tokens.xp.exp(future.clip(-_MOST, _MOST)).clip(*influence)
    unsafe = tokens.advantage_negative & (plain > safety)
    factor = where(unsafe, factor.clip(*_CAUTIOUS), factor)
    ratio = token_ratio(tokens, ratio_clamp)
    bounded = clipped_along(tokens, ratio.value, pg_clip, dual_clip)
    return through_ratio(tokens, ratio, bounded._replace(weight=bounded.weight * factor))


def oreal(
    tokens: Tokens,
    *,
    pg_clip: Offsets = CLIP,
    dual_clip: Bound = 3.0,
    positive: NonNegative = 1.0,
    sft: NonNegative = 1.0,
    negative: NonNegative = 1.0,
    ratio_clamp: Bound = 20.0,
) -> Surrogate:
    """Ppo with a factor for each sign of A, and imitation if A > 0.

    Args:
        tokens: T tokens.
        pg_clip: offsets of the ratio from 1.
        dual_clip: highest ratio if A < 0.
        positive: factor of PPO's surrogate if A > 0.
        sft: coefficient of -log π, if A > 0.
        negative: factor of PPO's surrogate otherwise.
        ratio_clamp: bound on |log r|, nats.
    """
    where, rewarded = tokens.xp.where, tokens.advantage_positive
    ratio = token_ratio(tokens, ratio_clamp)
    bounded = clipped_along(tokens, ratio.value, pg_clip, dual_clip)
    weights = (factor * bounded.weight for factor in (positive, negative))
    bounded = bounded._replace(weight=where(rewarded, *weights))
    slope = -sft * tokens.xp.ones_like(tokens.masked_advantages)
    imitation = where(rewarded, slope * tokens.masked_log_probs, 0.0)
    return through_ratio(tokens, ratio, bounded).plus(imitation, where(rewarded, slope, 0.0))


def clip_cov(tokens: Tokens, *, pg_clip: Offsets = CLIP, ratio_clamp: Bound = inf) -> Surrogate:
    """Ppo; drops some tokens of high covariance of advantage and log-prob.

    The candidates of a batch are the policy tokens that PPO does not clip and whose covariance is
    between the bounds. Of these, ⌊share · policy tokens⌋ are selected at random, at least one.

    Args:
        tokens: T tokens.
        pg_clip: offsets of the ratio from 1.
        ratio_clamp: bound on |log r|, nats.
    """
    ratio, where, chosen = token_ratio(tokens, ratio_clamp), tokens.xp.where, tokens.chosen
    bounded = clipped_along(tokens, ratio.value, pg_clip)
    weight = where(chosen, 0.0, bounded.weight)
    clip = where(chosen, SELECTED, bounded.clip)
    return through_ratio(tokens, ratio, Bounded(weight, clip, bounded.stopped | chosen))


def kl_cov(tokens: Tokens, *, coef: NonNegative = 1.0, ratio_clamp: Bound = inf) -> Surrogate:
    """Surrogate of the ratio; KL penalty on tokens of high covariance.

    Args:
        tokens: T tokens.
        coef: coefficient β of the penalty.
        ratio_clamp: bound on |log r|, nats.
    """
    xp, chosen, ratio = tokens.xp, tokens.chosen, token_ratio(tokens, ratio_clamp)
    states = xp.astype(chosen, xp.uint8) * SELECTED
    bounded = unbounded(tokens, ratio.value)._replace(clip=states)
    sign = xp.sign(tokens.constant(tokens.log_ratio))
    penalty = xp.where(chosen, coef * abs(tokens.log_ratio), 0.0)
    return through_ratio(tokens, ratio, bounded).plus(penalty, xp.where(chosen, coef * sign, 0.0))


def inside_covariance(
    behaviour: str,
    *,
    pg_clip: Offsets,
    ratio_clamp: float,
    cov: Range = Range(1.0, 5.0),
    share: Share = 2e-4,
    seed: int = 0,
) -> Selection:
    """Select candidates of `clip_cov` at random.

    Args:
        behaviour: the policy that the ratio divides by.
        pg_clip: as of `clip_cov`.
        ratio_clamp: likewise.
        cov: tokens of a covariance between these are candidates.
        share: share of a batch's policy tokens that are selected.
        seed: of the random choice.
    """
    name = f"clip_cov {behaviour} {pg_clip} {cov} {ratio_clamp} {share} {seed}"
    rank = partial(_candidates, pg_clip=pg_clip, cov=cov, ratio_clamp=ratio_clamp)
    return Selection(name, rank, share, seed, behaviour)


def _candidates(tokens: Tokens, *, pg_clip: Offsets, cov: Range, ratio_clamp: float) -> Array:
    """Return 0 for candidates of `clip_cov` and -inf for other tokens, [T]."""
    covariance = tokens.covariance
    clip = clipped_along(tokens, tokens.ratio(ratio_clamp), pg_clip).clip
    inside = (covariance > cov.low) & (covariance < cov.high) & (clip == NONE)
    return tokens.xp.where(inside, 0.0 * covariance, -inf)


def highest_covariance(behaviour: str, *, share: Share = 2e-4, seed: int = 0) -> Selection:
    """Select the tokens of highest covariance.

    Args:
        behaviour: the policy that the ratio divides by.
        share: share of a batch's policy tokens that are selected.
        seed: of the choice among equal covariances.
    """
    return Selection(f"kl_cov {behaviour} {share} {seed}", _covariance, share, seed, behaviour)


def _covariance(tokens: Tokens) -> Array:
    return tokens.covariance


LOSSES = (
    # Eq. 7; clip-higher: DAPO, arXiv 2503.14476; dual clip: Ye et al., arXiv 1912.09729.
    Loss("ppo", ppo, "max(-A·r, -A·clip(r, 1-ε, 1+ε))", "arXiv:1707.06347"),
    # GSPO-token, with the clip range of its experiments.
    Loss(
        "gspo", gspo, "max(-A·s, -A·clip(s, 1-ε, 1+ε)), s = exp(mean log r)", "arXiv:2507.18071",
        "seq-mean-token-mean", of_responses=True
    ),
    Loss(
        "geo_mean", geo_mean,
        "-mean(A)·exp(mean l), l = min(log r, ε) if A > 0, max(log r, -ε) if A < 0, else 0",
        "arXiv:2507.20673", "seq-mean-token-mean", of_responses=True, weighs=True
    ),
    Loss("sapo", sapo, "-A·σ(τ(r - 1))·4/τ", "arXiv:2511.20347", "seq-mean-token-mean"),
    # As in ms-swift 4.6.0 (swift/rlhf_trainers/grpo_trainer.py:885), whose `delta` is c, and
    # low is 1 with `fipo_clip_high_only`.
    Loss(
        "fipo", fipo, "f·max(-A·r, -A·clip(r, 1-ε, 1+ε)), f = stop(clip(e^F, low, high)), "
        "F = Σ over s ≥ t of γ^(s-t)·log r_s", "arXiv:2603.19835"
    ),
    # xtuner/v1/rl/loss/oreal_loss.py (commit a1cd6e0), with its policy loss `vanilla`. The
    # aggregation token-mean-by-sign divides by the tokens of each sign. `positive_loss_factor`
    # is a factor of positive and sft, which are `pos_policy_loss_weight` and
    # `pos_sft_loss_weight`; negative is `negative_loss_factor`.
    Loss(
        "oreal", oreal,
        "positive·L - sft·log π if A > 0, else negative·L; L = max(-A·r, -A·clip(r, 1-ε, 1+ε))",
        "XTuner", "token-mean-by-sign"
    ),
    Loss(
        "clip_cov", clip_cov,
        "max(-A·r, -A·clip(r, 1-ε, 1+ε)); 0 if selected, low < cov(A, log π) < high",
        "arXiv:2505.22617", selects=inside_covariance
    ),
    Loss(
        "kl_cov", kl_cov, "-A·r; + β|log r| if cov(A, log π) is among the highest",
        "arXiv:2505.22617", selects=highest_covariance
    ),
)  # fmt: skip
