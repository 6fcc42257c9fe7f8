"""Rows that are turns of one rollout: statistics of their group count each as a response.

Columns of rollout ids and of turns are recognised by name, and only for warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rlpost.recipe.roles import ColumnMap

    Kinds = NDArray[np.int8]
    Codes = NDArray[np.int64]


ROLLOUT, TURN = "turns:rollout", "turns:turn"
"""Roles of the two columns; they are read only to warn."""
TURN_ROLES = (ROLLOUT, TURN)
BY_ID, BY_TURN = np.int8(1), np.int8(2)
"""What shows that a row is a turn: a rollout id that it shares, or the numbers of turns."""
ROLLOUT_NAMES = ("traj_id", "rollout_id", "trajectory_id", "traj_uid", "episode_id")
TURN_NAMES = ("turn", "turn_id", "turn_index", "turn_idx")


def turn_columns(columns: ColumnMap, content: Callable[[str], str]) -> dict[str, str]:
    """Return the column of rollout ids and the column of turns, by role, as far as they exist.

    Args:
        columns: the roles; the columns of `traj_id` and `turn` come before other names.
        content: returns what a column contains, `number`, `text` or something else.
    """
    found = {}
    for role, own, names in ((ROLLOUT, "traj_id", ROLLOUT_NAMES), (TURN, "turn", TURN_NAMES)):
        used = {column for other, column in columns.columns.items() if other != own}
        fitting = ("number",) if role == TURN else ("number", "text")
        candidates = (name for name in (columns.columns.get(own, own), *names) if name not in used)
        column = next((name for name in candidates if content(name) in fitting), None)
        if column is not None:
            found[role] = column
    return found


def turn_rows(group: Codes, rollout: Codes | None, turn: Codes | None) -> Kinds:
    """Return which rows look like one of several turns of a rollout, and by what, [N].

    Rows of a group with one rollout id are turns (`BY_ID`) if some group has several ids. Otherwise
    the id may be that of the prompt or the step. Then, or without ids, rows of groups with several
    turns are turns (`BY_TURN`) if turns count up from 0 or 1 in every group, each in at most as
    many rows as the turn before. The number of turns of a dialogue, a column of the same name,
    does not. All other rows get 0.

    Args:
        group: [N] codes from 0.
        rollout: [N] codes from 0, or None.
        turn: [N] numbers of turns, or None.
    """
    none = np.zeros(len(group), np.int8)
    if not len(group):
        return none
    if rollout is not None:
        count = int(rollout.max()) + 1
        if count == len(rollout):
            return none  # each row is a rollout
        _, first, inverse, sizes = np.unique(
            group * count + rollout, return_index=True, return_inverse=True, return_counts=True
        )
        if (np.bincount(group[first]) > 1).any():
            return np.where(sizes[inverse] > 1, BY_ID, none)
    return none if turn is None else np.where(_counting_up(group, turn), BY_TURN, none)


def _counting_up(group: Codes, turn: Codes) -> NDArray[np.bool_]:
    """Return the rows of groups of several turns; none unless turns count up in every group."""
    none, low = np.zeros(len(group), np.bool_), int(turn.min())
    if low not in (0, 1):
        return none
    width = int(turn.max()) + 1
    pairs, counts = np.unique(group * width + turn, return_counts=True)
    own, turns = np.divmod(pairs, width)
    begins = np.append(True, own[1:] != own[:-1])
    goes_on = (np.diff(turns, prepend=0) == 1) & (np.diff(counts, prepend=0) <= 0)
    if not np.where(begins, turns == low, goes_on).all():
        return none
    several: NDArray[np.bool_] = np.bincount(own)[group] > 1
    return several
