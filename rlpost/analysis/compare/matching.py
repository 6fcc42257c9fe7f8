"""Which rows of several inputs are the same response, and their token columns row by row."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.difference import ColumnChunk, column_chunk
from rlpost.analysis.responses import columns as lists
from rlpost.analysis.segments import segment_sums
from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.io.arrow import is_list, is_number
from rlpost.io.keys import KeyColumn, of_one_type, plain_keys
from rlpost.io.threads import prefetch
from rlpost.kernels.codes import joint_codes, ordinals_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source
    from rlpost.recipe.roles import ColumnMap

    Codes = NDArray[np.int64]


CHUNK_TOKENS = 1 << 20


# Roles and columns that identify a row.
KEY_ROLES = ("batch", "group", "rollout", "branch", "turn")


ID_COLUMNS = ("sample_id", "sample_index", "sample_idx", "rollout_index", "traj_idx")


@dataclass(frozen=True)
class RowKeys:
    """The keys that identify the rows of an input, and their rewards."""

    name: str
    count: int
    keys: dict[str, pa.ChunkedArray]
    """Role, or name of a column of sample ids -> values."""
    reward: NDArray[np.float64]
    """[N]; NaN without such a column."""

    def label(self, key: str, row: int) -> Any:
        """Return a key of a row; None if the input has no such column."""
        return self.keys[key][row].as_py() if key in self.keys else None


@dataclass(frozen=True)
class Match:
    """The rows that all inputs have."""

    by: tuple[str, ...]
    """The keys; empty: rows are matched by position."""
    ordinal: bool
    """Several rows have the same keys and are matched by their order."""
    rows: list[Codes]
    """For each input, [m] row numbers, in the order of the first input."""


def read_keys(source: Source, columns: ColumnMap) -> RowKeys:
    """Stream the keys and rewards of an input; lists of rewards are summed."""
    candidates = {role: columns.column(role) for role in KEY_ROLES if role in columns}
    candidates |= {name: name for name in ID_COLUMNS if name in source.columns}
    schema = source.schemas[0]
    kinds = {name: schema.field(name).type for name in schema.names}
    keys = {
        key: name
        for key, name in candidates.items()
        if name not in kinds or not pa.types.is_nested(kinds[name])
    }
    reward = columns.column("reward") if "reward" in columns else None
    names = [*dict.fromkeys([*keys.values(), *([reward] if reward else [])])]
    values: dict[str, list[pa.Array]] = {key: [] for key in keys}
    rewards = [np.zeros(0)]
    for chunk in source.read(names or source.columns[:1], CHUNK_TOKENS, reward or ""):
        for key, name in keys.items():
            values[key].append(plain_keys(chunk.table.column(name)))
        missing = np.full(chunk.table.num_rows, np.nan)
        rewards.append(_rewards(chunk.table.column(reward)) if reward else missing)
    key_columns = {
        key: pa.chunked_array(of_one_type(parts)) for key, parts in values.items() if parts
    }
    return RowKeys(source.name, source.rows, key_columns, np.concatenate(rewards))


def _rewards(array: pa.Array) -> NDArray[np.float64]:
    if is_list(array.type):
        offsets, values = lists.flat(array)
        return segment_sums(values, offsets)
    return lists.numbers(array) if is_number(array.type) else np.full(len(array), np.nan)


def match(inputs: Sequence[RowKeys]) -> Match:
    """Match the rows of inputs: by the keys that all have, else by position.

    Raises:
        DataError: there are no keys and the numbers of rows differ, or no row is in all inputs.
    """
    keys = [key for key in inputs[0].keys if all(key in other.keys for other in inputs[1:])]
    counts = {side.count for side in inputs}
    if not keys:
        if len(counts) > 1:
            raise DataError(
                f"{_names_and_counts(inputs)}: without a column that identifies rows (prompt_id, "
                "step, sample_id, ...) they are matched by position and need the same number of "
                "rows"
            )
        return Match((), ordinal=False, rows=[np.arange(side.count) for side in inputs])
    codes = _codes(inputs, keys)
    ordinals = [ordinals_of(code) for code in codes]
    ordinal = any(bool(order.any()) for order in ordinals)
    most = 1 + max(int(order.max(initial=0)) for order in ordinals)
    full = [code * most + order for code, order in zip(codes, ordinals, strict=True)]
    rows = _common_rows(full)
    if not len(rows[0]):
        raise DataError(
            f"{_names_and_counts(inputs)}: no row has the same {', '.join(keys)} in all of them"
        )
    return Match(tuple(keys), ordinal, rows)


def _names_and_counts(inputs: Sequence[RowKeys]) -> str:
    return ", ".join(f"{keys.name} ({counted(keys.count, 'row')})" for keys in inputs)


def _codes(inputs: Sequence[RowKeys], keys: Sequence[str]) -> list[Codes]:
    """Return a number for each row that is equal if all keys are equal, over all inputs."""
    chunks = ([chunk for side in inputs for chunk in side.keys[key].chunks] for key in keys)
    joint = joint_codes(*(KeyColumn.of(column).codes for column in chunks))
    return np.split(joint, np.cumsum([side.count for side in inputs])[:-1])


def _common_rows(codes: list[Codes]) -> list[Codes]:
    """Return the rows whose codes all inputs have, in the order of the first input."""
    shared = codes[0]
    for other in codes[1:]:
        shared = shared[np.isin(shared, other)]
    rows = []
    for code in codes:
        order = np.argsort(code, kind="stable")
        rows.append(order[np.searchsorted(code, shared, sorter=order)])
    return rows


def read_column(source: Source, column: str) -> Generator[ColumnChunk]:
    """Yield a column of an input in its order, read ahead in a thread."""
    chunks = source.read([column], CHUNK_TOKENS, column)
    yield from prefetch((column_chunk(chunk.table.column(column)) for chunk in chunks), 1)


def select_rows(
    stream: Generator[ColumnChunk], rows: NDArray[np.int64], count: int
) -> Generator[ColumnChunk]:
    """Return these rows of a stream, in this order.

    Increasing row numbers need a single pass. Others need a temporary file with the column's
    values as float32, so that memory is bounded for any order.

    Args:
        stream: the whole column.
        rows: [m] row numbers.
        count: rows of the stream.
    """
    if len(rows) == count and np.array_equal(rows, np.arange(count)):
        return stream
    return _filter_rows(stream, rows) if (np.diff(rows) > 0).all() else _reorder_rows(stream, rows)


def _filter_rows(stream: Generator[ColumnChunk], rows: NDArray[np.int64]) -> Generator[ColumnChunk]:
    first = 0
    for chunk in stream:
        last = first + len(chunk.lengths)
        low, high = np.searchsorted(rows, [first, last])
        keep = np.zeros(len(chunk.lengths), dtype=np.bool_)
        keep[rows[low:high] - first] = True
        yield ColumnChunk(chunk.lengths[keep], chunk.values[np.repeat(keep, chunk.lengths)])
        first = last


def _reorder_rows(
    stream: Generator[ColumnChunk], rows: NDArray[np.int64]
) -> Generator[ColumnChunk]:
    with tempfile.TemporaryFile() as file:
        parts = []
        for chunk in stream:
            parts.append(chunk.lengths)
            chunk.values.astype(np.float32).tofile(file)
        file.flush()
        lengths = np.concatenate(parts)
        if not lengths.sum():
            yield ColumnChunk(lengths[rows], np.zeros(0))
            return
        stored = np.memmap(file, dtype=np.float32, mode="r")
        starts = lengths.cumsum() - lengths
        bounds = np.searchsorted(lengths[rows].cumsum(), np.arange(0, lengths.sum(), CHUNK_TOKENS))
        for part in np.split(rows, np.unique(bounds[1:])):
            sizes = lengths[part]
            tokens = np.arange(sizes.sum()) + np.repeat(
                starts[part] - (sizes.cumsum() - sizes), sizes
            )
            yield ColumnChunk(sizes, stored[tokens].astype(np.float64))
