"""Base types of policy losses: their input `Tokens`, their output `Surrogate`, and `Loss`."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rlpost.kernels.arrays import Array, namespace
from rlpost.losses.selection import Selection
from rlpost.losses.tokens import Tokens
from rlpost.recipe.loss import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.recipe.functions import Option
    from rlpost.recipe.loss import LossOptions


__all__ = ["DUAL", "HIGH", "LOW", "NONE", "SELECTED", "Loss", "Surrogate", "Tokens", "clip_states"]
NONE, LOW, HIGH, DUAL, SELECTED = range(5)
"""Clip states of a token."""
NEEDS = ("advantages", "log_probs", "old_log_probs")
"""The roles that a loss needs unless it declares others."""
SIDES = {
    "pg_clip": ("pg_clip_low", "pg_clip_high"),
    "prob_mask": ("prob_mask_low", "prob_mask_high"),
    "kl_mask": ("kl_mask_low", "kl_mask_high"),
}
"""Options of a bound on both sides, and those of each side."""
USUAL_CLIP = 0.2
"""The pg_clip from which `--dual-clip twice` is computed if none is set."""
_BOTH = {side: both for both, sides in SIDES.items() for side in sides}


class Surrogate(NamedTuple):
    """The result of a loss function, [T] each."""

    values: Array
    """Loss of each token before any mean; 0 if masked out."""
    clip: Array
    """Uint8 clip state: NONE; LOW, HIGH, DUAL if that bound is active; SELECTED if `chosen`."""
    gradient: Array
    """The derivative of the sum of all values by the log-prob of the token; 0 if masked out."""
    ratio: Array
    """The ratio that the loss uses, after means over responses and clamps; 1 if masked out."""


@dataclass(frozen=True)
class Loss:
    """A policy loss: a function of Tokens, whose keyword-only parameters are LossOptions.

    The defaults of the options, and the aggregation, are those of `recipe.loss.DEFAULTS`.
    """

    name: str
    function: Callable[..., Surrogate]
    """A `Composition`, or a function."""
    formula: str
    source: str
    needs: tuple[str, ...] = NEEDS
    """The roles without which it has no value. `behaviour` replaces old_log_probs."""
    of_responses: bool = False
    """The ratio that it uses is one of a response."""
    grouped: bool = False
    """It reads all responses of a prompt group at once."""
    rank: Callable[..., Array] | None = None
    """Ranks tokens in their batches, [T] float64, -inf for a token that cannot be selected, for a
    loss that selects the highest. Its keyword-only parameters are LossOptions."""
    after_rank: tuple[str, ...] = ()
    """Options that do not change the selection."""
    response_weights: Callable[[Tokens], Array] | None = None
    """What multiplies its tokens in place of the importance weights, [T]."""

    @property
    def aggregation(self) -> str:
        """How token losses are aggregated by default."""
        return str(DEFAULTS[self.name]["aggregation"])

    @property
    def own_advantages(self) -> Callable[[Tokens], Array] | None:
        """What it uses as advantages, [T], 0 if masked out; None for those of the tokens."""
        return getattr(self.function, "advantages", None)

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns of the input that it reads by their names."""
        return ()

    @property
    def own_options(self) -> Mapping[str, Option]:
        """The options that are no field of LossOptions, by name."""
        return {}

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The fields of LossOptions that it reads; a bound on both sides is None if they differ."""
        own = {name: x for name, x in DEFAULTS[self.name].items() if name != "aggregation"}
        both = {name: None for name, sides in SIDES.items() if {*sides} <= {*own}}
        return both | {name: math.inf if x == "never" else x for name, x in own.items()}

    def values(self, options: LossOptions) -> dict[str, Any]:
        """Return the options that it reads: its defaults for None, each side of bounds."""
        values = dict(self.defaults)
        for name in values:
            asked = getattr(options, name)
            if asked is None and _BOTH.get(name) in self.defaults:
                asked = getattr(options, _BOTH[name])
            if asked is not None:
                values[name] = asked
            elif name == "pg_clip_high" and options.cispo_bounds == "ratio":
                values[name] += 1  # the defaults are offsets from 1
        if values.get("dual_clip") == "twice":
            clip = USUAL_CLIP if options.pg_clip is None else options.pg_clip
            values["dual_clip"] = 1 + 2 * clip
        return values

    def selection(self, options: LossOptions) -> Selection | None:
        """Return what it selects of each batch; None if it has no rank."""
        if self.rank is None:
            return None
        values = self.values(options)
        own = [f"{name}={x}" for name, x in values.items() if name not in self.after_rank]
        reads = {name: values[name] for name in option_names(self.rank)}
        return Selection(
            name=" ".join([self.name, options.behaviour, *own]),
            rank=partial(self.rank, **reads),
            share=values["cov_share"],
            seed=values["cov_seed"],
            behaviour=options.behaviour,
        )

    def gradient(
        self, tokens: Tokens, options: LossOptions, surrogate: Surrogate, weights: Array
    ) -> Array:
        """Return the derivative of Σ weight · loss by the log-prob of each token, [T].

        Args:
            tokens: the tokens.
            options: as of the call.
            surrogate: its result, in which the loss of a token depends on its log-prob alone.
            weights: [T].
        """
        del tokens, options
        return surrogate.gradient * weights

    def __call__(self, tokens: Tokens, options: LossOptions) -> Surrogate:
        """Return the loss of these tokens."""
        selection = self.selection(options)
        if selection is not None:
            tokens = replace(tokens, chosen=selection.of(tokens))
        tokens = tokens.divided_by(options.behaviour)
        surrogate: Surrogate = call(self.function, self.values(options), tokens)
        values, gradient = surrogate.values, surrogate.gradient
        if tokens.weights is not None:
            own = self.response_weights
            weights = tokens.weights if own is None else own(tokens)
            values, gradient = values * weights, gradient * weights
        if tokens.all_policy:
            return surrogate._replace(values=values, gradient=gradient)
        xp = namespace(values)
        return Surrogate(
            xp.where(tokens.mask, values, 0.0),
            xp.where(tokens.mask, surrogate.clip, xp.zeros_like(surrogate.clip)),
            xp.where(tokens.mask, gradient, 0.0),
            surrogate.ratio,
        )


def clip_states(low: Array, high: Array, dual: Array | None = None) -> Array:
    """Return the clip state of each token, [T] uint8, from masks that exclude each other."""
    xp = namespace(low)
    states = xp.astype(low, xp.uint8) * LOW + xp.astype(high, xp.uint8) * HIGH
    return states if dual is None else states + xp.astype(dual, xp.uint8) * DUAL


@cache
def option_names(function: Callable[..., Any]) -> frozenset[str]:
    """Return the options of a composition, or the keyword-only parameters of a function."""
    own = getattr(function, "options", None)
    if own is None:
        parameters = inspect.signature(function).parameters.values()
        own = frozenset(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
    return own


def call(function: Callable[..., Any], options: Mapping[str, Any], *arguments: Any) -> Any:
    """Return what a function returns with those of the options that it reads."""
    reads = option_names(function)
    return function(*arguments, **{name: x for name, x in options.items() if name in reads})
