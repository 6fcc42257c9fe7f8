"""Which rows of several inputs are the same response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlpost.analysis.responses import columns as lists
from rlpost.analysis.segments import segment_sums
from rlpost.errors import DataError
from rlpost.io.arrow import is_list, is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source
    from rlpost.recipe.roles import ColumnMap

    Codes = NDArray[np.int64]


_PIECE = 1 << 20
# Roles that tell rows apart, and columns that number samples or executions.
ROLES = ("batch", "group", "traj_id", "turn")
SAMPLES = ("sample_id", "sample_index", "sample_idx", "rollout_id", "rollout_index", "traj_idx")


@dataclass(frozen=True)
class Rows:
    """What tells the rows of an input apart, and their rewards."""

    name: str
    count: int
    keys: dict[str, pa.ChunkedArray]
    """By role, or by name for sample ids."""
    reward: NDArray[np.float64]
    """[N]; NaN where there is no such column."""

    def label(self, key: str, row: int) -> Any:
        """A key of a row; None where the input has no such column."""
        return self.keys[key][row].as_py() if key in self.keys else None


@dataclass(frozen=True)
class Match:
    """The rows that all inputs have."""

    by: tuple[str, ...]
    """The keys; empty: by position."""
    ordinal: bool
    """Several rows have the same keys: their order within tells them apart."""
    rows: list[Codes]
    """For each input, [m] row numbers, in the first input's order."""


def rows_of(source: Source, columns: ColumnMap) -> Rows:
    """Read the keys and rewards of an input, streaming; lists of rewards are summed."""
    named = {role: columns.column(role) for role in ROLES if role in columns}
    named |= {name: name for name in SAMPLES if name in source.columns}
    schema = source.schemas[0]
    kinds = {name: schema.field(name).type for name in schema.names}
    keys = {
        key: name
        for key, name in named.items()
        if name not in kinds or not pa.types.is_nested(kinds[name])
    }
    reward = columns.column("reward") if "reward" in columns else None
    wanted = [*dict.fromkeys([*keys.values(), *([reward] if reward else [])])]
    found: dict[str, list[pa.Array]] = {key: [] for key in keys}
    rewards = [np.zeros(0)]
    for piece in source.read(wanted or source.columns[:1], _PIECE, reward or ""):
        for key, name in keys.items():
            found[key].append(_plain(piece.table.column(name)))
        missing = np.full(piece.table.num_rows, np.nan)
        rewards.append(_numbers(piece.table.column(reward)) if reward else missing)
    chunked = {key: pa.chunked_array(_one_type(parts)) for key, parts in found.items() if parts}
    return Rows(source.name, source.rows, chunked, np.concatenate(rewards))


def _numbers(array: pa.Array) -> NDArray[np.float64]:
    if is_list(array.type):
        offsets, values = lists.flat(array)
        return segment_sums(values, offsets)
    return lists.numbers(array) if is_number(array.type) else np.full(len(array), np.nan)


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array.cast(pa.int64() if pa.types.is_integer(array.type) else pa.string())


def _one_type(parts: list[pa.Array]) -> list[pa.Array]:
    same = len({part.type for part in parts}) == 1
    return parts if same else [part.cast(pa.string()) for part in parts]


def match(inputs: Sequence[Rows]) -> Match:
    """Match the rows of inputs: by the keys that all have, else by position.

    Raises:
        DataError: no keys, and different numbers of rows; or no row that all inputs have.
    """
    keys = [key for key in inputs[0].keys if all(key in other.keys for other in inputs[1:])]
    counts = {one.count for one in inputs}
    if not keys:
        if len(counts) > 1:
            raise DataError(
                f"{_counted(inputs)}: without a column that tells rows apart (prompt_id, step, "
                "sample_id, ...) they are matched by position, and need as many rows each"
            )
        return Match((), ordinal=False, rows=[np.arange(one.count) for one in inputs])
    codes = _codes(inputs, keys)
    ordinals = [_ordinals(own) for own in codes]
    ordinal = any(bool(places.any()) for places in ordinals)
    most = 1 + max(int(places.max(initial=0)) for places in ordinals)
    full = [own * most + places for own, places in zip(codes, ordinals, strict=True)]
    rows = _common(full)
    if not len(rows[0]):
        raise DataError(f"{_counted(inputs)}: no row has the same {', '.join(keys)} in all of them")
    return Match(tuple(keys), ordinal, rows)


def _counted(inputs: Sequence[Rows]) -> str:
    return ", ".join(f"{one.name} ({one.count} rows)" for one in inputs)


def _codes(inputs: Sequence[Rows], keys: Sequence[str]) -> list[Codes]:
    """One number for each row: equal where all keys are, over all inputs."""
    joint = np.zeros(sum(one.count for one in inputs), dtype=np.int64)
    for key in keys:
        arrays = [chunk for one in inputs for chunk in one.keys[key].chunks]
        encoded = pa.chunked_array(_one_type(arrays)).combine_chunks()
        own = pc.rank(encoded, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
        joint = np.unique(joint * (int(own.max(initial=0)) + 1) + own, return_inverse=True)[1]
    ends = np.cumsum([one.count for one in inputs])[:-1]
    return [np.asarray(part, dtype=np.int64) for part in np.split(joint, ends)]


def _ordinals(codes: Codes) -> Codes:
    """Which of the rows of its code each row is, from 0."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(codes) else order
    counts = np.diff(np.append(starts, len(codes)))
    found = np.empty(len(codes), dtype=np.int64)
    found[order] = np.arange(len(codes)) - np.repeat(starts, counts)
    return found


def _common(codes: list[Codes]) -> list[Codes]:
    """Rows whose code all inputs have, in the first one's order; each has a code once."""
    shared = codes[0]
    for other in codes[1:]:
        shared = shared[np.isin(shared, other)]
    found = []
    for own in codes:
        order = np.argsort(own, kind="stable")
        found.append(order[np.searchsorted(own, shared, sorter=order)])
    return found
