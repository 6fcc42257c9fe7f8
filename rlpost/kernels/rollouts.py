"""Rollouts of several rows: the order of their rows, what follows from it; attempts of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.arrays.numpy_arrays import canonical_order, placed
from rlpost.kernels.moments import group_offsets
from rlpost.kernels.rewards import z_scores
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import segment_sum, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.kernels.moments import Floats, Integers, Mask


def rollout_ranks(
    rollout: Integers,
    turn: Floats | Integers | None = None,
    branch: Integers | None = None,
    agent: Integers | None = None,
    *ties: Floats | Integers,
) -> Integers:
    """Return the rank of each row in the order of rollouts and their turns, [N] from 0.

    Rows of a rollout are ordered by turn, then by branch, then by the ties. Without turns they are
    ordered by branch. Rows that are equal in all of them have one rank.

    The main agent of a rollout is that of its first row. A rollout ends with its main agent: rows
    of other agents come before the main agent's row of their turn, or before its last row.

    Args:
        rollout: [N] codes from 0 without gaps.
        turn: [N] number of the turn in its rollout.
        branch: [N] codes of branches, in the order of their names.
        agent: [N] codes of agents.
        ties: [N] each, the order of rows with equal turns and branches, if there are turns.
    """
    if turn is None:
        turn, ties = np.zeros(len(rollout)), ()
    keys = [turn, *([] if branch is None else [branch]), *ties]
    if agent is not None:
        first = RolloutOrder.of(rollout, *keys).first
        main = agent == agent[first][rollout]
        end = np.full(len(first), -np.inf)
        np.fmax.at(end, rollout[main], turn[main])
        keys = [np.fmin(turn, end[rollout]), main, *keys]
    order = canonical_order(rollout, *keys)
    differs = np.zeros(len(order), np.bool_)
    for key in (rollout, *keys):
        differs[1:] |= key[order][1:] != key[order][:-1]
    return placed(np.cumsum(differs), order, len(order))


@dataclass(frozen=True)
class RolloutOrder:
    """The rows of rollouts, each in the order of its turns, whatever the order of the input."""

    order: Integers
    """[N] rows by rollout, then by turn."""
    offsets: Integers
    """[R+1] of the rollouts in `order`."""
    rollout: Integers
    """[N] code of each row's rollout in [0, R)."""

    @classmethod
    def of(cls, rollout: Integers, *keys: Floats | Integers) -> RolloutOrder:
        """Return the order of rows by rollout, then by keys, then as they are stored.

        Args:
            rollout: [N] codes from 0 without gaps.
            keys: [N] each: `rollout_ranks`, then what orders rows of one rank.
        """
        count = int(rollout.max(initial=-1)) + 1
        return cls(canonical_order(rollout, *keys), group_offsets(rollout, count), rollout)

    @cached_property
    def first(self) -> Integers:
        """[R] the first row of each rollout."""
        return self.order[self.offsets[:-1]]

    @cached_property
    def last(self) -> Integers:
        """[R] the last row of each rollout."""
        return self.order[self.offsets[1:] - 1]

    def last_of(self, among: Mask) -> Integers:
        """Return the last of some rows of each rollout that has any, [at most R]."""
        rows = self.order[among[self.order]]
        last: Integers = rows[np.diff(self.rollout[rows], append=-1) != 0]
        return last

    def places(self) -> Integers:
        """Return the place of each row in the order, [N]."""
        places: Integers = placed(np.arange(len(self.order)), self.order, len(self.order))
        return places

    def returns(self, values: Floats, gamma: float) -> Floats:
        """Return Gₖ = xₖ + γ·Gₖ₊₁ over the rows k of each rollout, [N]."""
        returns: Floats = reverse_scan(values[self.order], self.offsets, gamma)
        return self.unsorted(returns)

    def unsorted(self, values: Floats) -> Floats:
        """Return values in the order of the rows, of values in the order of the rollouts, [N]."""
        return placed(values, self.order, len(values))

    def sums(self, values: Floats) -> Floats:
        """Return the sum of each row's rollout, [N]."""
        sums: Floats = segment_sum(values[self.order], self.offsets)
        return sums[self.rollout]

    def ordinals(self) -> Integers:
        """Return the place of each row in its rollout from 0, in the order of rollouts, [N]."""
        starts: Integers = spread(self.offsets[:-1], self.offsets)
        return np.arange(len(self.order)) - starts

    def scores(self, values: Floats, group: Integers, **normalise: str | float) -> Floats:
        """Return `z_scores` within groups in which each rollout counts once, [N].

        Args:
            values: [N] equal for all rows of a rollout.
            group: [N] codes of the groups.
            normalise: options of `z_scores`.
        """
        return z_scores(values[self.first], group[self.first], **normalise)[self.rollout]  # type: ignore[arg-type]


def superseded(unit: Integers, attempt: Integers) -> NDArray[np.bool_]:
    """Return the rows of whose unit a later attempt has rows, [N].

    A run that restarts from a checkpoint writes the steps after it again, and a rollout may be
    tried again.

    Args:
        unit: [N] codes from 0 of what is written again: a step, or a rollout.
        attempt: [N].
    """
    newest = np.full(int(unit.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, unit, attempt)
    return attempt < newest[unit]
