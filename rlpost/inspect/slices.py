"""The rows of each step and of each domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from rlpost.inspect.model import Slice
from rlpost.inspect.statistics import mean_of, spread_of

if TYPE_CHECKING:
    from rlpost.inspect.model import Label


def slices_of(
    rows: pl.DataFrame, groups: pl.DataFrame | None, key: str, pass_threshold: float
) -> list[Slice]:
    """Facts of the rows of each step (`batch`) or `domain`, in order; none without the column.

    Steps that are whole numbers come in their order, other ones as in the input; domains by name.
    """
    if key not in rows:
        return []
    parts = rows.drop_nulls(key).partition_by(key, maintain_order=True, as_dict=True)
    labels = [label for (label,) in parts]
    by_label = None
    if key == "batch" and groups is not None and "equal" in groups:
        by_label = dict(
            groups.filter(pl.col("rows") > 1).group_by("batch").agg(pl.mean("equal")).iter_rows()
        )
    return [
        _slice(label, parts[(label,)], pass_threshold, (by_label or {}).get(label))
        for label in _ordered(labels, key)
    ]


def _ordered(labels: list[Any], key: str) -> list[Any]:
    if key != "batch":
        return sorted(labels, key=str)
    try:
        return sorted(labels, key=int)
    except ValueError:
        return labels


def _slice(
    label: Label, rows: pl.DataFrame, pass_threshold: float, zero_variance: float | None
) -> Slice:
    rewards, lengths = _finite(rows, "reward"), _finite(rows, "tokens")
    kl = _finite(rows, "kl")
    compared = float(_finite(rows, "compared").sum())
    return Slice(
        label=label,
        responses=len(rows),
        tokens={"all": int(_finite(rows, "length").sum()), "policy": int(lengths.sum())},
        reward=spread_of(rewards),
        length=spread_of(lengths),
        truncated=float(rows["truncated"].mean() or 0) if "truncated" in rows else None,  # type: ignore[arg-type]
        pass_rate=float((rewards >= pass_threshold).mean()) if len(rewards) else None,
        zero_variance=zero_variance,
        kl=mean_of(kl),
        mismatch=float(_finite(rows, "k3").sum()) / compared if compared else None,
    )


def _finite(rows: pl.DataFrame, column: str) -> Any:
    """The finite numbers of a column; none where it is missing."""
    if column not in rows:
        return np.zeros(0)
    values = rows[column].to_numpy()
    return values[np.isfinite(values)]
