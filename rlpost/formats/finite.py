"""Numbers of converted rows that are no finite ones: counted, or refused with their record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError
from rlpost.formats.canonical import TOKEN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

_TOKENS = tuple(
    name
    for name, kind in TOKEN_COLUMNS.items()
    if pa.types.is_floating(kind.value_type) and not name.startswith("dumped_")
)


def unfit(batch: pa.RecordBatch) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Columns with numbers that other commands refuse, and the rows [k] of those numbers.

    These are rewards that are NaN, infinite or null, and NaN or infinite token numbers where the
    mask is 1. A row stands there once for each number.
    """
    if "reward" in batch.schema.names:
        rewards = batch.column("reward").to_numpy(zero_copy_only=False)
        if len(bad := np.flatnonzero(~np.isfinite(rewards.astype(np.float64)))):
            yield "reward", bad
    mask = None
    for name in _TOKENS:
        if name not in batch.schema.names:
            continue
        array = batch.column(name)
        values = array.flatten().to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):  # the sum of infinities of both signs
            if np.isfinite(values.sum(dtype=np.float64)):
                continue
        if mask is None and "response_mask" in batch.schema.names:
            mask = batch.column("response_mask").flatten().to_numpy() == 1
        wrong = np.flatnonzero(~np.isfinite(values) & (True if mask is None else mask))
        offsets = array.offsets.to_numpy() - array.offsets[0].as_py()
        if len(wrong):
            yield name, np.searchsorted(offsets, wrong, side="right") - 1


def check_finite(batch: pa.RecordBatch, where: Callable[[int], str]) -> None:
    """Refuse rows with such a number.

    Args:
        batch: canonical columns.
        where: names a row of the batch.

    Raises:
        DataError: for the first such row.
    """
    found = [(int(rows[0]), name) for name, rows in unfit(batch)]
    if found:
        row, name = min(found)
        raise DataError(
            f"{where(row)}: `{name}` {_came(batch, name, row)}; finite numbers are needed with "
            "--nonfinite error, --nonfinite keep keeps it"
        )


def _came(batch: pa.RecordBatch, name: str, row: int) -> str:
    value = batch.column(name)[row].as_py()
    if name == "reward":
        return f"is {_word(value)}"
    mask = (
        batch.column("response_mask")[row].as_py()
        if "response_mask" in batch.schema.names
        else None
    )
    at = next(
        place
        for place, one in enumerate(value)
        if not np.isfinite(one) and (mask is None or mask[place])
    )
    return f"has {_word(value[at])} at token {at}"


def _word(value: float | None) -> str:
    """NaN is also what formats make of null."""
    if value is None:
        return "null"
    return "NaN (or null)" if np.isnan(value) else str(value)
