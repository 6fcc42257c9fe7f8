"""Rows that are turns of one rollout: statistics of their group count each as a response.

The columns of the roles `rollout` and `turn` are read here only for warnings.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.codes import joint_codes
from rlpost.recipe.roles import fits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from rlpost.recipe.roles import ColumnMap

    Evidence = NDArray[np.int8]
    Codes = NDArray[np.int64]


ROLLOUT, TURN = "turns:rollout", "turns:turn"
"""Roles of the two columns; they are read only to warn."""
TURN_ROLES = (ROLLOUT, TURN)
BY_ID, BY_TURN = np.int8(1), np.int8(2)
"""What shows that a row is a turn: a rollout id that it shares, or the numbers of turns."""
_LARGEST = 1 << 30  # a number beyond is no turn
_SHARES_ID, _SEVERAL_IDS, _SEVERAL_TURNS, _FROM_0, _FROM_1, _NOT_COUNTED = 1, 2, 4, 8, 16, 32
EVIDENCE = {
    "shares_id": _SHARES_ID,
    "several_ids": _SEVERAL_IDS,
    "several_turns": _SEVERAL_TURNS,
    "from_0": _FROM_0,
    "from_1": _FROM_1,
    "not_counted": _NOT_COUNTED,
}
"""The bits of `turn_evidence`. How many rows have each adds up over tables: every table has whole
groups, so what the rows of an input are does not depend on its division."""


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


def evidence_counts(evidence: Evidence) -> Counter[str]:
    """Return how many rows have each bit of a column from `turn_evidence`."""
    return Counter({x: int(np.count_nonzero(evidence & bit)) for x, bit in EVIDENCE.items()})


def turns_of(counts: Mapping[str, int]) -> tuple[int, np.int8]:
    """Return how many rows look like turns, and by what.

    Rows of a group with one rollout id are turns (`BY_ID`) if some group has several ids. Otherwise
    the id may be that of the prompt or the step. Then, or without ids, rows of groups with several
    turns are turns (`BY_TURN`) if turns count up from 0, or from 1, in every group, each in at most
    as many rows as the turn before. The number of turns of a dialogue, a column of the same name,
    does not.

    Args:
        counts: of `evidence_counts`, or their sums.
    """
    if counts["several_ids"]:
        return counts["shares_id"], BY_ID
    if counts["not_counted"] or (counts["from_0"] and counts["from_1"]):
        return 0, BY_TURN
    return counts["several_turns"], BY_TURN


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
    """Return the evidence that rows are turns, [N] bits of `EVIDENCE`.

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

    Arguments as of `turn_evidence`, of a whole input; the rule is that of `turns_of`.
    """
    evidence = turn_evidence(group, rollout, turn)
    rows, by = turns_of(evidence_counts(evidence))
    bit = _SHARES_ID if by == BY_ID else _SEVERAL_TURNS
    return np.where(evidence & bit > 0, by, 0).astype(np.int8) if rows else evidence * 0


def _counting(group: Codes, turn: Codes) -> Evidence:
    """Return the evidence of turns: whether they count up in the row's group, and from where."""
    turn = turn.clip(-_LARGEST, _LARGEST)
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
