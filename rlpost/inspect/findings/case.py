"""What findings are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpost.inspect.model import Evidence

if TYPE_CHECKING:
    import polars as pl

    from rlpost.inspect.model import (
        GroupFacts,
        InputFacts,
        LengthFacts,
        MaskFacts,
        RewardFacts,
        TokenFacts,
    )
    from rlpost.inspect.reading import Reading

MOST_SHOWN = 5


@dataclass(frozen=True)
class Case:
    """The facts so far, and the rows behind them."""

    reading: Reading
    input: InputFacts
    group_rows: pl.DataFrame | None
    groups: GroupFacts | None
    rewards: RewardFacts | None
    lengths: LengthFacts | None
    masks: MaskFacts | None
    tokens: TokenFacts | None

    @property
    def rows(self) -> int:
        """Responses."""
        return len(self.reading.rows)

    def column(self, role: str) -> str:
        """What errors call a role: the column that serves it."""
        return self.reading.wanted.columns.columns.get(role, role)

    def rows_where(self, flags: pl.Series, *also: str) -> list[Evidence]:
        """The first rows for which a flag is set, [n] bool, with some of their numbers."""
        shown = self.reading.rows.filter(flags).head(MOST_SHOWN)
        return [self._row(row, also) for row in shown.iter_rows(named=True)]

    def groups_where(self, flags: pl.Series) -> list[Evidence]:
        """The first groups for which a flag is set, [G] bool."""
        assert self.group_rows is not None
        shown = self.group_rows.filter(flags).head(MOST_SHOWN)
        rows = self.reading.rows[shown["first"].to_list()]
        pairs = zip(shown.iter_rows(named=True), rows.iter_rows(named=True), strict=True)
        return [self._group(group, first) for group, first in pairs]

    def _row(self, row: dict[str, Any], also: tuple[str, ...]) -> Evidence:
        said = ", ".join(f"{name} {row[name]:g}" for name in also if row.get(name) is not None)
        return Evidence(self._file(row), row["row"], row.get("group"), said)

    def _group(self, group: dict[str, Any], first: dict[str, Any]) -> Evidence:
        step = f"{self.column('batch')} {group['batch']}, " if "batch" in group else ""
        mean = group.get("mean")
        reward = "" if mean is None else f", mean reward {mean:.4g}"
        said = f"{step}{counted(group['rows'], 'row')}{reward}"
        return Evidence(self._file(first), first["row"], group["group"], said)

    def _file(self, row: dict[str, Any]) -> str:
        return self.input.files[int(row["file"])].path


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def share(part: int, whole: int) -> str:
    """A share as a percentage, with as many digits as it takes to see it."""
    percentage = 100 * part / whole if whole else 0.0
    return f"{percentage:.0f} %" if percentage >= 10 else f"{percentage:.2g} %"  # noqa: PLR2004
