"""What a dump format is: how it is known, how it is read, what it gives and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sized
    from pathlib import Path


_FLOATS, _IDS, _MASK = pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.uint8())

TOKEN_COLUMNS: dict[str, pa.DataType] = {
    "response_mask": _MASK,
    "response_token_ids": _IDS,
    "old_log_probs": _FLOATS,
    "infer_log_probs": _FLOATS,
    "ref_log_probs": _FLOATS,
    "teacher_log_probs": _FLOATS,
    "log_probs": _FLOATS,
    "values": _FLOATS,
    "token_rewards": _FLOATS,
    "entropy": _FLOATS,
    "sum_pi_squared": _FLOATS,
    "dumped_advantages": _FLOATS,
    "dumped_returns": _FLOATS,
}
"""Columns with one entry per response token. `dumped_` ones are what the framework computed."""

CANONICAL: dict[str, pa.DataType] = {
    "step": pa.int64(),
    "prompt_id": pa.string(),
    "rollout_id": pa.string(),
    "sample_id": pa.string(),
    "domain": pa.string(),
    "reward": pa.float64(),
    "reward_baseline": pa.float64(),
    "difficulty": pa.float64(),
    "finish_reason": pa.string(),
    "truncated": pa.bool_(),
    "prompt_length": pa.int64(),
    "response_length": pa.int64(),
    "dumped_advantage": pa.float64(),
    "dumped_sample_mask": pa.float64(),
    "prompt": pa.string(),
    "response": pa.string(),
    "prompt_token_ids": _IDS,
    **TOKEN_COLUMNS,
}
"""Column -> type, in the order in which they are written. Keys are text, so that any id fits.

A framework's own advantages are `dumped_...`: `advantages` is the name of what rlpost writes.
"""


Nonfinite = Literal["keep", "error"]


@dataclass
class ReadStats:
    """What reading dumps brings to light beside their rows; readers note it as they go."""

    sources: dict[str, str] = field(default_factory=dict)
    """Column -> the fields that it was read from, where the format alone does not say."""
    groups: int = 0
    """Blocks of records that were made groups so far, so that those of several files differ."""
    kept: int = 0
    """Records whose token lists the layout left as they were."""
    cut: int = 0
    """Records whose token lists the layout changed."""
    begin_with_0: int = 0
    """Records that are taken for responses alone, and whose mask begins with 0 all the same."""

    def laid_out(self, before: Mapping[str, Sized], after: Mapping[str, Sized]) -> None:
        """Count a record whose lists were brought from a layout to response tokens."""
        length = len(after["response_mask"])
        if any(len(array) != length for array in before.values()):
            self.cut += 1
        else:
            self.kept += 1


@dataclass(frozen=True)
class ReadOptions:
    """What a user says of a dump that the dump does not say itself."""

    map: Mapping[str, str] = field(default_factory=dict)
    """Role or column -> field of a record (`a.b` for a nested one); `none` leaves a role out."""
    layout: str | None = None
    """How token lists lie in a record, one of `rlpost.formats.layout.LAYOUTS`; None: as the
    format has it."""
    group_size: int | None = None
    """Consecutive records that are one group, where the dump names no group."""
    nonfinite: Nonfinite = "keep"
    """Whether a reward or token number that is NaN or infinite is an error; else it is counted."""
    told: ReadStats = field(default_factory=ReadStats, compare=False, repr=False)
    """Takes what the readers note; `formats.convert.convert` gives each conversion a new one."""

    @property
    def left_out(self) -> frozenset[str]:
        """The columns that `--map ROLE=none` leaves out; a role may be called by its column."""
        roles = [role for role, source in self.map.items() if source == "none"]
        return frozenset(ROLES[role].aliases[0] if role in ROLES else role for role in roles)


@dataclass(frozen=True)
class Format:
    """One kind of dump.

    `read` streams record batches of canonical columns (`rlpost.formats.base.CANONICAL`, and
    others under their own names). Batches may differ in their columns: one that a batch lacks is
    null there. `sniff` is cheap, executes nothing from the file and never raises: it looks at the
    first bytes or the first record, and is False when it is unsure.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    gives: tuple[str, ...]
    """Roles that a dump of this format can give."""
    lacks: Mapping[str, str]
    """Role -> why a dump of this format cannot give it."""
    sniff: Callable[[Path], bool]
    read: Callable[[Path, ReadOptions], Iterator[pa.RecordBatch]]
    source: str
    """Which writer of which framework version the layout is taken from."""
    takes: tuple[str, ...] = ()
    """Fields of `ReadOptions` that mean something here; others are refused."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Column -> the dump's fields that it is read from; `ReadStats.sources` and the map beat it."""
    note: str = ""
    """One line that a user of this format should know, such as a trap that it mends."""
    role_notes: Mapping[str, str] = field(default_factory=dict)
    """Role -> what to know of how it is found, which does not hold where the map says a field."""

    def notes(self, chosen: Collection[str] = ()) -> str:
        """What to know of this format, where these roles are mapped."""
        own = [text for role, text in self.role_notes.items() if role not in chosen]
        return " ".join([*([self.note] if self.note else []), *own])

    def sources(self, options: ReadOptions) -> dict[str, str]:
        """Column -> the fields that it was read from, after reading with these options."""
        mapped = {
            ROLES[role].aliases[0] if role in ROLES else role: path
            for role, path in options.map.items()
        }
        return {**self.fields, **options.told.sources, **mapped}
