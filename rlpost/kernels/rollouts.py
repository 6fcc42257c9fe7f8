"""Rollouts of several rows, joined in the order of their turns; attempts of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rlpost.kernels.arrays.numpy_arrays import canonical_order, placed
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.moments import group_offsets
from rlpost.kernels.rewards import z_scores
from rlpost.kernels.scans import reverse_scan
from rlpost.kernels.segments import segment_sum, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlpost.kernels.moments import Floats, Integers


@dataclass(frozen=True)
class JoinedRows:
    """The rows of rollouts, in an order that does not depend on that of the input."""

    order: Integers
    """[N] rows by rollout, then by turn."""
    offsets: Integers
    """[R+1] of the rollouts in `order`."""
    rollout: Integers
    """[N] code of each row's rollout in [0, R)."""

    @classmethod
    def of(
        cls, group: Integers, rollout: Integers, turn: Integers, *ties: Floats | Integers
    ) -> JoinedRows:
        """Join the rows of each rollout.

        Args:
            group: [N] codes of the groups.
            rollout: [N] codes of the rollouts, unique within a group.
            turn: [N] number of the turn in its rollout.
            ties: [N] each, the order of rows with equal turns.
        """
        code = joint_codes(group, rollout)
        count = int(code.max()) + 1 if len(code) else 0
        return cls(canonical_order(code, turn, *ties), group_offsets(code, count), code)

    @cached_property
    def first(self) -> Integers:
        """[R] the first row of each rollout."""
        return self.order[self.offsets[:-1]]

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


def superseded(step: Integers, attempt: Integers) -> NDArray[np.bool_]:
    """Return the rows of whose step a later attempt has rows, [N].

    A run that restarts from a checkpoint writes the steps after it again.

    Args:
        step: [N] codes from 0.
        attempt: [N].
    """
    newest = np.full(int(step.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, step, attempt)
    return attempt < newest[step]
