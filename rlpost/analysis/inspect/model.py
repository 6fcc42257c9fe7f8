"""What `inspect` says, as plain dataclasses: the tree that turns into JSON.

Shares are between 0 and 1, sizes in bytes, lengths in tokens, log-probs and KL in nats. A part
that the input cannot tell is None. Rows are counted from 0 within their file.

What `inspect` says of groups, rewards and lengths: a part of the tree in `model`.

What `inspect` says of masks and tokens: a part of the tree in `model`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

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


__all__ = [
    "SCHEMA_VERSION",
    "AdvantageFacts",
    "AdvantageSlice",
    "Bucket",
    "ColumnFacts",
    "Evidence",
    "Facts",
    "FileFacts",
    "Finding",
    "GroupFacts",
    "Histogram",
    "InputFacts",
    "Json",
    "Label",
    "LengthFacts",
    "MaskFacts",
    "Mismatch",
    "PassAtK",
    "PassRates",
    "RewardFacts",
    "RoleFacts",
    "Shift",
    "Slice",
    "Spread",
    "TokenColumn",
    "TokenFacts",
    "Truncation",
]

SCHEMA_VERSION = 1
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class FileFacts:
    """One file, from its footer."""

    path: str
    bytes: int
    rows: int
    row_groups: int
    writer: str
    rlpost: Json | None
    """How rlpost made it: `version`; `estimator` and `recipe` where it enriched the file; `format`
    and `lacks` (role to reason) where it converted it from another tool's dump."""


@dataclass(frozen=True)
class ColumnFacts:
    """One column of all files, from their footers."""

    name: str
    type: str
    """The type in the first file that has it."""
    bytes: int
    """Compressed."""
    uncompressed: int
    codecs: list[str]
    role: str | None
    other_types: dict[str, int]
    """Other types it has, and in how many files; `missing` where a file lacks it."""
    other_files: dict[str, list[str]] = field(default_factory=dict)
    """The first files of each of the other types."""


@dataclass(frozen=True)
class InputFacts:
    """The input as stored; read from the footers alone."""

    files: list[FileFacts]
    bytes: int
    rows: int
    row_groups: int
    rows_per_group: tuple[int, int]
    """Smallest and largest row group."""
    columns: list[ColumnFacts]


@dataclass(frozen=True)
class RoleFacts:
    """Which column serves a role; `found_by` is name, alias or map."""

    column: str
    found_by: str
    type: str


@dataclass(frozen=True)
class Evidence:
    """A row, or a group, that shows a finding."""

    file: str
    row: int | None = None
    group: Label | None = None
    said: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that would hurt training."""

    name: str
    severity: Severity
    harm: float
    """0 to 100, what the order is by."""
    said: str
    """What is the matter, with numbers."""
    advice: str
    """What to do."""
    count: int
    """Rows, groups or columns that show it."""
    of: int
    evidence: list[Evidence] = field(default_factory=list)
    """Some of them."""


@dataclass(frozen=True)
class Facts:
    """All that `rlpost inspect` says of an input."""

    inputs: list[str]
    input: InputFacts
    roles: dict[str, RoleFacts]
    responses: int
    tokens: Json | None
    """`all` and `policy`, where a list column tells."""
    groups: GroupFacts | None
    rewards: RewardFacts | None
    lengths: LengthFacts | None
    masks: MaskFacts | None
    token_facts: TokenFacts | None
    steps: list[Slice]
    """In order; none where there is no such column."""
    domains: list[Slice]
    findings: list[Finding]
    """The worst first."""
    seconds: float
    rlpost_version: str
    advantages: AdvantageFacts | None = None
    """Of the file's own advantages, where it has some."""
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> Json:
        """Plain lists, dicts, numbers and strings; what is not finite is null."""
        plain = _plain(dataclasses.asdict(self))
        assert isinstance(plain, dict)
        return {"schema_version": plain.pop("schema_version"), **plain}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
