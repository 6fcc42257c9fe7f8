"""Policy losses: what a loss is, what it returns, and the parts that losses are made of."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlpost.errors import UsageError
from rlpost.kernels.arrays import Array, namespace
from rlpost.recipe.base import Bounds, Clamp, as_typed
from rlpost.recipe.flags import flag_of
from rlpost.recipe.functions import options_of, typed_options, with_defaults
from rlpost.recipe.loss import LossOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlpost.losses.tokens import Selection, Tokens
    from rlpost.recipe.functions import Option


NONE, LOW, HIGH, DUAL, SELECTED = range(5)
"""Clip states of a token."""
NEEDS = ("advantages", "log_probs", "old_log_probs")
"""The roles that a loss needs unless it declares others."""
_USUAL_CLIP = 0.2
"""The pg_clip from which `--dual-clip twice` is computed if none is set."""


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

    def plus(self, values: Array, gradient: Array) -> Surrogate:
        """Return the loss with a term that is added."""
        return self._replace(values=self.values + values, gradient=self.gradient + gradient)


@dataclass(frozen=True)
class Loss:
    """A policy loss: a function of Tokens, whose keyword-only parameters are its options.

    A parameter with the name of a field of LossOptions gets that field; its default is the field's.
    """

    name: str
    function: Callable[..., Surrogate]
    formula: str
    source: str
    aggregation: str = "token-mean"
    """How token losses are aggregated by default."""
    needs: tuple[str, ...] = NEEDS
    """The roles without which it has no value. `behaviour` replaces old_log_probs."""
    of_responses: bool = False
    """The ratio that it uses is one of a response."""
    grouped: bool = False
    """It reads all responses of a prompt group at once."""
    selects: Callable[..., Selection] | None = None
    """Returns what it selects of each batch, for a policy that ratios divide by. Its keyword-only
    parameters are options of the loss, too."""
    advantages: Callable[[Tokens], Array] | None = None
    """What it uses as advantages, [T], 0 if masked out; None for those of the tokens."""
    weighs: bool = False
    """Its function applies the importance weights of the tokens itself."""
    linked: bool = False
    """The loss of a token depends on log-probs of other tokens."""
    columns: tuple[str, ...] = ()
    """The columns of the input that it reads by their names."""

    @property
    def about(self) -> str:
        """The first sentence of its function."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0].removesuffix(".")

    @cached_property
    def parameters(self) -> Mapping[str, Option]:
        """All options that it reads, by name."""
        return options_of([self.function, *([self.selects] if self.selects else [])], ())

    @cached_property
    def fields(self) -> Mapping[str, Option]:
        """The fields of LossOptions that it reads."""
        names = LossOptions.model_fields
        return {name: x for name, x in self.parameters.items() if name in names}

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """The options that `loss_options` sets."""
        return {name: x for name, x in self.parameters.items() if name not in self.fields}

    def typed(
        self,
        values: Mapping[str, Any],
        origins: Mapping[str, str] | None = None,
        having: Callable[[str], str] = lambda _: "",
    ) -> dict[str, Any]:
        """Return values of `loss_options`, checked and as a recipe file has them.

        Args:
            values: by name.
            origins: the source of `loss_options.NAME` if it is no flag, for errors.
            having: returns which other losses have an option, for errors.

        Raises:
            UsageError: it has no such option, or a value has another type.
        """

        def elsewhere(name: str) -> str:
            named = f"it is an option of rlpost: {flag_of(name)}"
            return named if name in self.fields else having(name)

        return typed_options(
            f"loss {self.name}", self.options, values,
            field="loss_options", origins=origins, elsewhere=elsewhere,
        )  # fmt: skip

    def values(self, options: LossOptions) -> dict[str, Any]:
        """Return the arguments of its functions: its defaults for None.

        Raises:
            UsageError: it has no such option, a value has another type, or one is missing.
        """
        values = {name: option.default for name, option in self.fields.items()}
        for name, option in self.fields.items():
            asked = getattr(options, name)
            if asked == "twice":
                asked = 1 + 2 * (_USUAL_CLIP if options.pg_clip is None else options.pg_clip.low)
            if asked is not None:
                values[name] = _as_parameter(option, asked)
            elif option.required:
                text = f"loss {self.name}: its option {name!r} has no default"
                raise UsageError(text, tip=f"add {flag_of(name)} {option.type_name}")
        typed = self.typed(options.loss_options)
        typed = with_defaults(f"loss {self.name}", self.options, typed, field="loss_options")
        return values | {
            name: option.parsed(typed[name]) if name in typed else option.default
            for name, option in self.options.items()
        }

    def selection(self, options: LossOptions) -> Selection | None:
        """Return what it selects of each batch; None if it selects nothing."""
        if self.selects is None:
            return None
        values = self.values(options)
        return self.selects(options.behaviour, **_read_by(self.selects, values))

    def gradient(
        self, tokens: Tokens, options: LossOptions, surrogate: Surrogate, weights: Array
    ) -> Array:
        """Return the derivative of Σ weight · loss by the log-prob of each token, [T].

        Args:
            tokens: the tokens.
            options: as of the call.
            surrogate: its result.
            weights: [T].
        """
        if not self.linked:
            return surrogate.gradient * weights
        weights = weights if tokens.weights is None else tokens.weights * weights
        return self(replace(tokens, weights=weights), options).gradient

    def __call__(self, tokens: Tokens, options: LossOptions) -> Surrogate:
        """Return the loss of these tokens."""
        selection = self.selection(options)
        if selection is not None:
            tokens = replace(tokens, chosen=selection.of(tokens))
        tokens = tokens.divided_by(options.behaviour)
        surrogate = self.function(tokens, **_read_by(self.function, self.values(options)))
        values, gradient = surrogate.values, surrogate.gradient
        if tokens.weights is not None and not self.weighs:
            values, gradient = values * tokens.weights, gradient * tokens.weights
        if tokens.all_policy:
            return surrogate._replace(values=values, gradient=gradient)
        xp = namespace(values)
        return Surrogate(
            xp.where(tokens.mask, values, 0.0),
            xp.where(tokens.mask, surrogate.clip, xp.zeros_like(surrogate.clip)),
            xp.where(tokens.mask, gradient, 0.0),
            surrogate.ratio,
        )


def _as_parameter(option: Option, value: Any) -> Any:
    """Return the value of a field as a parameter's type has it: equal bounds, a clamp as a number.

    Raises:
        UsageError: the parameter has another type.
    """
    if option.kind is None:
        return value
    try:
        return option.parsed(value)
    except ValueError as error:
        if isinstance(value, Clamp) or (isinstance(value, Bounds) and value.low == value.high):
            return _as_parameter(option, float(value[-1]))
        raise UsageError(f"{flag_of(option.name)} {as_typed(value)}: {error}") from None


@cache
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the keyword-only parameters of a function."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(x.name for x in parameters if x.kind is x.KEYWORD_ONLY)


def _read_by(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _names(function)}


# --- ratios ---------------------------------------------------------------------------------------


class Ratio(NamedTuple):
    """A ratio of policies, [T] each."""

    value: Array
    stopped: Array | bool = False
    """Bool: it is clamped, so that it has no gradient."""


def token_ratio(tokens: Tokens, clamp: float) -> Ratio:
    """Return r = exp(new - old), the log ratio clamped to ±clamp nats."""
    return Ratio(tokens.ratio(clamp), tokens.beyond(clamp))


def importance_weight(tokens: Tokens, clamp: float) -> Array:
    """Return r as a constant for gradients, [T]."""
    return tokens.constant(tokens.ratio(clamp))


# --- bounds ---------------------------------------------------------------------------------------


class Bounded(NamedTuple):
    """The weight of each token in a loss, [T] each."""

    weight: Array
    """The ratio after its bounds."""
    clip: Array
    """Uint8 clip state."""
    stopped: Array | bool = False
    """Bool: the gradient does not reach the ratio."""


def clip_states(low: Array, high: Array, dual: Array | None = None) -> Array:
    """Return the clip state of each token, [T] uint8, from masks that exclude each other."""
    xp = namespace(low)
    states = xp.astype(low, xp.uint8) * LOW + xp.astype(high, xp.uint8) * HIGH
    return states if dual is None else states + xp.astype(dual, xp.uint8) * DUAL


def limits(bounds: Bounds, unit: Literal["offset", "ratio"] = "offset") -> Bounds:
    """Return the lowest and the highest ratio; bounds are an offset from 1, or the ratio itself."""
    if unit == "offset":
        return Bounds(1 - bounds.low, 1 + bounds.high)
    return Bounds(-math.inf if math.isinf(bounds.low) else bounds.low, bounds.high)


def unbounded(tokens: Tokens, ratio: Array) -> Bounded:
    """Return the ratio itself."""
    none = tokens.xp.zeros_like(tokens.mask)
    return Bounded(ratio, clip_states(none, none))


def clipped_along(
    tokens: Tokens, ratio: Array, pg_clip: Bounds, dual_clip: float = math.inf
) -> Bounded:
    """Return PPO's clip, which keeps the maximum of the plain and the clipped surrogate.

        A > 0: min(r, 1 + ε_high)      A < 0: min(max(r, 1 - ε_low), c)

    A bound that is active stops the gradient; the states are HIGH, LOW and DUAL.
    """
    lowest, highest = limits(pg_clip)
    positive, negative = tokens.advantage_positive, tokens.advantage_negative
    low, high, dual = negative & (ratio < lowest), positive & (ratio > highest), None
    stopped = low | high
    weight = tokens.xp.where(stopped, ratio.clip(lowest, highest), ratio)
    if not math.isinf(dual_clip):
        dual = negative & (ratio > dual_clip)
        weight = tokens.xp.where(dual, dual_clip, weight)
        stopped = stopped | dual
    return Bounded(weight, clip_states(low, high, dual), stopped)


# --- paths of the gradient ------------------------------------------------------------------------


def through_ratio(
    tokens: Tokens, ratio: Ratio, bounded: Bounded, advantages: Array | None = None
) -> Surrogate:
    """Return L = -A·b(r);  ∂L/∂log π = -A·b(r), 0 if stopped.

    Args:
        tokens: T tokens.
        ratio: r.
        bounded: b(r).
        advantages: [T], 0 if masked out; None for those of the tokens.
    """
    values = bounded.weight * (tokens.negated_advantages if advantages is None else -advantages)
    gradient, stopped = tokens.constant(values), bounded.stopped | ratio.stopped
    if stopped is not False:
        gradient = tokens.xp.where(stopped, 0.0, gradient)
    return Surrogate(values, bounded.clip, gradient, ratio.value)


def through_log_prob(tokens: Tokens, ratio: Array, bounded: Bounded) -> Surrogate:
    """Return L = -A·b(r)·log π, with r and b(r) constants for gradients;  ∂L/∂log π = -A·b(r)."""
    gradient = bounded.weight * tokens.negated_advantages
    values = gradient * tokens.masked_log_probs
    return Surrogate(values, bounded.clip, gradient, ratio)


def squared(tokens: Tokens, coefficient: float) -> tuple[Array, Array]:
    """Return coefficient·(new - old)² and its gradient."""
    slope = 2 * coefficient * tokens.constant(tokens.log_ratio)
    return coefficient * tokens.log_ratio**2, slope
