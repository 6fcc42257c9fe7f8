"""The sums of the responses of some steps, aggregated over units such as micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from rlpost.analysis.replay.metrics.reductions import Sizes, response_weights
from rlpost.analysis.replay.metrics.sums import TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.analysis.replay.metrics.measure import Measured
    from rlpost.analysis.replay.metrics.splits import Units

    Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class StepSums:
    """The responses of a step, [n]."""

    sums: Numbers
    """[n, columns]."""
    sizes: Sizes
    kept: NDArray[np.bool_]
    rewards: dict[str, Numbers]

    def __len__(self) -> int:
        return len(self.kept)

    @cached_property
    def columns(self) -> torch.Tensor:
        """[n, 2·columns]: the sums, and their absolute values."""
        return torch.from_numpy(np.concatenate([self.sums, np.abs(self.sums)], axis=1))

    @classmethod
    def of(cls, measured: Measured, step: str) -> StepSums:
        """Return the responses of a step, by its label."""
        rows = measured.rows_of(step)
        tokens = measured.tokens[rows]
        if measured.columns:  # the mask of the sums may drop more
            tokens = measured.sums[rows, measured.columns.index(TOKENS)].astype(np.int64)
        return cls(
            measured.sums[rows],
            Sizes(tokens, measured.length[rows]),
            measured.kept[rows],
            {name: numbers[rows] for name, numbers in measured.rewards.items()},
        )


class Aggregated:
    """The columns of some steps, and their means over units.

    Args:
        measured: the responses.
        steps: labels of the steps.
        length: the length of seq-mean-token-sum-norm; None: the longest response's.
    """

    def __init__(self, measured: Measured, steps: Sequence[str], length: int | None) -> None:
        self.measured, self.labels, self.length = measured, steps, length
        self.index = {column: at for at, column in enumerate(measured.columns)}
        self.steps = [StepSums.of(measured, step) for step in steps]

    @property
    def counts(self) -> list[int]:
        """The responses of each step."""
        return [len(one) for one in self.steps]

    def weights(self, units: Sequence[Units]) -> list[Numbers]:
        """Return the weight of each response's sum in the means of units, by step, [r, n] each."""
        return [
            response_weights(step.sizes, own, self.length)
            for step, own in zip(self.steps, units, strict=True)
        ]

    def values(self, units: Sequence[Units]) -> tuple[Numbers, Numbers]:
        """Return all columns aggregated, and their absolute values, [columns, r, s] each."""
        weights = self.weights(units)
        both = []
        for own, step in zip(weights, self.steps, strict=True):
            of_step = torch.from_numpy(own)
            both.append((of_step @ step.columns).T.reshape(2, -1, len(own)).numpy())
        values, magnitudes = np.stack(both, -1)
        return values, magnitudes
