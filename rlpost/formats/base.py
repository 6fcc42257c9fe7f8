"""What a dump format declares, the options of a conversion, and the columns of converted files."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from rlpost.formats.containers import container_of
from rlpost.recipe.roles import ON_DEMAND, ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rlpost.formats.containers import Container
    from rlpost.formats.records import Field, Record
    from rlpost.formats.where import Where
    from rlpost.io.paths import AnyPath


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
"""Columns with one entry per response token. The framework computed the `dumped_` ones."""

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
"""Column -> type, in the order of the columns in a file. Keys are text, so that any id fits.

A framework's own advantages are `dumped_...`: `advantages` is the column that rlpost writes.
"""

_EXPECTED = ("group", "reward", "batch", "mask", "old_log_probs", "ref_log_probs", "log_probs",
             "infer_log_probs", "values", "response_length")  # fmt: skip
"""The roles that commands need most."""
LENGTH = "response_length"
"""A count of tokens, which is checked as it is: also a role, for inputs without tokens."""


@dataclass
class ReadStats:
    """What the readers of a conversion count and find besides the rows."""

    sources: dict[str, str] = field(default_factory=dict)
    """Column -> the fields that it was read from, if they depend on the dump."""
    groups: int = 0
    """Blocks of records that became groups so far, so that groups of several files differ."""
    warnings: list[str] = field(default_factory=list)
    """What of a dump has no row, and what the user should check."""
    replaced: int = 0
    """Rows that were left out because there is a later attempt."""
    left_out: dict[str, None] = field(default_factory=dict)
    """Fields with values that have no column."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """A noun, and what happened to so many of them, that the user should see."""

    def add(self, other: ReadStats) -> None:
        """Add what was counted and found in another part of the input."""
        self.sources |= other.sources
        self.warnings += other.warnings
        self.left_out |= other.left_out
        self.counts.update(other.counts)
        self.groups += other.groups


@dataclass(frozen=True)
class ReadOptions:
    """What the user declares about a dump because the dump does not contain it."""

    map: Mapping[str, str] = field(default_factory=dict)
    """Role or column -> field of a record (`a.b` for a nested one); `none` omits a role."""
    group_size: int | None = None
    """Number of consecutive records in a group, for dumps without a group key."""
    attempts: Literal["newest", "all"] = "all"
    """Rows of a step or rollout that several attempts wrote: those of the newest, or all."""
    where: Where | None = None
    """Which rows are kept; None: all."""
    rows: str | None = None
    """Dotted path of the list in a record whose items are the responses; None: a record is one."""
    stats: ReadStats = field(default_factory=ReadStats, compare=False, repr=False)
    """Filled in by the readers; `formats.convert.convert` creates one for each conversion."""

    @property
    def omitted_columns(self) -> frozenset[str]:
        """The columns that `--map ROLE=none` omits: all names of the role."""
        roles = [role for role, source in self.map.items() if source == "none"]
        names = [ROLES[role].aliases if role in ROLES else (role,) for role in roles]
        return frozenset().union(*names)


def has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a `Format.sniff` that needs all of these fields."""
    needed = {*names}
    return lambda fields: needed <= fields.keys()


@dataclass(frozen=True)
class Format:
    """One layout: what a framework's records mean, wherever they are stored.

    A layout is a declaration, and code only where records nest in their own way:

    - `containers` are those that it is found in (`rlpost.formats.containers`), which read the
      records; a dump in another one is an error.
    - `members` is a glob of the files of a directory or archive that have records; empty: all.
    - `sniff` recognises it by the fields of the first record, or by the names of columns.
    - `fields` names the columns (`CANONICAL`, and others under their own names) and the dotted path
      of each, in the record or in what contains it; `a.b | c` is the first that is not null, and a
      `Field` computes one. A column of a role is in all dumps, and a record without it is an error,
      if `lacks` does not have the role. The user's map is applied to the row's record afterwards.
    - `at` is the path of the rows inside a record, if it has any; else it is a row.
    - `rows` changes, splits, leaves out or adds records by code, and may compute columns of them
      (`Record.values`), such as the tokens of each call of a model. Code reads `record.get` and
      `record.typed`, whose errors name file, line and field; `record.file` is the record's file,
      so that it can open those beside it.
    - `reads` are the fields that are read besides those of `fields`; all others are kept under
      their names, if `keeps` does not say that they are left out.
    """

    name: str
    title: str
    source: str
    """The writer, with the framework's version, whose code defines the format."""
    containers: tuple[Container, ...]
    sniff: Callable[[Mapping[str, Any]], bool]
    """Returns whether the first record's fields, or names with None, are this layout's."""
    fields: Mapping[str, str | Field] = field(default_factory=dict)
    """Column -> what it is read from; `ReadStats.sources` and the map have precedence."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Role -> why some dumps of this format, or all, lack it; an empty text for one of which nobody
    needs to hear."""
    note: str = ""
    """One line that a user of this format should read, such as a trap."""
    at: str | None = None
    layout: str | None = None
    """How token lists of `fields` are laid out, if not an entry per response token: `padded` or
    `tail`, as `rlpost.formats.layout.of_responses` says."""
    rows: Callable[[Iterator[Record], ReadOptions], Iterator[Record]] | None = None
    reads: frozenset[str] = frozenset()
    keeps: bool = True
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Column that is not canonical -> its type; others have the type of their first values."""
    integers: bool = True
    """Whether kept fields may be int64; otherwise their numbers are float64."""
    version: tuple[str, tuple[int | str, ...]] | None = None
    """A field of a record, and its values that rlpost reads; a record without it has the first."""
    members: str = ""
    beside: tuple[str, ...] = ()
    """Globs of files in the parent of a dump's directory that belong to it, and are no dumps."""
    part_of: Callable[[Path], Path | None] | None = None
    """Returns the file of a directory that reads another one, too; None if none does."""

    def __reduce__(self) -> Any:
        return _registered, (self.name,)

    def fits(self, path: AnyPath) -> bool:
        """Return whether a file or directory is a dump of this format, by its first record."""
        container = container_of(path)
        if container not in self.containers or container is None:
            return False
        return self.sniff(container.first(cast("Path", path), self.members))

    def contains(self, folder: Path, file: Path) -> bool:
        """Return whether a file belongs to a directory that is a dump, so it is no dump itself."""
        if folder in file.parents:
            return True
        outer = folder.parent
        return outer in file.parents and any(
            fnmatch(str(file.relative_to(outer)), pattern) for pattern in self.beside
        )

    @property
    def texts(self) -> dict[str, str]:
        """Column -> what it is read from, for users."""
        return {name: x if isinstance(x, str) else x.text for name, x in self.fields.items()}

    @property
    def missing_roles(self) -> dict[str, str]:
        """Role -> why a dump lacks it: some of those of `fields`, and what no dump has."""
        why = f"{self.name} dumps have none"
        never = {role: why for role in _EXPECTED if role not in self.roles}
        if "mask" in self.roles:
            never.pop(LENGTH, None)
        reasons = {**never, **self.lacks}
        return {role: reasons[role] for role in ROLES if role in reasons}

    @property
    def read_fields(self) -> frozenset[str]:
        """The fields of records that the columns have, or that the code reads."""
        paths = [path for text in self.texts.values() for path in text.split(" | ")]
        inside = [*(self.at or "").split("."), self.version[0] if self.version else ""]
        return self.reads.union(inside, (re.split(r"[^\w-]", path)[0] for path in paths))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that a dump of this format can contain; all, if its fields decide.

        Token lists set the length of a response, which then is no role.
        """
        names = self.fields.keys() or {alias for x in ROLES.values() for alias in x.aliases}
        tokens = {LENGTH} if "response_mask" in self.fields else set()
        return tuple(
            name
            for name, role in ROLES.items()
            if role.kind not in ON_DEMAND and not names.isdisjoint({*role.aliases} - tokens)
        )

    def sources(self, options: ReadOptions) -> dict[str, str]:
        """Return column -> the fields that it was read from, after reading with these options."""
        mapped = {
            ROLES[role].aliases[0] if role in ROLES else role: path
            for role, path in options.map.items()
        }
        return {**self.texts, **options.stats.sources, **mapped}


def _registered(name: str) -> Format:
    """Return a format by its name, in the process that it was sent to."""
    formats: Mapping[str, Format] = importlib.import_module("rlpost.formats").FORMATS
    return formats[name]
