"""What findings are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from rlpost.analysis.inspect.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rlpost.analysis.inspect.model import (
        GroupFacts,
        InputFacts,
        Label,
        LengthFacts,
        MaskFacts,
        RewardFacts,
        TokenFacts,
    )
    from rlpost.analysis.inspect.reading import Reading


MOST_SHOWN = 5
MOST_DIGITS = 12
WORDS = {"length": "entries", "tokens": "policy tokens"}


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

    def rows_at(self, places: Sequence[int], *also: str) -> list[Evidence]:
        """The rows at some places of the reading, in the order given."""
        shown = self.reading.rows[list(places[:MOST_SHOWN])]
        return [self._row(row, also) for row in shown.iter_rows(named=True)]

    def rows_of_steps(self, steps: Collection[Label], *also: str) -> list[Evidence]:
        """The first rows of some steps."""
        rows = self.reading.rows
        chosen = [
            rows.select(place=pl.arg_where(pl.col("batch") == step))["place"].head(1).to_list()
            for step in list(steps)[:MOST_SHOWN]
        ]
        if len(chosen) == 1:
            step = next(iter(steps))
            return self.rows_where(rows["batch"] == step, *also)
        return self.rows_at([place for places in chosen for place in places], *also)

    def step_count(self) -> int:
        """Different steps; 0 without a step column."""
        rows = self.reading.rows
        return rows["batch"].drop_nulls().n_unique() if "batch" in rows else 0

    def in_steps(self, having: Collection[Label]) -> str:
        """` in step 2 (1 of 3)`; nothing where all steps have it, or there are none."""
        every = self.step_count()
        if not having or len(having) >= every:
            return ""
        names = ", ".join(str(step) for step in list(having)[:MOST_SHOWN])
        more = ", ..." if len(having) > MOST_SHOWN else ""
        column = self.column("batch")
        steps = column if len(having) == 1 else plural(column)
        return f" in {steps} {names}{more} ({len(having):,} of {every:,} {plural(column)})"

    def groups_where(self, flags: pl.Series) -> list[Evidence]:
        """The first groups for which a flag is set, [G] bool."""
        assert self.group_rows is not None
        shown = self.group_rows.filter(flags).head(MOST_SHOWN)
        rows = self.reading.rows[shown["first"].to_list()]
        pairs = zip(shown.iter_rows(named=True), rows.iter_rows(named=True), strict=True)
        return [self._group(group, first) for group, first in pairs]

    def _row(self, row: dict[str, Any], also: tuple[str, ...]) -> Evidence:
        known = [name for name in also if row.get(name) is not None]
        said = ", ".join(f"{WORDS.get(name, name)} {row[name]:g}" for name in known)
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


def plural(noun: str) -> str:
    """`steps`, and `batches`."""
    return noun + ("es" if noun.endswith(("s", "h", "x")) else "s")


def share(part: int, whole: int) -> str:
    """A share as a percentage, with as many digits as it takes to see it.

    Only all is 100 %: what is less is never rounded up to it.

    >>> share(3, 4), share(1, 1000), share(996, 1000), share(9999, 10000)
    ('75 %', '0.1 %', '99.6 %', '99.99 %')
    """
    percentage = 100 * part / whole if whole else 0.0
    text = f"{percentage:.0f}" if percentage >= 10 else f"{percentage:.2g}"  # noqa: PLR2004
    digits = 1
    while part < whole and text.startswith("100") and digits < MOST_DIGITS:
        text = f"{percentage:.{digits}f}"
        digits += 1
    return f"{text} %"
