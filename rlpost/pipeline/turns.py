"""Rows that are turns of one rollout: statistics of their group count each as a response.

The columns of the roles `rollout` and `turn` are read here only for warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlpost.kernels.codes import joint_codes
from rlpost.recipe.roles import fits

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.recipe.roles import ColumnMap

    Evidence = NDArray[np.int8]
    Codes = NDArray[np.int64]


ROLLOUT, TURN = "turns:rollout", "turns:turn"
"""Roles of the two columns; they are read only to warn."""
TURN_ROLES = (ROLLOUT, TURN)
BY_ID, BY_TURN = np.int8(1), np.int8(2)
"""What shows that a row is a turn: a rollout id that it shares, or the numbers of turns."""
_SHARES_ID, _SEVERAL_IDS, _SEVERAL_TURNS, _FROM_0, _FROM_1, _NOT_COUNTED = 1, 2, 4, 8, 16, 32


def turn_columns(columns: ColumnMap, content: Callable[[str], str]) -> dict[str, str]:
    """Return the column of rollout ids and the column of turns, by role, as far as they exist.

    Args:
        columns: the roles.
        content: returns what a column contains, `number`, `text` or something else.
    """
    return {
        evidence: columns.column(role)
        for evidence, role in ((ROLLOUT, "rollout"), (TURN, "turn"))
        if role in columns and fits(role, content(columns.column(role)))
    }


class TurnCounts(NamedTuple):
    """How many rows have each kind of evidence; those of several tables add up.

    Every table has whole groups. So what the rows of an input are does not depend on its division.
    """

    shares_id: int = 0
    several_ids: int = 0
    several_turns: int = 0
    from_0: int = 0
    from_1: int = 0
    not_counted: int = 0

    @classmethod
    def of(cls, evidence: Evidence) -> TurnCounts:
        """Return the counts of a column from `turn_evidence`."""
        return cls(*(int(np.count_nonzero(evidence & bit)) for bit in _BITS))

    def __or__(self, other: TurnCounts) -> TurnCounts:
        """Return the counts of both."""
        return TurnCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def turns(self) -> tuple[int, np.int8]:
        """How many rows look like turns, and by what.

        Rows of a group with one rollout id are turns (`BY_ID`) if some group has several ids.
        Otherwise the id may be that of the prompt or the step. Then, or without ids, rows of groups
        with several turns are turns (`BY_TURN`) if turns count up from 0, or from 1, in every
        group, each in at most as many rows as the turn before. The number of turns of a dialogue, a
        column of the same name, does not.
        """
        if self.several_ids:
            return self.shares_id, BY_ID
        if self.not_counted or (self.from_0 and self.from_1):
            return 0, BY_TURN
        return self.several_turns, BY_TURN

    @property
    def of_groups(self) -> int:
        """How many rows share an id, if the rows of every group have one id: 0 if they do not.

        The id is that of the prompt or the step, or each prompt has one rollout of several turns.
        """
        return 0 if self.several_ids else self.shares_id


NO_TURNS = TurnCounts()
_BITS = (_SHARES_ID, _SEVERAL_IDS, _SEVERAL_TURNS, _FROM_0, _FROM_1, _NOT_COUNTED)


def one_id(groups: str, column: str) -> tuple[str, str]:
    """Return the warning and the advice if groups have one rollout each.

    Args:
        groups: which ones, with a verb.
        column: of the ids.
    """
    what = f"{groups} one rollout: is `{column}` the id of a step or of a prompt?"
    row = "--unit row counts each row"
    return what, f"{row}, --unit rollout confirms one rollout of several turns"


def turn_evidence(group: Codes, rollout: Codes | None, turn: Codes | None) -> Evidence:
    """Return the evidence that rows are turns, [N] bits that `TurnCounts.of` counts.

    Args:
        group: [N] codes from 0 of whole groups.
        rollout: [N] codes from 0, or None.
        turn: [N] numbers of turns, or None.
    """
    evidence = np.zeros(len(group), np.int8)
    if not len(group):
        return evidence
    if rollout is not None:
        unit = joint_codes(group, rollout)
        sizes = np.bincount(unit)
        group_of = np.empty_like(sizes)
        group_of[unit] = group
        evidence[sizes[unit] > 1] |= _SHARES_ID
        evidence[np.bincount(group_of)[group] > 1] |= _SEVERAL_IDS
    if turn is not None:
        evidence |= _counting(group, turn)
    return evidence


def turn_rows(group: Codes, rollout: Codes | None, turn: Codes | None) -> Evidence:
    """Return which rows look like turns, and by what, `BY_ID` or `BY_TURN`, [N]; else 0.

    Arguments as of `turn_evidence`, of a whole input; the rule is that of `TurnCounts.turns`.
    """
    evidence = turn_evidence(group, rollout, turn)
    rows, by = TurnCounts.of(evidence).turns
    bit = _SHARES_ID if by == BY_ID else _SEVERAL_TURNS
    return np.where(evidence & bit > 0, by, 0).astype(np.int8) if rows else evidence * 0


def _counting(group: Codes, turn: Codes) -> Evidence:
    """Return the evidence of turns: whether they count up in the row's group, and from where."""
    low = int(turn.min())
    width = int(turn.max()) - low + 1
    pairs, counts = np.unique(group * width + (turn - low), return_counts=True)
    own, turns = np.divmod(pairs, width)
    turns += low
    begins = np.append(True, own[1:] != own[:-1])
    goes_on = (np.diff(turns, prepend=0) == 1) & (np.diff(counts, prepend=0) <= 0)
    starts = turns[begins]  # of each group
    bits = np.select([starts == 0, starts == 1], [_FROM_0, _FROM_1], _NOT_COUNTED)
    bits[np.bincount(own[~(begins | goes_on)], minlength=len(bits)) > 0] |= _NOT_COUNTED
    bits[np.bincount(own) > 1] |= _SEVERAL_TURNS
    return bits.astype(np.int8)[group]
