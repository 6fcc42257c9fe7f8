"""Base types of policy losses: their input `Tokens`, their output `Surrogate`, and `Loss`."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.kernels.arrays import Array, namespace
from rlpost.losses.selection import Selection
from rlpost.losses.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.recipe.loss import Aggregation, LossOptions


__all__ = [
    "DUAL",
    "HIGH",
    "LOW",
    "NONE",
    "SELECTED",
    "Loss",
    "Surrogate",
    "Tokens",
    "clip_states",
    "ratio_limits",
]
NONE, LOW, HIGH, DUAL, SELECTED = range(5)
"""Clip states of a token."""
NEEDS = ("advantages", "log_probs", "old_log_probs")
"""The roles that a loss needs unless it declares others."""


class Surrogate(NamedTuple):
    """The result of a loss function, [T] each."""

    values: Array
    """Loss of each token before any mean; 0 if masked out."""
    clip: Array
    """Uint8 clip state: NONE; LOW, HIGH, DUAL if that bound is active; SELECTED if `chosen`."""
    zero_gradient: Array
    """Bool: a policy token whose gradient is 0."""
    ratio: Array
    """The ratio that the loss uses, after means over responses and clamps; 1 if masked out."""


@dataclass(frozen=True)
class Loss:
    """A policy loss: a function of Tokens, whose keyword-only parameters are LossOptions."""

    name: str
    function: Callable[..., Surrogate]
    formula: str
    source: str
    aggregation: Aggregation
    """How token losses are aggregated by default."""
    own_advantages: Callable[[Tokens], Array] | None = None
    """What it uses as advantages, [T], 0 if masked out; None for those of the tokens."""
    needs: tuple[str, ...] = NEEDS
    """The roles without which it has no value. `behaviour` replaces old_log_probs."""
    rank: Callable[..., Array] | None = None
    """Ranks tokens in their batches, [T] float64, -inf for a token that cannot be selected, for a
    loss that selects the highest. Its keyword-only parameters are LossOptions."""
    after_rank: tuple[str, ...] = ()
    """Options that do not change the selection."""
    response_weights: Callable[[Tokens], Array] | None = None
    """What multiplies its tokens in place of the importance weights, [T]."""

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The fields of LossOptions that the function reads, with its own defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}

    def value(self, name: str, options: LossOptions) -> Any:
        """Return an option that the function reads: an option of None is its own default."""
        asked = getattr(options, name)
        return self.defaults[name] if asked is None else asked

    def selection(self, options: LossOptions) -> Selection | None:
        """Return what it selects of each batch; None if it has no rank."""
        if self.rank is None:
            return None
        values = {name: self.value(name, options) for name in self.defaults}
        own = [f"{name}={x}" for name, x in values.items() if name not in self.after_rank]
        parameters = inspect.signature(self.rank).parameters.values()
        reads = {x.name: values[x.name] for x in parameters if x.kind is x.KEYWORD_ONLY}
        return Selection(
            name=" ".join([self.name, options.behaviour, *own]),
            rank=partial(self.rank, **reads),
            share=values["cov_share"],
            seed=values["cov_seed"],
            behaviour=options.behaviour,
        )

    def __call__(self, tokens: Tokens, options: LossOptions) -> Surrogate:
        """Return the loss of these tokens; an option of None is the function's own default."""
        selection = self.selection(options)
        if selection is not None:
            tokens = replace(tokens, chosen=selection.of(tokens))
        tokens = tokens.divided_by(options.behaviour)
        surrogate = self.function(
            tokens, **{name: self.value(name, options) for name in self.defaults}
        )
        values, zero_gradient = surrogate.values, surrogate.zero_gradient
        if tokens.weights is not None:
            own = self.response_weights
            weights = tokens.weights if own is None else own(tokens)
            values, zero_gradient = values * weights, zero_gradient | (weights == 0)
        if tokens.all_policy:
            return surrogate._replace(values=values, zero_gradient=zero_gradient)
        xp = namespace(values)
        return Surrogate(
            xp.where(tokens.mask, values, 0.0),
            xp.where(tokens.mask, surrogate.clip, xp.zeros_like(surrogate.clip)),
            zero_gradient & tokens.mask,
            surrogate.ratio,
        )


def clip_states(low: Array, high: Array, dual: Array | None = None) -> Array:
    """Return the clip state of each token, [T] uint8, from masks that exclude each other."""
    xp = namespace(low)
    states = xp.astype(low, xp.uint8) * LOW + xp.astype(high, xp.uint8) * HIGH
    return states if dual is None else states + xp.astype(dual, xp.uint8) * DUAL


def ratio_limits(
    low: float | None,
    high: float | None,
    both: float | None,
    own: tuple[float, float],
    meaning: str = "offset",
) -> tuple[float, float]:
    """Return the lowest and the highest ratio that is not clipped.

    Args:
        low: the number of the lower bound; None for `both`, inf for no bound.
        high: the number of the upper bound, likewise.
        both: the number of both bounds; None for the loss's `own` pair.
        own: the default of the loss, as offsets from 1.
        meaning: numbers are an `offset` from 1, or the `ratio` itself.
    """
    asked_low = both if low is None else low
    asked_high = both if high is None else high
    if asked_low is None:
        lowest = 1 - own[0]
    elif math.isinf(asked_low):
        lowest = 0.0
    else:
        lowest = asked_low if meaning == "ratio" else 1 - asked_low
    if asked_high is None:
        return lowest, 1 + own[1]
    return lowest, asked_high if meaning == "ratio" else 1 + asked_high
