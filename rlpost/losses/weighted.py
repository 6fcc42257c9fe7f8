"""Policy gradients with a bounded importance weight: CISPO, TIS, TOPR, and with a masked one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rlpost.losses.base import Loss, clip_states
from rlpost.losses.composition import Bounded, Composition, limits, token_ratio

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


def clipped(
    tokens: Tokens,
    ratio: Array,
    *,
    pg_clip_low: float,
    pg_clip_high: float,
    cispo_bounds: Literal["offset", "ratio"],
    cispo_mask: bool,
) -> Bounded:
    """Return clip(r, 1 - ε_low, 1 + ε_high); LOW and HIGH for any advantage.

    With cispo_mask it is 0 for a token that ppo would clip with these bounds.
    """
    low, high = limits(pg_clip_low, pg_clip_high, cispo_bounds)
    below, above, weight = ratio < low, ratio > high, ratio.clip(low, high)
    if cispo_mask:
        masked = (above & tokens.advantage_positive) | (below & tokens.advantage_negative)
        weight = tokens.xp.where(masked, 0.0, weight)
    return Bounded(weight, clip_states(below, above))


def truncated(tokens: Tokens, ratio: Array, *, tis_low: float, tis_high: float) -> Bounded:
    """Return clip(r, tis_low, tis_high)."""
    del tokens
    return Bounded(ratio.clip(tis_low, tis_high), clip_states(ratio < tis_low, ratio > tis_high))


def tapered(
    tokens: Tokens,
    ratio: Array,
    *,
    tis_low: float,
    tis_high: float,
    topr_positive: float,
    topr_negative: float,
) -> Bounded:
    """Return topr_positive if the reward is > 0, else topr_negative·clip(r, tis_low, tis_high).

    Without rewards, the sign of the advantage is used.
    """
    positive = tokens.reward_positive
    weight = topr_negative * ratio.clip(tis_low, tis_high)
    clip = clip_states(~positive & (ratio < tis_low), ~positive & (ratio > tis_high))
    return Bounded(tokens.xp.where(positive, topr_positive, weight), clip)


def clipped_and_masked(
    tokens: Tokens, ratio: Array, *, pg_clip_low: float, pg_clip_high: float, dual_clip: float
) -> Bounded:
    """Return clip(r, 1 - ε_low, 1 + ε_high), 0 with the state DUAL if r > c, for any advantage."""
    low, high = limits(pg_clip_low, pg_clip_high)
    masked = ratio > dual_clip
    weight = tokens.xp.where(masked, 0.0, ratio.clip(low, high))
    return Bounded(weight, clip_states(ratio < low, (ratio > high) & ~masked, masked))


def inside(tokens: Tokens, ratio: Array, *, pg_clip_low: float, pg_clip_high: float) -> Bounded:
    """Return r if 1 - ε_low < r < 1 + ε_high, else 0, for any advantage."""
    low, high = limits(pg_clip_low, pg_clip_high)
    below, above = ratio <= low, ratio >= high
    return Bounded(tokens.xp.where(below | above, 0.0, ratio), clip_states(below, above))


def towards_old(
    tokens: Tokens, *, kimi_tau: float, tis_low: float, tis_high: float, ratio_clamp: float
) -> tuple[Array, Array]:
    """Return τ·stop(clip(r, tis_low, tis_high)·log r)·log π, and its gradient."""
    weight = tokens.constant(tokens.ratio(ratio_clamp)).clip(tis_low, tis_high)
    slope = kimi_tau * (weight * tokens.constant(tokens.log_ratio))
    return slope * tokens.masked_log_probs, slope


CISPO = Loss(
    "cispo",
    Composition("log_prob", clipped, token_ratio),
    formula="-stop(clip(r, 1-ε, 1+ε))·A·log π",
    source="arXiv:2506.13585",
)
"""MiniMax-M1. By default there is no lower bound, and the upper one is a ratio of 5, as in "The Art
of Scaling RL Compute for LLMs" (arXiv 2510.13786)."""
TIS = Loss(
    "tis",
    Composition("log_prob", truncated, token_ratio),
    formula="-stop(clip(r, low, high))·A·log π",
    source="arXiv:2503.14286",
)
"""Ionides, "Truncated importance sampling", 2008; with [0, 1] as in TOPR."""
TOPR = Loss(
    "topr",
    Composition("log_prob", tapered, token_ratio),
    formula="-A·log π; reward ≤ 0: -stop(clip(r, low, high))·A·log π",
    source="arXiv:2503.14286",
)
"""Le Roux et al.; token by token, as in ROLL."""
KIMI_K2 = Loss(
    "kimi_k2",
    Composition("log_prob", truncated, token_ratio, towards_old),
    formula="-stop(clip(r, low, high)·(A - τ·log r))·log π",
    source="ART",
)
"""openpipe_art 0.5.23, art/loss.py, loss_fn with `kimi_k2_tau`, without `ppo`."""
MASK_PG = Loss(
    "mask_pg",
    Composition("log_prob", clipped_and_masked, token_ratio),
    formula="-stop(clip(r, 1-ε, 1+ε))·A·log π; 0 if r > c",
    source="XTuner",
)
"""xtuner/v1/rl/loss/loss_fn.py (commit 981e372), mask_pg_loss_fn: c is `clip_ratio_c`; r divides by
the rollout engine (`behaviour="infer"`)."""
ROLLOUT_IS = Loss(
    "rollout_is",
    Composition("log_prob", inside, token_ratio),
    formula="-stop(r)·A·log π; 0 unless 1-ε < r < 1+ε",
    source="SkyRL",
)
"""skyrl 0.4.0, skyrl/backends/skyrl_train/utils/ppo_utils.py, rollout_is_policy_loss: r divides by
the rollout engine (`behaviour="infer"`). CISPO with that anchor is `cispo` with it."""
