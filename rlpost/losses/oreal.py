"""OREAL: PPO's surrogate with a factor for each sign of the advantage, and imitation if A > 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlpost.losses.base import Loss
from rlpost.losses.composition import Bounded, Composition, clipped_along, token_ratio

if TYPE_CHECKING:
    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


def clipped_by_sign(
    tokens: Tokens,
    ratio: Array,
    *,
    pg_clip_low: float,
    pg_clip_high: float,
    dual_clip: float,
    oreal_positive: float,
    oreal_negative: float,
) -> Bounded:
    """Return PPO's clip times oreal_positive if A > 0, else times oreal_negative."""
    bounded = clipped_along(
        tokens, ratio, pg_clip_low=pg_clip_low, pg_clip_high=pg_clip_high, dual_clip=dual_clip
    )
    weights = (factor * bounded.weight for factor in (oreal_positive, oreal_negative))
    return bounded._replace(weight=tokens.xp.where(tokens.advantage_positive, *weights))


def imitation(tokens: Tokens, *, oreal_sft: float) -> tuple[Array, Array]:
    """Return -oreal_sft·log π if A > 0, else 0, and its gradient."""
    where, positive = tokens.xp.where, tokens.advantage_positive
    slope = -oreal_sft * tokens.xp.ones_like(tokens.masked_advantages)
    return where(positive, slope * tokens.masked_log_probs, 0.0), where(positive, slope, 0.0)


OREAL = Loss(
    "oreal",
    Composition("ratio", clipped_by_sign, token_ratio, imitation),
    formula="a·L - b·log π if A > 0, else a'·L; L = max(-A·r, -A·clip(r, 1-ε, 1+ε))",
    source="XTuner",
)
"""xtuner/v1/rl/loss/oreal_loss.py (commit a1cd6e0), with its policy loss `vanilla`. The aggregation
token-mean-by-sign divides by the tokens of each sign. `positive_loss_factor` is a factor of a and
b, which are `pos_policy_loss_weight` and `pos_sft_loss_weight`; a' is `negative_loss_factor`."""
