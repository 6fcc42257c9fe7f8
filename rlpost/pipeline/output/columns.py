"""The columns that are written: their names and types, and their values for a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.errors import DataError, UsageError
from rlpost.io.arrow import to_arrow, to_numpy
from rlpost.io.parquet.inputs import COMBINED, COMPUTED, MASK_KEY
from rlpost.kernels.corrections import RESPONSE_LEVELS
from rlpost.kernels.segments import spread
from rlpost.pipeline.stages.tokens import kept_mask, place_rewards
from rlpost.recipe.recipe import ROW_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from rlpost.kernels.arrays import Array
    from rlpost.pipeline.data import Batch, Column
    from rlpost.pipeline.resolved import ResolvedRecipe


FLOATS = pa.list_(pa.field("element", pa.float32()))
FLAGS = pa.list_(pa.field("element", pa.uint8()))
TYPES = {
    "advantages": FLOATS,
    "returns": FLOATS,
    "raw_advantages": FLOATS,
    "token_level_rewards": FLOATS,
    "kl": FLOATS,
    "engine_log_ratio": FLOATS,
    "is_weight": FLOATS,
    "pg_loss": FLOATS,
    "clip_state": FLAGS,
    "loss_gradient": FLOATS,
    "final_response_mask": FLAGS,
    "response_advantage": pa.float32(),
    "response_level_rewards": pa.float32(),
    "sample_mask": pa.bool_(),
    "sample_weight": pa.float32(),
    "group_mean": pa.float32(),
    "group_std": pa.float32(),
    "group_size": pa.int32(),
    "group_pass_rate": pa.float32(),
}
_DTYPES = {
    pa.float32(): "float32",
    pa.int32(): "int32",
    pa.uint8(): "uint8",
    pa.bool_(): "bool",
}
_FINITE = frozenset(
    name
    for name, kind in TYPES.items()
    if kind in (FLOATS, pa.float32()) and name not in ("pg_loss", "loss_gradient")
)  # a loss without a bound on its ratio may be infinite


def emitted(resolved: ResolvedRecipe) -> tuple[str, ...]:
    """Return the names of the columns to write.

    Raises:
        UsageError: --emit has a column that this recipe does not compute.
    """
    for name, needs in not_computed(resolved, resolved.written).items():
        raise UsageError(f"--emit {name} needs {needs}")
    return resolved.written


def not_computed(resolved: ResolvedRecipe, names: Collection[str]) -> dict[str, str]:
    """Return the columns, of some, that a recipe does not compute, with what each needs."""
    recipe = resolved.recipe
    per_token = (
        f"one advantage per response, but estimator {resolved.estimator.name} computes one per "
        "token with this recipe; --emit advantages,returns writes these"
    )
    missing = {
        "sample_weight": (
            not recipe.weighs_responses,
            "--difficulty-weight, --length-weight or --age-decay",
        ),
        "is_weight": (recipe.is_weight is None, "--is-weight"),
        "kl": (not resolved.has_kl, "old_log_probs and ref_log_probs in the input"),
        "response_advantage": (not resolved.constant, per_token),
    }
    if resolved.rows_only:
        tokens = "tokens, and the input has none; response_advantage has one number per response"
        missing |= {name: (True, tokens) for name in names if name not in ROW_COLUMNS}
    return {name: missing[name][1] for name in names if missing.get(name, (False, ""))[0]}


def mask_metadata(resolved: ResolvedRecipe, names: tuple[str, ...]) -> dict[str, str]:
    """Return the metadata entry of a written `sample_mask`, by which a later run recognises it."""
    if "sample_mask" not in names:
        return {}
    return {MASK_KEY.decode(): COMBINED if resolved.input_mask == "sample_mask" else COMPUTED}


def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of the written columns."""
    return pa.schema([pa.field(name, TYPES[name]) for name in names])


def constant_per_response(resolved: ResolvedRecipe) -> frozenset[str]:
    """Return the token columns with one value per response, for a shorter encoding."""
    names = {"final_response_mask"}
    if resolved.constant:
        names |= {"advantages", "returns", "raw_advantages"}
    weight = resolved.recipe.is_weight
    if weight is not None and weight.level in RESPONSE_LEVELS:
        names |= {"is_weight"}
    return frozenset(names)


def written_columns(
    batch: Batch, resolved: ResolvedRecipe, names: tuple[str, ...]
) -> dict[str, Array]:
    """Return the written columns of a batch to which all stages were applied, in their types.

    Numbers beyond float32 become infinite, which `record_batch` finds. Equal columns are one
    object. Columns of tokens are on the device of the batch, the others on the CPU.
    """
    batch = batch.without_left_out()
    columns: dict[str, Array] = {}
    stored: dict[int, Array] = {}
    for name in names:
        kind = TYPES[name]
        if not pa.types.is_list(kind):
            columns[name] = _row_values(batch, name).astype(_DTYPES[kind])
            continue
        values = token_column(batch, resolved, name)
        batch = batch.with_(**{name: values})  # keeps `values` alive, so that ids stay unique
        dtype = getattr(batch.xp, _DTYPES[kind.value_type])
        columns[name] = stored.setdefault(id(values), batch.xp.astype(values, dtype))
    return columns


def record_batch(
    columns: Mapping[str, NDArray[Any]], offsets: NDArray[np.int64], row_name: Callable[[int], str]
) -> pa.RecordBatch:
    """Return written columns as Arrow.

    Args:
        columns: from `written_columns`, on the CPU.
        offsets: [n+1] of the responses.
        row_name: returns the name of a row of the batch for errors: its file and its number.

    Raises:
        DataError: a result is beyond the range of float32.
    """
    names, arrays = tuple(columns), {}
    lists = any(pa.types.is_list(TYPES[name]) for name in names)
    bounds = to_arrow(offsets, pa.int32()) if lists else None
    tokens: dict[int, pa.Array] = {}  # one Arrow array for each: equal columns share memory
    for name, values in columns.items():
        kind = TYPES[name]
        if not pa.types.is_list(kind):
            arrays[name] = to_arrow(values, kind)
            _check_finite(arrays[name], name, row_name)
            continue
        if id(values) not in tokens:
            flat = to_arrow(values, kind.value_type)
            _check_finite(flat, name, lambda token: row_name(_row_of(bounds, token)))
            tokens[id(values)] = pa.ListArray.from_arrays(bounds, flat, type=kind)
        arrays[name] = tokens[id(values)]
    return pa.record_batch([arrays[name] for name in names], schema=schema_of(names))


def _row_of(offsets: pa.Array, token: int) -> int:
    """Return the row of a token of a batch."""
    return int(np.searchsorted(to_numpy(offsets), token, side="right")) - 1


def _check_finite(arrays: pa.Array, name: str, row_name: Callable[[int], str]) -> None:
    """Raise DataError for a result beyond the range of float32, which is never written as inf."""
    if name not in _FINITE:
        return
    finite = np.isfinite(to_numpy(arrays))
    if not finite.all():
        first = int(np.flatnonzero(~finite)[0])
        raise DataError(
            f"{row_name(first)}: the computed `{name}` is beyond the range of float32 (3.4e38); "
            "scale the rewards down, or clip them with --reward-clip"
        )


def _row_values(batch: Batch, name: str) -> Column:
    """Return a written column of responses, [n]; a dropped response has the advantage 0."""
    rows = batch.table
    if name == "response_advantage":
        return np.where(rows["kept"], rows["credit"], 0.0)
    return rows["rewards" if name == "response_level_rewards" else name]


def token_column(batch: Batch, resolved: ResolvedRecipe, name: str) -> Array:
    """Return a written token column, [T]; responses with one advantage repeat it."""
    if name == "final_response_mask":
        return kept_mask(batch)
    if name == "token_level_rewards":
        if name not in batch:  # no stage needed the one terminal reward of each response
            batch = place_rewards(batch, recipe=resolved.recipe)
        return batch.only(batch[name])
    if name in batch:
        return batch[name]
    rows = batch.responses
    credit = rows[_CREDIT[name]] if _CREDIT[name] in rows else rows["credit"]
    if name == "returns" and resolved.same_returns and "advantages" in batch:
        return batch["advantages"]
    xp = batch.xp
    kept = xp.astype(xp.where(rows["kept"], credit, 0.0), xp.float32)
    tokens = batch.only(spread(kept, batch.offsets))
    return xp.where(batch["accepted"], tokens, 0.0) if "accepted" in batch else tokens


_CREDIT = {"advantages": "credit", "returns": "credit_returns", "raw_advantages": "raw_credit"}
