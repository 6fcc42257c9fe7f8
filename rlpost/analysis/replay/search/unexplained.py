"""What the nearest recipe of a search leaves open: the rows that differ, by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlpost.analysis.replay.search.sample import kinds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.compute import Replayed
    from rlpost.analysis.replay.rollouts import Rollouts
    from rlpost.analysis.replay.search.trials import Trial

_LISTED = 5
"""Rows that are listed."""


def differing_rows(stages: Sequence[Replayed], rollouts: Rollouts) -> NDArray[np.int64]:
    """Return the responses that differ in a stage, [n] positions."""
    differs = np.zeros(len(rollouts), np.bool_)
    for one in stages:
        differs[_rows(one, rollouts)] = True
    return np.flatnonzero(differs)


def _rows(stage: Replayed, rollouts: Rollouts) -> NDArray[np.int64]:
    """Return the responses that differ in a stage, [n] positions."""
    rows = np.flatnonzero(stage.difference.wrong)
    if len(stage.difference.wrong) != len(rollouts):
        rows = np.unique(np.searchsorted(rollouts.offsets, rows, "right") - 1)
    return rows


def unexplained(trial: Trial, rollouts: Rollouts) -> list[dict[str, Any]]:
    """Return what a recipe leaves open: by stage, the share and the rows that differ."""
    found, computed = [], {one.name: one for one in trial.replayed}
    kinds, steps = kinds_of(rollouts), rollouts.codes("batch")
    for name in trial.scores:
        if name not in computed:
            found.append({"stage": name, "computed": False, "share": 1.0})
            continue
        difference, rows = computed[name].difference, _rows(computed[name], rollouts)
        if not len(rows):
            continue
        found.append(
            {
                "stage": name,
                "computed": True,
                "share": float(difference.wrong.sum() / difference.chosen.sum()),
                "responses": len(rows),
                "rows": [int(row) for row in rollouts.rows[rows[:_LISTED]]],
                "groups": len(np.unique(rollouts.groups[rows])),
                "steps": len(np.unique(steps[rows])),
                "of_steps": len(np.unique(steps)),
                "kinds": [kind for kind, flags in kinds.items() if flags[rows].all()],
            }
        )
    return found
