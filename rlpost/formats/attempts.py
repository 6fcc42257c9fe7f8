"""Attempts in dumps: of a run, which writes steps again after a restart, and of its rollouts."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.io.arrow import is_number
from rlpost.kernels.codes import joint_codes
from rlpost.kernels.rollouts import superseded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

ATTEMPT = "run_attempt"
_UNITS: dict[str, tuple[str, ...]] = {
    ATTEMPT: ("step",),
    "attempt": ("step", "prompt_id", "rollout_id", ATTEMPT),
}
"""Column of attempts -> the columns that name what its attempts write again."""
_IDENTITY = {ATTEMPT: ATTEMPT, "attempt": "rollout_id"}
"""Column of attempts -> the column without which a row is no attempt at something."""
KEYS = ("step", "prompt_id", "rollout_id", *_UNITS)
"""The columns that `Attempts` reads."""


class Attempts:
    """The attempts that have rows of each step and rollout, of all rows of a conversion."""

    def __init__(self) -> None:
        self._seen: dict[str, list[pa.Table]] = {name: [] for name in _UNITS}

    def recorded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a dump, whether or not a condition keeps their rows."""
        for batch in batches:
            for name in _attempts_of(batch):
                keys = _keys(batch, name)
                self._seen[name].append(keys.group_by(keys.column_names).aggregate([]))
            yield batch

    @cached_property
    def several(self) -> set[str]:
        """The columns of attempts that have more than one, when all rows were recorded."""
        numbers = {
            name: pa.concat_tables(tables).column(name)
            for name, tables in self._seen.items()
            if tables
        }
        return {name for name, column in numbers.items() if len(pc.unique(column)) > 1}

    def replaced(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return the rows of whose step or rollout a later attempt has rows, [n]."""
        flags = np.zeros(len(rows), np.bool_)
        for name in _attempts_of(rows):
            keys = pa.concat_tables([_keys(rows, name), *self._seen[name]])
            codes = (
                keys.column(unit).combine_chunks().dictionary_encode("encode").indices.to_numpy()
                for unit in _UNITS[name]
            )
            older = superseded(joint_codes(*codes), keys.column(name).to_numpy())
            known = keys.column(_IDENTITY[name]).is_valid().to_numpy()
            flags |= (older & known)[: len(rows)]
        return flags


def _attempts_of(rows: pa.RecordBatch | pa.Table) -> list[str]:
    """Return the columns of attempts that are numbers, of what the rows name."""
    has = {*rows.schema.names}
    return [
        name
        for name, identity in _IDENTITY.items()
        if {name, identity} <= has and is_number(rows.schema.field(name).type)
    ]


def _keys(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Table:
    """Return what an attempt writes again and its number, which is -1 for null."""
    columns = {}
    for key in (*_UNITS[name], name):
        kind = pa.string() if key.endswith("_id") else pa.int64()
        has = key in rows.schema.names
        columns[key] = rows.column(key).cast(kind) if has else pa.nulls(rows.num_rows, kind)
    columns[name] = columns[name].fill_null(-1)
    return pa.table(columns)
