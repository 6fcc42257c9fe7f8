"""FIPO: PPO's surrogate, weighted by how far the rest of the response moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.kernels.scans import reverse_scan
from rlpost.losses.base import Loss
from rlpost.losses.composition import Bounded, Composition, clipped_along, limits, token_ratio

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens

_MOST = 80.0  # nats; its exponential is finite in float32
_CAUTIOUS = (0.8, 1.0)


def influenced(
    tokens: Tokens,
    ratio: Array,
    *,
    pg_clip_low: float,
    pg_clip_high: float,
    dual_clip: float,
    fipo_half_life: float,
    fipo_clip_low: float,
    fipo_clip_high: float,
    fipo_safety: float,
) -> Bounded:
    """Return PPO's clip times f, the influence of a token on those after it; f has no gradient.

        F_t = Σ over s ≥ t of γ^(s-t)·log r_s,  without tokens of r_s > c;  γ = 2^(-1/half-life)
        f = clip(e^F, 1 - low, 1 + high);  clip(f, 0.8, 1) if A < 0 and r > safety

    Observation tokens add 0 to F, and count in distances s - t.
    """
    where, log_ratio = tokens.xp.where, tokens.constant(tokens.log_ratio)
    plain = tokens.constant(tokens.ratio())
    future = reverse_scan(
        where(plain > dual_clip, 0.0, log_ratio), tokens.offsets, 2 ** (-1 / fipo_half_life)
    )
    influence = tokens.xp.exp(future.clip(-_MOST, _MOST))
    influence = influence.clip(*limits(fipo_clip_low, fipo_clip_high))
    unsafe = tokens.advantage_negative & (plain > fipo_safety)
    influence = where(unsafe, influence.clip(*_CAUTIOUS), influence)
    bounded = clipped_along(
        tokens, ratio, pg_clip_low=pg_clip_low, pg_clip_high=pg_clip_high, dual_clip=dual_clip
    )
    return bounded._replace(weight=bounded.weight * influence)


FIPO = Loss(
    "fipo",
    Composition("ratio", influenced, token_ratio),
    formula="f·max(-A·r, -A·clip(r, 1-ε, 1+ε)), f = stop(clip(e^F, 1-low, 1+high)), "
    "F = Σ over s ≥ t of γ^(s-t)·log r_s",
    source="arXiv:2603.19835",
)
"""As in ms-swift 4.6.0 (swift/rlhf_trainers/grpo_trainer.py:885), whose `delta` is c, and low is 0
with `fipo_clip_high_only`."""
