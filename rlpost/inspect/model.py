"""What `inspect` says, as plain dataclasses: the tree that turns into JSON.

Shares are between 0 and 1, sizes in bytes, lengths in tokens, log-probs and KL in nats. A part
that the input cannot tell is None. Rows are counted from 0 within their file.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from rlpost.inspect.model_responses import (
    GroupFacts,
    Histogram,
    Json,
    Label,
    LengthFacts,
    PassAtK,
    PassRates,
    RewardFacts,
    Slice,
    Spread,
    Truncation,
)  # fmt: skip
from rlpost.inspect.model_tokens import (
    AdvantageFacts,
    AdvantageSlice,
    Bucket,
    MaskFacts,
    Mismatch,
    Shift,
    TokenColumn,
    TokenFacts,
)  # fmt: skip

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
