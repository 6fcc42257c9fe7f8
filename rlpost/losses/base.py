"""What a policy loss is: a pure function of tokens, and what the table of them says of it."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlpost.kernels.corrections import reduce_responses
from rlpost.kernels.segments import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from rlpost.recipe.loss import Aggregation, LossOptions


NONE, LOW, HIGH, DUAL = 0, 1, 2, 3


@dataclass(frozen=True)
class Tokens:
    """The tokens that a loss is taken of, ragged by response.

    What several settings share is computed once, at first use. Numbers on masked-out tokens are
    never looked at.
    """

    new: Tensor
    """[T] float, log-probs of the policy being trained; losses are differentiable in it."""
    old: Tensor
    """[T] float, log-probs of the policy whose tokens they are, before its update."""
    advantages: Tensor
    """[T] float."""
    mask: Tensor
    """[T] bool: the policy produced the token."""
    offsets: Tensor
    """[n+1] of the responses."""
    infer: Tensor | None = None
    """[T] float, log-probs of the rollout engine."""
    ref: Tensor | None = None
    """[T] float, log-probs of the reference policy, for a KL loss."""
    rewards: Tensor | None = None
    """[n] rewards of the responses; what has none asks for the sign of the advantage."""
    weights: Tensor | None = None
    """[T] importance weights that multiply the loss: a correction between engine and trainer."""

    @cached_property
    def gain(self) -> Tensor:
        """[T] advantages, 0 where the mask is 0."""
        return torch.where(self.mask, self.advantages, 0.0)

    @cached_property
    def whole(self) -> bool:
        """The mask is true throughout."""
        return bool(self.mask.all())

    @cached_property
    def up(self) -> Tensor:
        """[T] bool: the gain is above 0."""
        return self.gain > 0

    @cached_property
    def down(self) -> Tensor:
        """[T] bool: the gain is under 0."""
        return self.gain < 0

    @cached_property
    def idle(self) -> Tensor:
        """[T] bool: the gain is 0."""
        return self.gain == 0

    @cached_property
    def cost(self) -> Tensor:
        """[T] what a loss multiplies by ratios: -gain."""
        return -self.gain

    @cached_property
    def log_prob(self) -> Tensor:
        """[T] `new`, 0 where the mask is 0."""
        return torch.where(self.mask, self.new, 0.0)

    @cached_property
    def log_ratio(self) -> Tensor:
        """[T] new - old, 0 where the mask is 0."""
        return torch.where(self.mask, self.new - self.old, 0.0)

    @cached_property
    def mean_log_ratio(self) -> Tensor:
        """[T] the mean of its response's log ratios at each token; a constant for gradients."""
        return self.response_mean(self.log_ratio)

    @cached_property
    def moved(self) -> Tensor:
        """[T] exp(new) - exp(old), 0 where the mask is 0; a constant for gradients."""
        return torch.where(self.mask, self.new.detach().exp() - self.old.exp(), 0.0)

    @cached_property
    def positive(self) -> Tensor:
        """[T] bool: of a response with a reward above 0; without rewards, of a gain above 0."""
        if self.rewards is None:
            return self.gain > 0
        return spread(self.rewards > 0, self.offsets)

    @cached_property
    def on_engine(self) -> Tokens:
        """The same tokens with the rollout engine's log-probs as `old`."""
        assert self.infer is not None, "tokens without log-probs of the rollout engine"
        return replace(self, old=self.infer)

    @cached_property
    def _ratios(self) -> dict[float, Tensor]:
        return {}

    def ratio(self, clamp: float = math.inf) -> Tensor:
        """[T] exp(new - old), the log ratio clamped to ±clamp nats; 1 where the mask is 0."""
        if clamp not in self._ratios:
            bounded = self.log_ratio if math.isinf(clamp) else self.log_ratio.clamp(-clamp, clamp)
            self._ratios[clamp] = bounded.exp()
        return self._ratios[clamp]

    def beyond(self, clamp: float) -> Tensor | bool:
        """[T] bool: the log ratio is clamped, which stops its gradient; False for no bound."""
        if math.isinf(clamp):
            return False
        if clamp not in self._beyond:
            self._beyond[clamp] = self.log_ratio.abs() > clamp
        return self._beyond[clamp]

    @cached_property
    def _beyond(self) -> dict[float, Tensor]:
        return {}

    def response_mean(self, values: Tensor) -> Tensor:
        """[T] the mean over the response's masked-in tokens at each; a constant for gradients."""
        means = reduce_responses(values.detach(), self.mask, self.offsets, level="geometric")
        return spread(means, self.offsets)


class Surrogate(NamedTuple):
    """What a loss gives, [T] each."""

    values: Tensor
    """Loss of each token before any mean; 0 where the mask is 0."""
    clip: Tensor
    """Uint8: NONE, or LOW, HIGH, DUAL where that branch is active."""
    flat: Tensor
    """Bool: a masked-in token that carries no gradient."""
    ratio: Tensor
    """The ratio that the loss used, after means over responses and clamps; 1 outside the mask."""


@dataclass(frozen=True)
class Loss:
    """One policy loss.

    The function takes Tokens; its keyword-only parameters are knobs, fields of LossOptions.
    """

    name: str
    function: Callable[..., Surrogate]
    formula: str
    source: str
    aggregation: Aggregation
    """How its tokens become one number, where the user leaves it open."""
    own_gain: Callable[[Tokens], Tensor] | None = None
    """What it takes for advantages, [T], 0 outside the mask; None for those of the tokens."""

    @cached_property
    def knobs(self) -> Mapping[str, Any]:
        """The fields of LossOptions that the function takes, with its own defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}

    def __call__(self, tokens: Tokens, options: LossOptions) -> Surrogate:
        """The loss of these tokens; an option that is None takes the function's own default."""
        if options.behaviour == "infer":
            tokens = tokens.on_engine
        asked = {name: getattr(options, name) for name in self.knobs}
        found = self.function(
            tokens, **{name: value for name, value in asked.items() if value is not None}
        )
        values = found.values if tokens.weights is None else found.values * tokens.weights
        flat = found.flat if tokens.weights is None else found.flat | (tokens.weights == 0)
        if tokens.whole:
            return found._replace(values=values, flat=flat)
        return Surrogate(
            torch.where(tokens.mask, values, 0.0),
            found.clip.where(tokens.mask, torch.zeros_like(found.clip)),
            flat & tokens.mask,
            found.ratio,
        )


def beyond(tokens: Tokens, clamp: float) -> Tensor | bool:
    """[T] bool: the log ratio is clamped, which stops its gradient; False for no bound."""
    return tokens.beyond(clamp)


def states(low: Tensor, high: Tensor, dual: Tensor | None = None) -> Tensor:
    """[T] uint8 from where each branch is active, which exclude each other."""
    found = low.to(torch.uint8) * LOW + high.to(torch.uint8) * HIGH
    return found if dual is None else found + dual.to(torch.uint8) * DUAL


def limits(
    low: float | None,
    high: float | None,
    both: float | None,
    own: tuple[float, float],
    meaning: str = "offset",
) -> tuple[float, float]:
    """The least and the greatest ratio that a clip leaves as it is.

    Args:
        low: the lower bound's own number; None for `both`, inf for no bound.
        high: the upper bound's, likewise.
        both: the number for both; None for the loss's `own` pair.
        own: what the loss does where nothing is asked for.
        meaning: numbers are an `offset` from 1, or the `ratio` itself. Own ones are offsets.
    """
    asked_low = both if low is None else low
    asked_high = both if high is None else high
    if asked_low is None:
        least = 1 - own[0]
    elif math.isinf(asked_low):
        least = 0.0
    else:
        least = asked_low if meaning == "ratio" else 1 - asked_low
    if asked_high is None:
        return least, 1 + own[1]
    return least, asked_high if meaning == "ratio" else 1 + asked_high
