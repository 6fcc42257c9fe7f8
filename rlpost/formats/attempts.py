"""Attempts in dumps: of a run, which writes steps again after a restart, and of its rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

ATTEMPT = "run_attempt"
_UNITS = {ATTEMPT: ["step"], "attempt": ["step", "prompt_id", "rollout_id", ATTEMPT]}
"""Column of attempts -> the columns that name what its attempts write again."""
_IDENTITY = {ATTEMPT: ATTEMPT, "attempt": "rollout_id"}
"""Column of attempts -> the column without which a row is no attempt at something."""
KEYS = ("step", "prompt_id", "rollout_id", *_UNITS)
"""The columns that `Attempts` reads."""


class Attempts:
    """The attempts that have rows of each step and rollout, of all rows of a conversion."""

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def recorded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a dump, whether or not a condition keeps their rows."""
        for batch in batches:
            if not _UNITS.keys().isdisjoint(batch.schema.names):
                self._seen.append(_keys(batch).unique())
            yield batch

    @property
    def several(self) -> bool:
        """Whether any column of attempts has more than one."""
        numbers = {
            name: {x for frame in self._seen for x in frame[name].unique()} for name in _UNITS
        }
        return any(len(values) > 1 for values in numbers.values())

    def replaced(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return the rows of whose step or rollout a later attempt has rows, [n]."""
        import polars as pl  # noqa: PLC0415 - few dumps have attempts

        flags = np.zeros(len(rows), np.bool_)
        keys, seen = _keys(rows), pl.concat(self._seen)
        for name, units in _UNITS.items():
            known = pl.col(_IDENTITY[name]).is_not_null()
            newest = seen.filter(known).group_by(units).agg(newest=pl.col(name).fill_null(-1).max())
            joined = keys.join(
                newest, on=units, how="left", nulls_equal=True, maintain_order="left"
            )
            older = joined.select(known & (pl.col(name).fill_null(-1) < pl.col("newest")))
            flags |= older.to_series().fill_null(value=False).to_numpy()
        return flags


def _keys(rows: pa.RecordBatch | pa.Table) -> Any:
    """Return the columns of what attempts write again, and their numbers, as a frame."""
    import polars as pl  # noqa: PLC0415

    columns = {}
    for key in KEYS:
        kind = pa.string() if key.endswith("_id") else pa.float64()
        has = key in rows.schema.names
        column = rows.column(key) if has else pa.nulls(rows.num_rows)
        columns[key] = column.cast(kind, safe=False)
    return pl.from_arrow(pa.table(columns))
