"""What `inspect` says of masks and tokens: a part of the tree in `model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlpost.inspect.model_responses import Json, Label, Spread


@dataclass(frozen=True)
class MaskFacts:
    """The mask column: 1 where the policy produced the token."""

    column: str
    observation_share: float
    """Of all tokens."""
    with_observations: int
    """Rows in which some token is masked out."""
    gaps: int
    """Rows in which observations stand between policy tokens (several turns)."""
    leading: int
    """Rows that begin with a masked-out token."""
    trailing: int
    """Rows that end with one."""
    empty: int
    """Rows without any policy token."""
    not_binary: int
    """Rows with a value that is neither 0 nor 1; every such value counts as 1."""
    equal_lengths: bool
    """All rows have lists of one length, as padded ones have."""


@dataclass(frozen=True)
class TokenColumn:
    """A list column of numbers, over the policy's tokens."""

    column: str
    tokens: int
    """Finite ones."""
    mean: float | None
    min: float | None
    max: float | None
    zero: int
    """Tokens that are exactly 0."""
    positive: int
    """Tokens over 0.001: no log-prob is over 0, and up to 0.001 it may be rounding."""
    nan: int
    minus_infinity: int
    plus_infinity: int
    nonfinite_rows: int
    unequal_rows: int
    """Rows whose list is not as long as the others; they are left out of token facts."""
    quantiles: dict[str, float]
    """Of the responses' means, not of tokens, as `quantiles_of` says."""
    quantiles_of: str = "response means"


@dataclass(frozen=True)
class Bucket:
    """Policy tokens at some places of their responses, `first` <= place < `end`."""

    first: int
    end: int | None
    tokens: int
    mean_abs: float
    k3: float


@dataclass(frozen=True)
class Mismatch:
    """Rollout engine against trainer, over policy tokens; d = old - infer, bounded by ±40."""

    tokens: int
    mean_abs: float
    """|d|"""
    max_abs: float
    k1: float
    """Mean of -d: KL(engine ‖ trainer)."""
    k3: float
    """Mean of exp(d) - 1 - d: KL(engine ‖ trainer)."""
    chi_square: float
    """Mean of exp(2d) - 1, which estimates χ²(trainer ‖ engine) from the engine's tokens; unlike
    what it estimates it may be below 0, where ratios are below 1 in most tokens by chance."""
    ess: float
    """(Σw)² / (nΣw²) of the token weights w = exp(d)."""
    sure_but_wrong: int
    """Tokens that the engine gave a probability of 0.5 or more, over 2 nats off."""
    identical: int
    by_position: list[Bucket]


@dataclass(frozen=True)
class Shift:
    """Signs that two columns stand one token apart; `lag` is where they fit, 0 if as they are."""

    columns: tuple[str, str]
    lag: int
    here: float
    there: float
    """How well they fit at lag 0 and at `lag`: mean |difference|, or the jump at mask edges."""
    tokens: int
    """How many were looked at."""


@dataclass(frozen=True)
class TokenFacts:
    """What is known of single tokens."""

    columns: dict[str, TokenColumn]
    """By role: log-probs, values, token rewards."""
    mismatch: Mismatch | None
    kl: Spread | None
    """Of responses: the mean of old - ref over policy tokens (k1)."""
    kl_quantiles: dict[str, float]
    identical: dict[str, float]
    """`old_log_probs/infer_log_probs` and the like: share of policy tokens that are equal."""
    shifts: list[Shift]
    edges: dict[str, Json]
    """By role: rows that are `padded`, padded on the `left`, or `shifted`, as findings explain."""
    duplicates: Json | None
    """Rows that repeat an earlier one of their group: `of` (the column that tells), `rows`,
    `share`, `long_rows` (those of 32 tokens or more); `alone`: rows without a copy."""


@dataclass(frozen=True)
class AdvantageSlice:
    """Advantages of the policy's tokens, or of responses where each has one number."""

    label: Label | None
    """The step; None for the whole input."""
    count: int
    """Finite ones."""
    mean: float | None
    std: float | None
    """With Bessel's correction; 0 for one."""
    min: float | None
    max: float | None
    zero_share: float | None
    """Of exactly 0: they teach nothing."""


@dataclass(frozen=True)
class AdvantageFacts:
    """The advantages that a file has already; responses that its sample mask drops are left out."""

    column: str
    of: str
    """`policy tokens` or `responses`: what is counted."""
    nonfinite: int
    whole: AdvantageSlice
    steps: list[AdvantageSlice]
    """In order; none where there is no such column, or only one step."""
