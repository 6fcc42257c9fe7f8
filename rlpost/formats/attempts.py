"""Attempts of a run in a dump: after a restart it writes the steps after its checkpoint again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.display.text import counted
from rlpost.kernels.rollouts import superseded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Pairs = NDArray[np.float64]

ATTEMPT, STEP = "run_attempt", "step"


@dataclass
class StepAttempts:
    """The attempts that have rows of each step, of all rows of a conversion."""

    _seen: set[tuple[float, float]] = field(default_factory=set)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, whether or not a condition keeps them."""
        if ATTEMPT in batch.schema.names:
            self._seen |= {*map(tuple, np.unique(_pairs(batch), axis=0).tolist())}

    def join(self, other: StepAttempts) -> None:
        """Add the rows that were read elsewhere."""
        self._seen |= other._seen

    @property
    def several(self) -> bool:
        """Whether the run was restarted."""
        return len({attempt for _, attempt in self._seen}) > 1

    def replaced(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return the rows of whose step a later attempt has rows, [n]."""
        own = _pairs(batch)
        every = np.concatenate([own, np.asarray(sorted(self._seen)).reshape(-1, 2)])
        steps = np.unique(every[:, 0], return_inverse=True)[1].reshape(-1)
        return superseded(steps, every[:, 1].astype(np.int64))[: len(own)]


def renumbered(batch: pa.RecordBatch, numbers: Mapping[int, int]) -> pa.RecordBatch:
    """Return rows with other numbers of attempts: a part of a dump numbers its own from 1."""
    if ATTEMPT not in batch.schema.names or all(old == new for old, new in numbers.items()):
        return batch
    column = batch.column(ATTEMPT)
    values = pa.array([numbers.get(x) for x in column.to_pylist()], column.type)
    return batch.set_column(batch.schema.get_field_index(ATTEMPT), ATTEMPT, values)


def replaced_text(rows: int) -> str:
    """Return the warning about rows that were left out."""
    return (
        f"{counted(rows, 'row')} of steps that a later attempt of the run wrote again left out "
        f"(by `{ATTEMPT}`); --attempts all keeps them"
    )


def _pairs(batch: pa.RecordBatch) -> Pairs:
    """Return step and attempt of each row, [n, 2]; -1 where the dump has none."""
    columns = [
        np.nan_to_num(batch.column(name).to_numpy(zero_copy_only=False).astype(np.float64), nan=-1)
        if name in batch.schema.names
        else np.full(batch.num_rows, -1.0)
        for name in (STEP, ATTEMPT)
    ]
    return np.stack(columns, axis=1)
