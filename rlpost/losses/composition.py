"""Losses made of parts: a ratio, what bounds it, the path of the gradient, and further terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlpost.losses.base import Surrogate, call, clip_states, option_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlpost.kernels.arrays import Array
    from rlpost.losses.tokens import Tokens


class Bounded(NamedTuple):
    """The weight of each token in a loss, [T] each."""

    weight: Array
    """The ratio after its bounds."""
    clip: Array
    """Uint8 clip state."""
    stopped: Array | bool = False
    """Bool: the gradient does not reach the ratio."""


@dataclass(frozen=True)
class Composition:
    """A loss of tokens. Each part is a function of Tokens; its keyword-only parameters are options.

    gradient = "ratio":     L = -A·b(r) + extra;               ∂L/∂log π = -A·b(r), 0 if stopped
    gradient = "log_prob":  L = -A·stop(b(r))·log π + extra;   ∂L/∂log π = -A·b(r)
    """

    gradient: Literal["ratio", "log_prob"]
    bounds: Callable[..., Bounded]
    """b: of tokens and their ratio."""
    ratio: Callable[..., tuple[Array, Array | bool]]
    """Returns r, and where its gradient is 0 since it is clamped."""
    extra: Callable[..., tuple[Array, Array]] | None = None
    """Returns values that are added, and their gradient, a constant."""
    advantages: Callable[[Tokens], Array] | None = None
    """What it uses as advantages, [T], 0 if masked out; None for those of the tokens."""

    @cached_property
    def options(self) -> frozenset[str]:
        """The options of all parts."""
        parts = (self.ratio, self.bounds, self.extra)
        return frozenset(name for part in parts if part for name in option_names(part))

    def __call__(self, tokens: Tokens, **options: Any) -> Surrogate:
        """Return the loss of each token before weights and mask."""
        ratio, clamped = call(self.ratio, options, tokens)
        through_ratio = self.gradient == "ratio"
        ratio = ratio if through_ratio else tokens.constant(ratio)
        bounded: Bounded = call(self.bounds, options, tokens, ratio)
        own = self.advantages
        negated = tokens.negated_advantages if own is None else -own(tokens)
        values = bounded.weight * negated
        gradient, stopped = tokens.constant(values), bounded.stopped | clamped
        if not through_ratio:
            values = values * tokens.masked_log_probs
        elif stopped is not False:
            gradient = tokens.xp.where(stopped, 0.0, gradient)
        if self.extra is not None:
            more, slope = call(self.extra, options, tokens)
            values, gradient = values + more, gradient + slope
        return Surrogate(values, bounded.clip, gradient, ratio)


# --- ratios ---------------------------------------------------------------------------------------


def token_ratio(tokens: Tokens, *, ratio_clamp: float) -> tuple[Array, Array | bool]:
    """Return r = exp(new - old)."""
    return tokens.ratio(ratio_clamp), tokens.beyond(ratio_clamp)


def no_ratio(tokens: Tokens) -> tuple[Array, bool]:
    """Return 1, the weight of the plain policy gradient."""
    return tokens.xp.ones_like(tokens.masked_advantages), False


# --- bounds ---------------------------------------------------------------------------------------


def limits(low: float, high: float, unit: str = "offset") -> tuple[float, float]:
    """Return the lowest and the highest ratio; bounds are an offset from 1, or the ratio itself."""
    lowest = low if unit == "ratio" else 1 - low
    return (-math.inf if math.isinf(low) else lowest), high if unit == "ratio" else 1 + high


def unbounded(tokens: Tokens, ratio: Array) -> Bounded:
    """Return the ratio itself."""
    none = tokens.xp.zeros_like(tokens.mask)
    return Bounded(ratio, clip_states(none, none))


def clipped_along(
    tokens: Tokens,
    ratio: Array,
    *,
    pg_clip_low: float,
    pg_clip_high: float,
    dual_clip: float = math.inf,
) -> Bounded:
    """Return PPO's clip, which keeps the maximum of the plain and the clipped surrogate.

        A > 0: min(r, 1 + ε_high)      A < 0: min(max(r, 1 - ε_low), c)

    A bound that is active stops the gradient; the states are HIGH, LOW and DUAL.
    """
    lowest, highest = limits(pg_clip_low, pg_clip_high)
    positive, negative = tokens.advantage_positive, tokens.advantage_negative
    low, high, dual = negative & (ratio < lowest), positive & (ratio > highest), None
    stopped = low | high
    weight = tokens.xp.where(stopped, ratio.clip(lowest, highest), ratio)
    if not math.isinf(dual_clip):
        dual = negative & (ratio > dual_clip)
        weight = tokens.xp.where(dual, dual_clip, weight)
        stopped = stopped | dual
    return Bounded(weight, clip_states(low, high, dual), stopped)
