"""The rows of one rollout together: its turns and branches, and the tokens that rows share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.display.controls import printable_line
from rlpost.display.tables import TextTable
from rlpost.display.text import counted, number
from rlpost.kernels.prefixes import (
    Prefixes,
    prefixes_of,
    repeated_tokens,
    segments_with_prefixes,
    trained_tokens,
)
from rlpost.kernels.segments import offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.responses.index import Index
    from rlpost.analysis.responses.reader import Response, ResponseReader

Json = dict[str, Any]
_MOST_SPANS = 4
_AROUND = 5  # rows before and after the row, of a long rollout
_MOST_READ = 64  # rows whose token ids are compared


@dataclass(frozen=True)
class RolloutView:
    """A row among the rows of its rollout, which are sorted by turn and branch."""

    index: Index
    rows: NDArray[np.int64]
    place: int
    """Of the row among them."""
    shared: dict[int, NDArray[np.bool_]]
    """[t] by row: the policy tokens that an earlier row has, too; empty without token ids."""

    @property
    def row(self) -> int:
        """The number of the row in the input."""
        return int(self.rows[self.place])

    @property
    def label(self) -> str:
        """The rollout's id."""
        assert self.index.rollout is not None
        return printable_line(
            str(self.index.rollout.label(int(self.index.rollout.codes[self.row])))
        )

    @property
    def following(self) -> int | None:
        """The next row of the rollout."""
        after = self.place + 1
        return int(self.rows[after]) if after < len(self.rows) else None

    @property
    def title(self) -> str:
        """Which row of the rollout it is: `rollout r1: turn 2, branch b · row 3 of 5`."""
        names = ", ".join(f"{name} {text}" for name, text in self.names(self.row).items())
        names = f": {names}" if names else ""
        return f"rollout {self.label}{names} · row {self.place + 1} of {len(self.rows)}"

    def names(self, row: int) -> dict[str, str]:
        """Return the turn and the branch of a row, as far as the input has them."""
        index, names = self.index, {}
        if index.turn is not None:
            names["turn"] = number(_finite(index.turn[row]))
        if index.branch is not None:
            names["branch"] = printable_line(str(index.branch.label(int(index.branch.codes[row]))))
        return names

    @property
    def shares(self) -> str:
        """The row's policy tokens that an earlier row has, too; empty for none."""
        if not self._shared(self.row):
            return ""
        places = np.flatnonzero(self.shared[self.row])
        cuts = np.flatnonzero(np.diff(places) > 1) + 1
        spans = [f"{span[0]} to {span[-1]}" for span in np.split(places, cuts)[:_MOST_SPANS]]
        more = ", ..." if len(cuts) >= _MOST_SPANS else ""
        return f"tokens {', '.join(spans)}{more} are those of an earlier row, too"

    def marked(self, response: Response) -> Response:
        """Return the row's response with the tokens that an earlier row has, too."""
        return replace(response, shared=self.shared.get(self.row))

    def _shared(self, row: int) -> int:
        return int(self.shared[row].sum()) if row in self.shared else 0

    def table(self) -> TextTable:
        """Return the rows of the rollout, around this one if there are many."""
        first = max(0, min(self.place - _AROUND, len(self.rows) - 2 * _AROUND - 1))
        rows = self.rows[first : first + 2 * _AROUND + 1].tolist()
        left_out = len(self.rows) - len(rows)
        columns = {
            "": ["›" if row == self.row else "" for row in rows],
            "row": [*map(str, rows)],
            **{name: [self.names(row)[name] for row in rows] for name in self.names(self.row)},
            "reward": [number(_finite(self.index.reward[row])) for row in rows],
        }
        if (rewards := self.index.turn_reward) is not None:
            columns["turn reward"] = [number(_finite(rewards[row])) for row in rows]
        columns["tokens"] = [number(_finite(self.index.length[row])) for row in rows]
        notes = [f"{counted(left_out, 'row')} more"] if left_out else []
        if any(map(self._shared, rows)):
            columns["shared"] = [
                f"{self._shared(row):,}" if self._shared(row) else "" for row in rows
            ]
            notes.append("shared: policy tokens that an earlier row of the rollout has, too")
        text = [place for place, name in enumerate(columns) if name in ("", "branch")]
        cells = [*zip(*columns.values(), strict=True)]
        return TextTable([*columns], cells, self.title, notes=notes, text=text)

    def as_json(self) -> Json:
        """Return the rollout as plain data."""
        index, rewards = self.index, self.index.turn_reward
        return {
            "id": self.label,
            "place": self.place,
            "rows": [
                {
                    "row": row,
                    **{name: self.names(row).get(name) for name in ("turn", "branch")},
                    "reward": _finite(index.reward[row]),
                    "turn_reward": None if rewards is None else _finite(rewards[row]),
                    "policy_tokens": _finite(index.length[row]),
                    "shared": self._shared(row) if self.shared else None,
                }
                for row in self.rows.tolist()
            ],
        }


def rollout_view(index: Index, reader: ResponseReader, row: int) -> RolloutView | None:
    """Return the rollout of a row; None if the row is alone, or has no rollout.

    Raises:
        ReadWriteError: the input is no longer readable.
    """
    rows = index.rollout_rows(row)
    if len(rows) <= 1:
        return None
    place = int(np.flatnonzero(rows == row)[0])
    read = rows[: max(place + 1, _MOST_READ)] if place < _MOST_READ else rows[place : place + 1]
    responses = reader.read(read[:_MOST_READ].tolist())
    return RolloutView(index, rows, place, shared_tokens(responses))


def shared_tokens(responses: Sequence[Response]) -> dict[int, NDArray[np.bool_]]:
    """Return which policy tokens of each row an earlier one has, too, [t] by row.

    Args:
        responses: the rows of a rollout, in its order; those without token ids are left out.
    """
    known = [one for one in responses if one.ids is not None and one.prompt_ids is not None]
    if not known:
        return {}
    ids, prompts = ([getattr(one, name) for one in known] for name in ("ids", "prompt_ids"))
    mask, offsets = np.concatenate([one.mask for one in known]), _offsets(ids)
    before: Prefixes = prefixes_of(np.concatenate(prompts), _offsets(prompts))
    segments = segments_with_prefixes(np.concatenate(ids), mask, offsets, before, 0)
    order = np.arange(len(known))
    repeated = repeated_tokens(segments, np.zeros_like(order), order, order >= 0)
    trained = trained_tokens(mask, offsets, segments.size - repeated)
    parts = np.split(mask & ~trained, offsets[1:-1])
    return {one.row: part for one, part in zip(known, parts, strict=True)}


def _offsets(parts: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    offsets: NDArray[np.int64] = offsets_of(np.array([len(part) for part in parts], np.int64))
    return offsets


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
