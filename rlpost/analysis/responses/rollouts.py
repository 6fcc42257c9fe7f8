"""The rows of one rollout together: its turns and branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index

Json = dict[str, Any]
_AROUND = 5  # rows before and after the row, of a long rollout


@dataclass(frozen=True)
class RolloutView:
    """A row among the rows of its rollout, which are sorted by turn and branch."""

    index: Index
    rows: NDArray[np.int64]
    place: int
    """Of the row among them."""

    @classmethod
    def of(cls, index: Index, row: int) -> Self | None:
        """Return the view of a row; None if its rollout has no other."""
        rows = index.rollout_rows(row)
        return cls(index, rows, int(np.flatnonzero(rows == row)[0])) if len(rows) > 1 else None

    @property
    def following(self) -> int | None:
        """The next row of the rollout."""
        after = self.place + 1
        return int(self.rows[after]) if after < len(self.rows) else None

    @property
    def label(self) -> str:
        """The rollout's id."""
        return printable_line(str(self.index.label("rollout", int(self.rows[0]))))

    @property
    def title(self) -> str:
        """Which row of the rollout it is: `rollout r1: turn 2, branch b · row 3 of 5`."""
        row = self._numbers(int(self.rows[self.place]))
        names = [f"{x} {row[x]}" for x in ("turn", "branch") if row[x] is not None]
        text = ": ".join([f"rollout {self.label}", *([", ".join(names)] if names else [])])
        return f"{text} · row {self.place + 1} of {len(self.rows)}"

    def _numbers(self, row: int) -> Json:
        """Return what the index has of a row; None for what it lacks."""
        index = self.index

        def finite(name: str) -> float | None:
            values = index.rows.get(name)
            return None if values is None or not np.isfinite(values[row]) else float(values[row])

        branch = index.label("branch", row)
        return {
            "row": row,
            "turn": number(finite("turn")) if "turn" in index.rows else None,
            "branch": None if branch is None else printable_line(str(branch)),
            "reward": finite("reward"),
            "turn_reward": finite("turn_reward"),
            "policy_tokens": finite("tokens"),
        }

    def table(self) -> TextTable:
        """Return the rows of the rollout, around this one if there are many."""
        first = max(0, min(self.place - _AROUND, len(self.rows) - 2 * _AROUND - 1))
        shown = self.rows[first : first + 2 * _AROUND + 1].tolist()
        rows = [self._numbers(row) for row in shown]
        columns = {"": ["›" if row == self.rows[self.place] else "" for row in shown]}
        for name, heading in _HEADINGS.items():
            has_any = any(row[name] is not None for row in rows)
            if has_any or name in ("reward", "policy_tokens"):
                columns[heading] = [_cell(name, row[name]) for row in rows]
        left_out = len(self.rows) - len(rows)
        notes = [f"{counted(left_out, 'row')} more"] if left_out else []
        text = [place for place, name in enumerate(columns) if name in ("", "branch")]
        cells = [*zip(*columns.values(), strict=True)]
        return TextTable([*columns], cells, self.title, notes=notes, text=text)

    def as_json(self) -> Json:
        """Return the rollout as plain data."""
        rows = [self._numbers(row) for row in self.rows.tolist()]
        return {"id": self.label, "place": self.place, "rows": rows}


_HEADINGS = {
    "row": "row", "turn": "turn", "branch": "branch", "reward": "reward",
    "turn_reward": "turn reward", "policy_tokens": "tokens",
}  # fmt: skip


def _cell(name: str, value: Any) -> str:
    return str(value) if name == "row" or isinstance(value, str) else number(value)
