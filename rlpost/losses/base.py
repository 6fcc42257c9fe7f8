"""Base types of policy losses: their input `Tokens`, their output `Surrogate`, and `Loss`."""

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


NONE, LOW, HIGH, DUAL = range(4)
"""Clip states of a token."""


@dataclass(frozen=True)
class Tokens:
    """The tokens that a loss is computed of, ragged by response.

    What several losses have in common is computed once, at its first use. Values of masked-out
    tokens are never read.
    """

    new: Tensor
    """[T] float, log-probs of the policy being trained; losses are differentiable in them."""
    old: Tensor
    """[T] float, log-probs of the policy before its update, which sampled the tokens."""
    advantages: Tensor
    """[T] float."""
    mask: Tensor
    """[T] bool: policy tokens."""
    offsets: Tensor
    """[n+1] of the responses."""
    infer: Tensor | None = None
    """[T] float, log-probs of the rollout engine."""
    ref: Tensor | None = None
    """[T] float, log-probs of the reference policy, for a KL loss."""
    rewards: Tensor | None = None
    """[n] rewards of the responses; without them, losses use the sign of the advantage."""
    weights: Tensor | None = None
    """[T] importance weights between rollout engine and trainer, which multiply the loss."""

    @cached_property
    def masked_advantages(self) -> Tensor:
        """[T] advantages, 0 if masked out."""
        return torch.where(self.mask, self.advantages, 0.0)

    @cached_property
    def all_policy(self) -> bool:
        """Whether all tokens are policy tokens."""
        return bool(self.mask.all())

    @cached_property
    def advantage_positive(self) -> Tensor:
        """[T] bool: the advantage of a policy token is above 0."""
        return self.masked_advantages > 0

    @cached_property
    def advantage_negative(self) -> Tensor:
        """[T] bool: the advantage of a policy token is below 0."""
        return self.masked_advantages < 0

    @cached_property
    def advantage_zero(self) -> Tensor:
        """[T] bool: the advantage is 0, or the token is masked out."""
        return self.masked_advantages == 0

    @cached_property
    def negated_advantages(self) -> Tensor:
        """[T] -A, which a loss multiplies by ratios."""
        return -self.masked_advantages

    @cached_property
    def masked_log_probs(self) -> Tensor:
        """[T] `new`, 0 if masked out."""
        return torch.where(self.mask, self.new, 0.0)

    @cached_property
    def log_ratio(self) -> Tensor:
        """[T] new - old, 0 if masked out."""
        return torch.where(self.mask, self.new - self.old, 0.0)

    @cached_property
    def mean_log_ratio(self) -> Tensor:
        """[T] mean log ratio of the token's response; a constant for gradients."""
        return self.response_mean(self.log_ratio)

    @cached_property
    def probability_change(self) -> Tensor:
        """[T] exp(new) - exp(old), 0 if masked out; a constant for gradients."""
        return torch.where(self.mask, self.new.detach().exp() - self.old.exp(), 0.0)

    @cached_property
    def reward_positive(self) -> Tensor:
        """[T] bool: the reward of the response is above 0; without rewards, the advantage is."""
        if self.rewards is None:
            return self.masked_advantages > 0
        return spread(self.rewards > 0, self.offsets)

    @cached_property
    def with_engine_as_old(self) -> Tokens:
        """The same tokens with the rollout engine's log-probs as `old`."""
        assert self.infer is not None, "tokens without log-probs of the rollout engine"
        return replace(self, old=self.infer)

    @cached_property
    def _ratios(self) -> dict[float, Tensor]:
        return {}

    def ratio(self, clamp: float = math.inf) -> Tensor:
        """Return exp(new - old), [T], the log ratio clamped to ±clamp nats; 1 if masked out."""
        if clamp not in self._ratios:
            bounded = self.log_ratio if math.isinf(clamp) else self.log_ratio.clamp(-clamp, clamp)
            self._ratios[clamp] = bounded.exp()
        return self._ratios[clamp]

    @cached_property
    def _beyond(self) -> dict[float, Tensor]:
        return {}

    def beyond(self, clamp: float) -> Tensor | bool:
        """Return whether the log ratio is clamped, [T] bool; its gradient is 0 then.

        False if the clamp is inf.
        """
        if math.isinf(clamp):
            return False
        if clamp not in self._beyond:
            self._beyond[clamp] = self.log_ratio.abs() > clamp
        return self._beyond[clamp]

    def response_mean(self, values: Tensor) -> Tensor:
        """Return the mean over the policy tokens of each token's response, [T], detached."""
        means = reduce_responses(values.detach(), self.mask, self.offsets, level="geometric")
        return spread(means, self.offsets)


class Surrogate(NamedTuple):
    """The result of a loss function, [T] each."""

    values: Tensor
    """Loss of each token before any mean; 0 if masked out."""
    clip: Tensor
    """Uint8 clip state: NONE, or LOW, HIGH, DUAL if that bound is active."""
    zero_gradient: Tensor
    """Bool: a policy token whose gradient is 0."""
    ratio: Tensor
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
    own_advantages: Callable[[Tokens], Tensor] | None = None
    """What it uses as advantages, [T], 0 if masked out; None for those of the tokens."""

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The fields of LossOptions that the function reads, with its own defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}

    def __call__(self, tokens: Tokens, options: LossOptions) -> Surrogate:
        """Return the loss of these tokens; an option of None is the function's own default."""
        if options.behaviour == "infer":
            tokens = tokens.with_engine_as_old
        asked = {name: getattr(options, name) for name in self.defaults}
        surrogate = self.function(
            tokens, **{name: value for name, value in asked.items() if value is not None}
        )
        values, zero_gradient = surrogate.values, surrogate.zero_gradient
        if tokens.weights is not None:
            values, zero_gradient = values * tokens.weights, zero_gradient | (tokens.weights == 0)
        if tokens.all_policy:
            return surrogate._replace(values=values, zero_gradient=zero_gradient)
        return Surrogate(
            torch.where(tokens.mask, values, 0.0),
            surrogate.clip.where(tokens.mask, torch.zeros_like(surrogate.clip)),
            zero_gradient & tokens.mask,
            surrogate.ratio,
        )


def clip_states(low: Tensor, high: Tensor, dual: Tensor | None = None) -> Tensor:
    """Return the clip state of each token, [T] uint8, from masks that exclude each other."""
    states = low.to(torch.uint8) * LOW + high.to(torch.uint8) * HIGH
    return states if dual is None else states + dual.to(torch.uint8) * DUAL


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
