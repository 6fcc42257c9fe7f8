"""Base types of policy losses: their input `Tokens`, their output `Surrogate`, and `Loss`."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlpost.kernels.corrections import reduce_responses
from rlpost.kernels.segments import spread
from rlpost.losses.selection import selected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from rlpost.losses.selection import InBatch
    from rlpost.recipe.loss import Aggregation, LossOptions


NONE, LOW, HIGH, DUAL, SELECTED = range(5)
"""Clip states of a token."""
NEEDS = ("advantages", "log_probs", "old_log_probs")
"""The roles that a loss needs unless it declares others."""


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
    in_batch: InBatch | None = None
    """What connects the responses with their batches; None if the tokens are one whole batch."""
    chosen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """[T] bool: tokens that a loss with a rank selects of their batches; else it is not read."""

    def rows(self, start: int, stop: int) -> Tokens:
        """Return the tokens of the responses from `start` to `stop`."""
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        columns = {name: getattr(self, name) for name in _TOKEN_FIELDS}
        return Tokens(
            **{name: x[first:last] for name, x in columns.items() if x is not None},
            offsets=self.offsets[start : stop + 1] - first,
            rewards=None if self.rewards is None else self.rewards[start:stop],
            in_batch=None if self.in_batch is None else self.in_batch.rows(start, stop),
        )

    @cached_property
    def covariance(self) -> Tensor:
        """[T] float64 (A - mean A)·(new - mean new), means of the batch; not of masked-out tokens.

        A constant for gradients. It needs `in_batch`.
        """
        assert self.in_batch is not None, "tokens without the statistics of their batches"
        advantages, log_probs = self.masked_advantages, self.masked_log_probs.detach()
        means = (self.in_batch.advantage, self.in_batch.log_prob)
        over, above = (
            values.to(torch.float64) - spread(mean, self.offsets)
            for values, mean in zip((advantages, log_probs), means, strict=True)
        )
        return over * above

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
    def old_log_probs(self) -> Tensor:
        """[T] `old`, 0 if masked out."""
        return torch.where(self.mask, self.old, 0.0)

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

    def divided_by(self, behaviour: str) -> Tokens:
        """Return the tokens whose ratio divides by a behaviour policy: `old` or `infer`."""
        return self.with_engine_as_old if behaviour == "infer" else self

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


_TOKEN_FIELDS = ("new", "old", "advantages", "mask", "infer", "ref", "weights")


class Surrogate(NamedTuple):
    """The result of a loss function, [T] each."""

    values: Tensor
    """Loss of each token before any mean; 0 if masked out."""
    clip: Tensor
    """Uint8 clip state: NONE; LOW, HIGH, DUAL if that bound is active; SELECTED if `chosen`."""
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
    needs: tuple[str, ...] = NEEDS
    """The roles without which it has no value. `behaviour` replaces old_log_probs."""
    rank: Callable[..., Tensor] | None = None
    """Ranks tokens in their batches, [T] float64, -inf for a token that cannot be selected, for a
    loss that selects the highest. Its keyword-only parameters are LossOptions."""
    after_rank: tuple[str, ...] = ()
    """Options that do not change the selection."""
    response_weights: Callable[[Tokens], Tensor] | None = None
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

    def ranks(self, tokens: Tokens, options: LossOptions) -> Tensor:
        """Return the rank of each token in its batch, [T] float64; see `rank`.

        Args:
            tokens: with `in_batch`; `old` is the policy that the ratio divides by.
            options: of the loss.
        """
        assert self.rank is not None, "a loss without a rank"
        parameters = inspect.signature(self.rank).parameters.values()
        names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        return self.rank(tokens, **{name: self.value(name, options) for name in names})

    def __call__(self, tokens: Tokens, options: LossOptions) -> Surrogate:
        """Return the loss of these tokens; an option of None is the function's own default."""
        tokens = tokens.divided_by(options.behaviour)
        if self.rank is not None:
            tokens = replace(tokens, chosen=selected(tokens, self, options))
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
