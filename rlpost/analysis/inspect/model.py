"""The result of `inspect`: a tree of dataclasses, which becomes JSON.

Shares are between 0 and 1, sizes in bytes, lengths in tokens, log-probs and KL in nats. A part that
cannot be computed from the input is None. Row numbers count from 0 within their file.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlpost.display.text import counted
from rlpost.findings import Finding, Level, Place
from rlpost.recipe.base import text_of
from rlpost.recipe.flags import flag_of

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION = 2
Json = dict[str, Any]
Label = str | int


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
class PromptGroup:
    """Responses of one prompt within one step, without those that are left out.

    How many there are, and with which sizes and rewards, are measures: `group_size` and the like.
    """

    by: list[str]
    """The columns that define a group."""
    sizes: dict[int, int]
    """The number of groups of each size; the 100 smallest sizes."""
    prompts: int
    """Different keys, over all steps."""
    pass_threshold: float
    pass_at_k: list[PassAtK]

    @property
    def pass_at_k_of_all(self) -> list[PassAtK]:
        """Pass@k for each k that all groups have; of fewer groups it may fall as k grows."""
        return [x for x in self.pass_at_k if x.groups == self.pass_at_k[0].groups]


@dataclass
class TokenColumn:
    """A list column of numbers, over policy tokens."""

    column: str
    tokens: int = 0
    """Tokens with a finite number."""
    min: float | None = None
    max: float | None = None
    zero: int = 0
    """Tokens that are exactly 0."""
    positive: int = 0
    """Tokens greater than 0.001: log-probs are at most 0, and up to 0.001 may be rounding."""
    null: int = 0
    """Nulls within lists."""
    nan: int = 0
    minus_infinity: int = 0
    plus_infinity: int = 0
    nonfinite_rows: int = 0
    """Responses with a null, NaN or infinity."""
    unequal_rows: int = 0
    """Responses whose list is not as long as the others; token statistics leave them out."""


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
    """Why rollout engine and trainer differ, d = old - infer over policy tokens."""

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
class FailureFacts:
    """Inspected that failed, by a column; responses if rows count."""

    column: str
    treatment: str
    """What becomes of them: drop, mask, keep or zero."""
    reasons: dict[str, int]
    """Reason to how many failed for it; of several, the last by turn."""


@dataclass(frozen=True)
class FileFacts:
    """One file, from its footer."""

    path: str
    rows: int
    rlpost: Json | None
    """How rlpost wrote it: `version`; `estimator` and `recipe` of an enriched file; `format`,
    `tokenizer` and `missing_roles` (role to reason) of a converted dump."""


@dataclass(frozen=True)
class ColumnFacts:
    """One column of all files, from their footers."""

    name: str
    type: str
    """The type in the first file that has it."""
    role: str | None
    other_types: dict[str, int]
    """Other types, and in how many files; `missing` for files without the column."""
    files: dict[str, list[str]] = field(default_factory=dict)
    """The first files with each type, if there are several; `missing` as in `other_types`."""


@dataclass(frozen=True)
class InputFacts:
    """Files and columns of the input, from the footers alone; no columns of tables."""

    files: list[FileFacts]
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


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as one types them.

    >>> option_words({"rollout_reward": "last", "pass_threshold": 0.5})
    ['--rollout-reward', 'last', '--pass-threshold', '0.5']
    """
    return [word for name, x in options.items() for word in (flag_of(name), text_of(x))]


def counting_lines(stored: Mapping[str, Any]) -> list[str]:
    """Return a line of the options of the files' recipe that count responses; none without any."""
    options = " ".join(option_words(stored))
    return [f"counts as the recipe in the files: {options}"] if options else []


@dataclass(frozen=True)
class Facts:
    """The statistics and findings of an input."""

    inputs: list[str]
    responses: int
    """Rows."""
    rollouts: int | None
    """What groups, rewards, pass rates and truncation count; None if rows count."""
    tokens: Json | None
    """`all` and `policy`, of all rows; None if lengths are unknown. `all` is None without a list
    column."""
    roles: dict[str, RoleFacts]
    findings: list[Finding]
    """Errors first."""
    facts: dict[str, Json]
    """By measure: its population, `of`; its numbers of the whole input, `all`; and arrays of them
    by `step` and by `domain`, with the labels, if the input has these; of some measures of tokens
    also by `position` in the response."""
    prompt_groups: PromptGroup | None
    histograms: dict[str, Histogram]
    """Of rewards, policy tokens and advantages, by measure; of advantages without those that are 0.
    """
    token_columns: dict[str, TokenColumn]
    """By role: log-probs, values and token rewards that were read."""
    mismatch: Mismatch | None
    """Rollout engine against trainer; None without the log-probs of both."""
    input: InputFacts
    checks: list[CheckRun]
    """Every check, and why it did not run if it did not."""
    seconds: float
    rlpost_version: str
    advantages: Json | None = None
    """Of the advantages that the file already has: `column`, `nonfinite` tokens, and whether a
    trainer `recorded` them."""
    failures: FailureFacts | None = None
    """None without a column that names them."""
    turns: bool = False
    """Whether rows look like turns of rollouts: returns then lack the rewards of later turns."""
    entropy: Json | None = None
    """`column`, and whether it is an estimate, `sampled`."""
    left_out: int = 0
    """Responses whose sample mask is 0. If a run of rlpost computed it, those alone that count here
    and are left out of `advantages`."""
    where: Json | None = None
    """What `--where` kept, and what was not read for it; None without a condition."""
    counting: Json = field(default_factory=dict)
    """Options that were chosen of what statistics of responses count: `unit`, `rollout_reward`,
    `failures`, `attempts`, `pass_threshold`."""
    stored_counting: Json = field(default_factory=dict)
    """Those of the recipe in the files' metadata, which count where none was chosen."""
    profiles: Json = field(default_factory=dict)
    """`groups` by passes or rewards, and `length` by what responses did, as of a run."""
    worst_prompts: list[Json] = field(default_factory=list)
    """Prompts that never pass, else the lowest: `prompt`, `groups` (one a step), `passed`,
    `responses`, mean `reward`, and the first row as a `place`."""
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
    def input_lines(self) -> list[str]:
        """How many rows match `--where`, and which options the files' recipe has."""
        condition = [self.where["line"]] if self.where else []
        return condition + counting_lines(self.stored_counting)

    def whole(self, measure: str) -> Json:
        """Return the numbers of a measure of the whole input; all None if it has none."""
        numbers = self.facts.get(measure, {"all": {"count": 0}})["all"]
        return defaultdict(lambda: None, numbers)

    def by(self, key: str, measure: str, part: str = "mean") -> list[Any]:
        """Return a number of each step, or of each domain; none without the measure."""
        values: list[Any] = self.facts.get(measure, {}).get(key, {}).get(part, [])
        return values

    def labels(self, key: str) -> list[Label]:
        """Return the steps, in order, or the domains; none without the column."""
        labels: list[Label] = self.by(key, "counted", "label")
        return labels

    def failing(self, fail_on: Level | None) -> list[Finding]:
        """Return the findings that fail `rlpost inspect --fail-on`: of this level, or worse."""
        levels = {None: (), "error": ("error",), "warning": ("error", "warning")}[fail_on]
        return [finding for finding in self.findings if finding.level in levels]

    @property
    def verdict(self) -> Json:
        """How many errors and warnings were found, and by how many checks."""
        ran, count = sum(run.not_run is None for run in self.checks), len(self.checks)
        by = f"{count} checks" if ran == count else f"{ran} of {count} checks"
        levels = [finding.level for finding in self.findings]
        if not levels:
            return {"level": "ok", "text": f"No problems ({by})"}
        counts = [counted(levels.count(level), level) for level in dict.fromkeys(levels)]
        return {"level": levels[0], "text": f"Found {' and '.join(counts)} ({by})"}

    def as_json(self) -> Json:
        """Return plain lists, dicts, numbers and strings; numbers that are not finite are null."""
        groups, equal = self.prompt_groups, self.whole("equal_rewards")
        head = {
            "schema_version": self.schema_version,
            "rlpost_version": self.rlpost_version,
            "inputs": self.inputs,
            "responses": self.responses,
            "rollouts": self.rollouts,
            "groups": groups and self.whole("group_size")["count"],
            "groups_with_signal": equal["count"] - equal["total"] if equal["count"] else None,
            "tokens": self.tokens,
            "roles": self.roles,
            "verdict": self.verdict,
        }
        names = [item.name for item in dataclasses.fields(Facts)]
        plain: Json = _plain(head | {x: getattr(self, x) for x in names if x not in head})
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Finding):
        return value.as_json()
    if isinstance(value, Place):
        return str(value)
    if dataclasses.is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
