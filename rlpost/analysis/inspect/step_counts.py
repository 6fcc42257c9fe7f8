"""Evidence that a column of steps counts the turns of rollouts, not the batches of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.codes import joint_codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.int64]


LEAST = 7
"""Events that show it. If the rows of a prompt in consecutive steps were independent, each next
step had more rows as often as fewer, and 7 times fewer in a row had a chance of 2^-7."""


def turn_evidence_of(group: Codes, step: Codes, rollout: Codes | None) -> str:
    """Return why steps are turns of rollouts, as the end of a sentence; empty if nothing shows it.

    In a training, a prompt comes in any step; and if it comes in all of them, then in file order
    step by step, and with more responses as often as with fewer. Steps that are turns

    - start again within consecutive rows of a prompt, and go up by 1 otherwise; or
    - begin at the same number in every prompt, have no gap, and never have more rows than the step
      before, but fewer at least 7 times, as rollouts end; or
    - differ within rollout ids that belong to one prompt each.

    Args:
        group: [N] codes of prompts, whatever their step.
        step: [N] steps.
        rollout: [N] codes of rollout ids, or None.
    """
    if not len(step):
        return ""
    return _restarts(group, step) or _fewer(group, step) or _within_ids(group, step, rollout)


def _restarts(group: Codes, step: Codes) -> str:
    start, same, change = step.min(), group[1:] == group[:-1], np.diff(step)
    again = same & (step[1:] == start) & (change <= 0)
    up = same & (change == 1)
    if not (again | up)[same].all() or int((again & (change < 0)).sum()) < LEAST:
        return ""
    times = int(again.sum())
    return f"it starts again at {start} {times:,} times within a prompt, else goes up by 1"


def _fewer(group: Codes, step: Codes) -> str:
    low = int(step.min())
    width = int(step.max()) - low + 1
    pairs, counts = np.unique(group * width + (step - low), return_counts=True)
    own, place = np.divmod(pairs, width)
    begins = np.append(True, own[1:] != own[:-1])
    change = np.diff(counts, prepend=counts[0])[~begins]
    if (place[begins] != 0).any() or (np.diff(place, prepend=0)[~begins] != 1).any():
        return ""
    fewer = int((change < 0).sum())
    if fewer < LEAST or (change > 0).any():
        return ""
    return (
        f"it counts up from {low} in every prompt, and the next step has fewer rows {fewer:,} "
        "times, and never more"
    )


def _within_ids(group: Codes, step: Codes, rollout: Codes | None) -> str:
    if rollout is None:
        return ""
    several, prompts = _kinds(rollout, step) > 1, _kinds(rollout, group)
    if int(several.sum()) < LEAST or (prompts > 1).any() or not group.any():
        return ""
    return f"{int(several.sum()):,} rollout ids have rows of several steps"


def _kinds(keys: Codes, values: Codes) -> Codes:
    """Return the number of different values of each key."""
    codes = np.unique(values, return_inverse=True)[1]
    first = np.unique(joint_codes(keys, codes), return_index=True)[1]
    return np.bincount(keys[first])
