"""What `inspect` says of groups, rewards and lengths: a part of the tree in `model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Label = str | int


@dataclass(frozen=True)
class Spread:
    """Of finite numbers; std with Bessel's correction (0 for one). All None where there is none."""

    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None


@dataclass(frozen=True)
class Histogram:
    """Counts between edges: bin i holds edges[i] <= x < edges[i + 1], the last one its edge too."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class PassAtK:
    """Unbiased pass@k (arXiv 2107.03374): mean of 1 - C(n-c, k) / C(n, k) over groups, n >= k."""

    k: int
    value: float
    groups: int
    """Groups of at least k rows, which the mean is over."""


@dataclass(frozen=True)
class PassRates:
    """Groups whose share of passing rows is low <= x < high; 0 < x where low is 0.

    The first has low = high = 0 and the last low = high = 1: none passes, all pass.
    """

    low: float
    high: float
    groups: int


@dataclass(frozen=True)
class GroupFacts:
    """Rows of one prompt within one step; rows without a finite reward are left out."""

    count: int
    by: list[str]
    """The columns that make a group."""
    single: int
    """Groups of one row."""
    zero_variance: int
    """Groups of several rows whose rewards are all equal."""
    size: Json | None
    """`min`, `median`, `max`."""
    sizes: dict[int, int]
    """How many groups have a size; the 100 smallest sizes."""
    prompts: int
    """Distinct keys, over all steps."""
    pass_threshold: float
    all_pass: int
    """Groups of several rows in which every reward reaches the threshold."""
    all_fail: int
    pass_rate: float | None
    """Mean over groups of the share of rows that pass."""
    pass_rates: list[PassRates]
    pass_at_k: list[PassAtK]


@dataclass(frozen=True)
class RewardFacts:
    """The reward column, as dumped."""

    column: str
    spread: Spread
    nonfinite: int
    """Rows whose reward is null, NaN or infinite; they are left out of everything else."""
    quantiles: dict[str, float]
    """p1, p5, p25, p50, p75, p95, p99, linear between neighbours."""
    values: dict[str, int] | None
    """Rows of each value, where there are at most 12."""
    histogram: Histogram | None


@dataclass(frozen=True)
class Truncation:
    """Responses cut off at the length limit, as their column says."""

    column: str
    responses: int
    share: float


@dataclass(frozen=True)
class LengthFacts:
    """Tokens of the policy's own in each response: Σ mask, or all where there is no mask."""

    column: str
    """The list column that was counted."""
    spread: Spread
    quantiles: dict[str, float]
    histogram: Histogram | None
    truncated: Truncation | None
    at_longest: int
    """Responses of exactly the largest length."""
    reward_correlation: Json | None
    """With the reward: `pearson`, `spearman`, `within_groups` (both less their group's mean)."""


@dataclass(frozen=True)
class Slice:
    """The rows of one step or one domain."""

    label: Label
    responses: int
    tokens: Json
    """`all`, `policy`."""
    reward: Spread
    length: Spread
    truncated: float | None
    pass_rate: float | None
    zero_variance: float | None
    """Share of its groups of several rows whose rewards are all equal."""
    kl: float | None = None
    """Mean of responses, old against ref, k1."""
    mismatch: float | None = None
    """k3 of engine and trainer per policy token."""
