"""Attempts in dumps: of a run, which writes steps again after a restart, and of its rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.kernels.rollouts import superseded

if TYPE_CHECKING:
    from numpy.typing import NDArray

ATTEMPT = "run_attempt"
_UNITS = {ATTEMPT: ("step",), "attempt": ("step", "prompt_id", "rollout_id", ATTEMPT)}
"""Column of attempts -> the columns that name what its attempts write again."""
_IDENTITY = {ATTEMPT: ATTEMPT, "attempt": "rollout_id"}
"""Column of attempts -> the column without which a row is no attempt at something."""
_KEYS = pa.schema({
    "step": pa.float64(), "prompt_id": pa.string(), "rollout_id": pa.string(),
    ATTEMPT: pa.int64(), "attempt": pa.int64(),
})  # fmt: skip


class Attempts:
    """The attempts of all rows of a conversion, of which some are written."""

    def __init__(self) -> None:
        self._keys: list[pa.RecordBatch] = []
        self._written: list[NDArray[np.bool_]] = []

    def add(self, batch: pa.RecordBatch, kept: NDArray[np.bool_]) -> None:
        """Add the rows of a batch, of which those of `kept` are written."""
        names = {*batch.schema.names}
        named = [key for key in _KEYS if key.name in names and not names.isdisjoint(_UNITS)]
        keys = {key.name: batch.column(key.name).cast(key.type, safe=False) for key in named}
        keys[""] = pa.nulls(len(batch))  # also of a batch without attempts
        self._keys.append(pa.record_batch(keys))
        self._written.append(kept)

    def replaced(self) -> NDArray[np.bool_]:
        """Return the written rows of whose step or rollout a later attempt has rows, [n]."""
        written = np.concatenate([np.zeros(0, bool), *self._written])
        if all(keys.num_columns == 1 for keys in self._keys):
            return np.zeros(int(written.sum()), bool)
        flags = np.zeros(len(written), bool)
        tables = [pa.Table.from_batches([keys]) for keys in self._keys]
        rows = pa.concat_tables([_KEYS.empty_table(), *tables], promote_options="default")
        for name, keys in _UNITS.items():
            known = np.flatnonzero(rows[_IDENTITY[name]].is_valid().to_numpy())
            unit = np.zeros(len(known), np.int64)
            for key in keys:
                codes = pc.rank(rows[key].take(known), "ascending", tiebreaker="dense")
                unit = np.unique(unit * (len(known) + 1) + codes.to_numpy(), return_inverse=True)[1]
            attempts = rows[name].fill_null(-1).to_numpy()[known]
            flags[known] |= superseded(unit, attempts)
        return np.asarray(flags[written])
