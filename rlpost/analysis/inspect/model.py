"""The result of `inspect`: a tree of dataclasses, which becomes JSON.

Shares are between 0 and 1, sizes in bytes, lengths in tokens, log-probs and KL in nats. A part that
cannot be computed from the input is None. Row numbers count from 0 within their file.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlpost.analysis.findings import Finding, Level

if TYPE_CHECKING:
    from rlpost.analysis.inspect.token_model import CriticFacts, EntropyFacts

SCHEMA_VERSION = 1
Json = dict[str, Any]
Label = str | int


@dataclass(frozen=True)
class Spread:
    """Of finite numbers; std with Bessel's correction (0 for one number). None without numbers."""

    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None


@dataclass(frozen=True)
class Histogram:
    """Counts of edges[i] <= x < edges[i + 1]; the last bin includes its upper edge."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class PassAtK:
    """Unbiased pass@k (arXiv 2107.03374): mean of 1 - C(n-c, k) / C(n, k) over groups, n >= k."""

    k: int
    value: float
    groups: int
    """Groups of at least k responses, over which the mean is."""


@dataclass(frozen=True)
class PassRates:
    """Groups whose share of passing responses is low <= x < high; 0 < x if low is 0.

    The first has low = high = 0 and the last low = high = 1: no response passes, all pass.
    """

    low: float
    high: float
    groups: int


@dataclass(frozen=True)
class PromptGroup:
    """Responses of one prompt within one step, without those that are left out."""

    count: int
    of: Literal["response", "rollout"]
    """What sizes count: with a column of rollout ids, rows of one rollout count once."""
    by: list[str]
    """The columns that define a group."""
    single: int
    """Groups of one response."""
    no_signal: int
    """Groups of several responses whose rewards are all equal."""
    size: Json | None
    """`min`, `median`, `max`."""
    sizes: dict[int, int]
    """The number of groups of each size; the 100 smallest sizes."""
    prompts: int
    """Different keys, over all steps."""
    pass_threshold: float
    all_pass: int
    """Groups of several responses in which every reward reaches the threshold."""
    all_fail: int
    equal_all_pass: int
    """Groups of `no_signal` in which every reward reaches the threshold."""
    equal_all_fail: int
    pass_rate: float | None
    """Mean over groups of the share of responses that pass."""
    pass_rates: list[PassRates]
    pass_at_k: list[PassAtK]

    @property
    def pass_at_k_of_all(self) -> list[PassAtK]:
        """Pass@k for each k that all groups have; of fewer groups it may fall as k grows."""
        return [one for one in self.pass_at_k if one.groups == self.pass_at_k[0].groups]


@dataclass(frozen=True)
class RewardFacts:
    """The raw reward, as in the file."""

    column: str
    spread: Spread
    nonfinite: int
    """Responses whose reward is null, NaN or infinite; no other number counts them."""
    quantiles: dict[str, float]
    """p1, p5, p25, p50, p75, p95, p99, linear between neighbours."""
    values: dict[str, int] | None
    """Responses with each value, if there are at most 12 values."""
    histogram: Histogram | None


@dataclass(frozen=True)
class ComponentFacts:
    """A column whose weighted sum with others is the reward."""

    weight: float
    spread: Spread
    nonfinite: int
    """Responses in which it is null, NaN or infinite; other numbers leave them out."""
    no_signal: int | None
    """Groups of several responses in which it has one value; None without groups."""
    reward_correlation: float | None
    """Pearson's, with the reward; None if one of both has one value."""
    correlations: dict[str, float | None]
    """With the other components."""
    advantage_share: float | None
    """cov(R_k, A) / cov(sum_j R_j, A), with R_k the component times its weight and A the
    advantage; see `rlpost.kernels.contributions.advantage_shares`. They add up to 1."""
    share_of: str
    """A: the column of advantages, or what takes its place in an input without."""


@dataclass(frozen=True)
class Truncation:
    """Responses cut off at the length limit, according to a column."""

    column: str
    responses: int
    share: float


@dataclass(frozen=True)
class LengthFacts:
    """Policy tokens of each response: Σ mask, or all tokens without a mask."""

    column: str
    """The list column whose entries were counted; without one, the column of lengths."""
    spread: Spread
    quantiles: dict[str, float]
    histogram: Histogram | None
    at_longest: int
    """Responses of exactly the largest length."""
    reward_correlation: Json | None
    """With the reward: `pearson`, `spearman`, `within_groups` (after subtracting group means)."""


@dataclass(frozen=True)
class Slice:
    """The responses of one step or one domain."""

    label: Label
    responses: int
    """Rows. Where rollouts count, so do `reward`, `truncated` and `pass_rate`."""
    tokens: Json | None
    """`all`, `policy`; None if lengths are unknown. `all` is None without a list column."""
    reward: Spread
    length: Spread
    truncated: float | None
    pass_rate: float | None
    no_signal: float | None
    """Share of its groups of several responses whose rewards are all equal. The domain of a group
    is that of its first response."""
    kl: float | None = None
    """Mean over responses of old - ref (k1)."""
    mismatch: float | None = None
    """k3 of rollout engine against trainer, per policy token."""


@dataclass(frozen=True)
class MaskFacts:
    """The mask column: 1 where the policy produced the token."""

    column: str
    observation_share: float
    """Of all tokens."""
    with_observations: int
    """Responses with masked tokens."""
    gaps: int
    """Responses with observations between policy tokens (several turns)."""
    leading: int
    """Responses that begin with a masked token."""
    trailing: int
    """Responses that end with a masked token."""
    empty: int
    """Responses without a policy token."""
    not_binary: int
    """Responses with a value that is neither 0 nor 1; such a value counts as 1."""
    other_value: float | None
    """One of these values, the largest; None if all are null or NaN."""
    equal_lengths: bool
    """Whether all lists have one length, as padded lists have."""


@dataclass(frozen=True)
class TokenColumn:
    """A list column of numbers, over policy tokens."""

    column: str
    tokens: int
    """Tokens with a finite number."""
    mean: float | None
    min: float | None
    max: float | None
    zero: int
    """Tokens that are exactly 0."""
    positive: int
    """Tokens greater than 0.001: log-probs are at most 0, and up to 0.001 may be rounding."""
    null: int
    """Nulls within lists."""
    nan: int
    minus_infinity: int
    plus_infinity: int
    nonfinite_rows: int
    """Responses with a null, NaN or infinity."""
    unequal_rows: int
    """Responses whose list is not as long as the others; token statistics leave them out."""
    quantiles: dict[str, float]
    """Of the means of responses, not of tokens."""
    quantiles_of: str = "response means"


@dataclass(frozen=True)
class Bucket:
    """Policy tokens at positions `first` <= position < `end` of their responses."""

    first: int
    end: int | None
    tokens: int
    mean_abs: float
    k3: float


Certainty = Literal["high", "medium", "low"]
Side = Literal["engine", "trainer", "either", "both"]


@dataclass(frozen=True)
class Cause:
    """Why rollout engine and trainer differ."""

    name: str
    """fill-value, shift, few-tokens, truncated-sampling, temperature, stale-weights, failed-sync,
    template, last-token, precision or other."""
    share: float
    """Of the mean of d², |d| at most 5 nats."""
    estimate: Json
    """Its numbers by name, such as `temperature` and its standard `error`."""
    evidence: str
    sure: Certainty
    change: Side
    """The side to change; `either` if the data do not show which."""
    advice: str
    """What to do, with options of frameworks; empty if the cause has no measurable effect."""


@dataclass(frozen=True)
class LargestToken:
    """A policy token whose log-probs of engine and trainer differ most."""

    file: str
    row: int
    position: int
    """In the lists of its row, from 0."""
    infer: float
    old: float


@dataclass(frozen=True)
class Mismatch:
    """Rollout engine against trainer, over policy tokens; d = old - infer.

    `k1`, `k3`, `chi_square` and `ess` clamp d to ±40; sizes |d| are not clamped.
    """

    tokens: int
    mean_abs: float
    """|d|"""
    max_abs: float
    clamped: int
    """Tokens with |d| over 40."""
    k1: float
    """Mean of -d: KL(engine ‖ trainer)."""
    k3: float
    """Mean of exp(d) - 1 - d: KL(engine ‖ trainer)."""
    chi_square: float
    """Mean of exp(2d) - 1, which estimates χ²(trainer ‖ engine) from the engine's tokens. The
    estimate may be negative by chance, if ratios are below 1 in most tokens."""
    ess: float
    """(Σw)² / (nΣw²) of the token weights w = exp(d)."""
    confident_disagreement: int
    """Tokens with an engine probability of at least 0.5 and a difference of more than 2 nats."""
    identical: int
    by_position: list[Bucket]
    causes: list[Cause] = field(default_factory=list)
    """The largest share first; none if both agree up to numerical noise."""
    sampled: int = 0
    """Tokens of which causes are estimated."""
    largest: list[LargestToken] = field(default_factory=list)


@dataclass(frozen=True)
class Shift:
    """The offset in tokens, `lag`, at which two columns match best; 0 if they are aligned."""

    columns: tuple[str, str]
    lag: int
    difference: float
    difference_at_lag: float
    """At lag 0 and at `lag`: mean |difference|, each at most 5 nats, or the size of the jump at
    mask edges."""
    tokens: int
    """Tokens that were compared."""


@dataclass(frozen=True)
class TokenFacts:
    """Statistics of tokens."""

    columns: dict[str, TokenColumn]
    """By role: log-probs, values, token rewards."""
    kl: Spread | None
    """Of responses: the mean of old - ref over policy tokens (k1), clamped to ±40."""
    kl_clamped: int
    """Policy tokens whose finite old - ref is beyond ±40."""
    kl_quantiles: dict[str, float]
    identical: dict[str, float]
    """`old_log_probs/infer_log_probs` and the like: share of policy tokens that are equal."""
    shifts: list[Shift]
    edges: dict[str, Json]
    """By role: responses that look `padded`, padded on the `left`, or `shifted`."""
    duplicates: Json | None
    """Responses that repeat an earlier one of their group: `column` (which is compared),
    `rows`, `share`, `long_rows` (of 32 tokens or more); `unique`: responses without a copy."""


@dataclass(frozen=True)
class AdvantageSlice:
    """Advantages of policy tokens, or of responses if each has one number."""

    label: Label | None
    """The step; None for the whole input."""
    count: int
    """Finite advantages."""
    mean: float | None
    std: float | None
    """With Bessel's correction; 0 for one number."""
    min: float | None
    max: float | None
    zero_share: float | None
    """Share of exactly 0: these have no gradient."""
    positive_share: float | None


@dataclass(frozen=True)
class AdvantageFacts:
    """The advantages that a file already has; responses with sample mask 0 are left out."""

    column: str
    of: str
    """`policy tokens` or `responses`: the unit of counts."""
    nonfinite: int
    whole: AdvantageSlice
    steps: list[AdvantageSlice]
    """In order; none without a step column, or with only one step."""
    histogram: Histogram | None = None
    """Covers all but 0.1 % on either side; None if all advantages are equal."""
    left_out: int | None = None
    """Responses with sample mask 0; None without a sample mask."""
    recorded: bool = False
    """A trainer recorded them."""


@dataclass(frozen=True)
class Baselines:
    """The mean rewards of groups with and without the responses that failed, as recorded."""

    groups: int
    emptied: int
    """Groups in which every response failed."""
    moved: int
    """Groups whose mean reward is another one without failures."""
    distance: float
    """By how much, on average over those."""
    farthest: float
    mean_with: float | None
    """The mean reward of the responses of all groups."""
    mean_without: float | None


@dataclass(frozen=True)
class FailureFacts:
    """Rollouts that failed, by a column; responses if rows count."""

    column: str
    of: str
    """What counts, `rollout` or `response`."""
    treatment: str
    """What becomes of them: drop, mask, keep or zero."""
    count: int
    """How many of them there are, of those that nothing else leaves out."""
    failed: int
    reasons: dict[str, int]
    """Reason to how many failed for it; of several, the last by turn."""
    by_step: dict[Label, float]
    """The share that failed, of the 5 steps in which most did."""
    baselines: Baselines | None
    """None without groups or rewards."""


@dataclass(frozen=True)
class FileFacts:
    """One file, from its footer."""

    path: str
    bytes: int
    rows: int
    row_groups: int
    writer: str
    rlpost: Json | None
    """How rlpost wrote it: `version`; `estimator` and `recipe` of an enriched file; `format` and
    `missing_roles` (role to reason) of a converted dump."""


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
    """Other types, and in how many files; `missing` for files without the column."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """The first files with each type, if there are several; `missing` as in `other_types`."""


@dataclass(frozen=True)
class InputFacts:
    """Files and columns of the input, from the footers alone; none of it but rows for tables."""

    files: list[FileFacts]
    bytes: int
    rows: int
    row_groups: int
    rows_per_group: tuple[int, int]
    """Smallest and largest row group."""
    columns: list[ColumnFacts]


@dataclass(frozen=True)
class RoleFacts:
    """The column of a role; `found_by` is name, alias or map."""

    column: str
    found_by: str
    type: str
    ignored: list[str] = field(default_factory=list)
    """Other columns with a name of the role, which are not read."""


@dataclass(frozen=True)
class CheckRun:
    """Whether a check of `rlpost inspect --about checks` ran on the input."""

    name: str
    not_run: str | None
    """Why it did not run; None if it ran."""
    found: bool
    """It is among the findings."""


@dataclass(frozen=True)
class Facts:
    """The statistics and findings of an input."""

    inputs: list[str]
    input: InputFacts
    roles: dict[str, RoleFacts]
    responses: int
    """Rows."""
    rollouts: int | None
    """What groups, rewards, pass rates and truncation count; None if rows count."""
    tokens: Json | None
    """`all` and `policy`; None if lengths are unknown. `all` is None without a list column."""
    groups: PromptGroup | None
    rewards: RewardFacts | None
    lengths: LengthFacts | None
    masks: MaskFacts | None
    token_facts: TokenFacts | None
    mismatch: Mismatch | None
    """Rollout engine against trainer; None without the log-probs of both."""
    steps: list[Slice]
    """In order; none without a step column."""
    domains: list[Slice]
    findings: list[Finding]
    """Errors first."""
    checks: list[CheckRun]
    """Every check, and why it did not run if it did not."""
    seconds: float
    rlpost_version: str
    advantages: AdvantageFacts | None = None
    """Of the advantages that the file already has."""
    truncated: Truncation | None = None
    """None without a column."""
    left_out: int = 0
    """Responses whose sample mask is 0. If a run of rlpost computed it, they are left out of
    `advantages` alone."""
    uncounted: dict[str, int] = field(default_factory=dict)
    """Rows that statistics of groups, rewards and lengths leave out as `rlpost advantages` does,
    by reason: `sample_mask`, `superseded`, `failure`."""
    components: dict[str, ComponentFacts] = field(default_factory=dict)
    """Of the reward components that the user names."""
    failures: FailureFacts | None = None
    """None without a column that names them."""
    critic: CriticFacts | None = None
    """None without values and rewards."""
    entropy: EntropyFacts | None = None
    """None without entropies and log-probs."""
    where: Json | None = None
    """What `--where` kept, and what was not read for it; None without a condition."""
    schema_version: int = SCHEMA_VERSION

    @property
    def unit(self) -> str:
        """What rewards count: `response` or `rollout`."""
        return "response" if self.rollouts is None else "rollout"

    @property
    def row_noun(self) -> str:
        """What a row is called: `response`, or `row` where rollouts count."""
        return "response" if self.rollouts is None else "row"

    @property
    def where_lines(self) -> list[str]:
        """The line of how many rows match `--where`; none without a condition."""
        return [self.where["line"]] if self.where else []

    def failing(self, fail_on: Level | None) -> list[Finding]:
        """Return the findings that fail `rlpost inspect --fail-on`: of this level, or worse."""
        levels = {None: (), "error": ("error",), "warning": ("error", "warning")}[fail_on]
        return [finding for finding in self.findings if finding.level in levels]

    def as_json(self) -> Json:
        """Return plain lists, dicts, numbers and strings; numbers that are not finite are null."""
        names = [one.name for one in dataclasses.fields(Facts)]
        return {name: _plain(getattr(self, name)) for name in ("schema_version", *names)}


def _plain(value: Any) -> Any:
    if isinstance(value, Finding):
        return value.as_json()
    if dataclasses.is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
