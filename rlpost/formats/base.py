"""What a dump format is: how it is known, how it is read, what it gives and what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlpost.schema import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa


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

    @property
    def left_out(self) -> frozenset[str]:
        """The columns that `--map ROLE=none` leaves out; a role may be called by its column."""
        roles = [role for role, source in self.map.items() if source == "none"]
        return frozenset(ROLES[role].aliases[0] if role in ROLES else role for role in roles)


@dataclass(frozen=True)
class Format:
    """One kind of dump.

    `read` streams record batches of canonical columns (`rlpost.formats.rows.CANONICAL`, and
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
    note: str = ""
    """One line that a user of this format should know, such as a trap that it mends."""
