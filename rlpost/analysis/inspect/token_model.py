"""Statistics of a critic and of the policy's entropy, as dataclasses; part of `model`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Label = str | int


@dataclass(frozen=True)
class ValueLossFacts:
    """Mean value loss of policy tokens."""

    frameworks: str
    clip: float
    delta: float | None
    """Of the Huber loss; None: d²/2."""
    plain: float
    clipped: float | None
    """None without the values after an update, which the clip compares with."""
    clipped_share: float | None
    """Of tokens, whose gradient is 0."""


@dataclass(frozen=True)
class Calibration:
    """Policy tokens with about the same value: a tenth of them, or more if values are equal."""

    tokens: int
    value: float
    returns: float


@dataclass(frozen=True)
class TokenError:
    """Means of policy tokens at one place."""

    tokens: int
    value: float
    returns: float
    rmse: float


@dataclass(frozen=True)
class PositionError(TokenError):
    """Positions `first` <= position < `end` among the policy tokens of their responses."""

    first: int
    end: int


@dataclass(frozen=True)
class StepError:
    """Policy tokens of a step."""

    label: Label
    tokens: int
    explained_variance: float | None
    rmse: float


@dataclass(frozen=True)
class LambdaTarget:
    """Targets V + A of the first tokens, whose state responses to one prompt share.

    `bias` and `std` are root mean squares over groups of several responses.
    """

    lam: float
    bias: float
    """Of the group's mean target less its mean return, without what chance adds; 0 at λ = 1."""
    std: float
    """Within groups, of one target."""

    @property
    def error(self) -> float:
        """√(bias² + std²): of one target around the mean return of its prompt."""
        return math.hypot(self.bias, self.std)


@dataclass(frozen=True)
class CriticFacts:
    """The critic's values V against returns R, over policy tokens."""

    tokens: int
    responses: int
    """Whose values and rewards are finite; others do not count."""
    value: float
    returns: float
    explained_variance: float | None
    """1 - Var(R - V) / Var(R)."""
    rmse: float
    first: TokenError
    last: TokenError
    losses: list[ValueLossFacts]
    calibration: list[Calibration]
    """The lowest values first."""
    by_position: list[PositionError]
    steps: list[StepError]
    groups: int
    """Groups of several responses, of which `lambdas` are."""
    lambdas: list[LambdaTarget] = field(default_factory=list)

    @property
    def best(self) -> LambdaTarget | None:
        """The λ with the least error; None without groups."""
        return min(self.lambdas, key=lambda one: one.error, default=None)


@dataclass(frozen=True)
class EntropyMean:
    """Policy tokens with one label, or at positions `first` <= position < `end`."""

    label: Label
    tokens: int
    mean: float


@dataclass(frozen=True)
class Covariance:
    """Of log-prob and advantage over policy tokens: the mean of (A - mean A)(log π - mean log π).

    Of the tokens of a step if there are steps, as a batch of `clip_cov`.
    """

    label: Label | None
    """The step; None for the mean over the tokens of all steps."""
    tokens: int
    value: float


@dataclass(frozen=True)
class EntropyFacts:
    """Entropy of policy tokens, nats."""

    column: str
    sampled: bool
    """Without a column of entropies: -log p of the sampled token, whose mean estimates them."""
    tokens: int
    responses: int
    """Whose numbers are finite; others do not count."""
    mean: float
    top_share: float | None
    """Of the sum, in the 20 % of tokens that are highest; None if the sum is 0."""
    top_mean: float
    top_least: float
    """The lowest of these tokens, up to 1/64."""
    by_position: list[EntropyMean]
    steps: list[EntropyMean]
    domains: list[EntropyMean]
    advantages: str | None
    """The advantages of `covariance`: a column, or what takes its place; None without."""
    log_probs: str | None
    covariance: list[Covariance]
    """The whole input, then its steps if there are several."""
