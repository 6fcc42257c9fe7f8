"""Which rows of several inputs are the same response, and their token columns row by row."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.analysis.difference import ColumnChunk
from rlpost.analysis.responses import columns as lists
from rlpost.display.text import counted
from rlpost.errors import DataError
from rlpost.io.arrow import is_list, is_number, plain_keys
from rlpost.io.keys import KeyColumn, of_one_type
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.kernels.codes import joint_codes, ordinals_of
from rlpost.kernels.segments import segment_sum

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from rlpost.io.parquet.source import Source, TableSource
    from rlpost.recipe.roles import ColumnMap

    Codes = NDArray[np.int64]


# Roles and columns that identify a row.
KEY_ROLES = ("batch", "group", "rollout", "branch", "turn")
ID_COLUMNS = ("sample_id", "sample_index", "sample_idx", "rollout_index", "traj_idx")


@dataclass(frozen=True)
class RowKeys:
    """The keys of the rows of an input, and their rewards."""

    source: Source | TableSource
    roles: ColumnMap
    keys: dict[str, pa.ChunkedArray]
    """Role, or name of a column of sample ids -> values; `domain` identifies no row."""
    reward: NDArray[np.float64]
    """[N]; NaN without such a column."""

    @property
    def name(self) -> str:
        """Of the input."""
        return self.source.name

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.source.rows

    def distinct(self, rows: Codes, role: str) -> int | None:
        """Return how many keys of a role some rows have, by step and prompt; None without it."""
        if role not in self.keys:
            return None
        keys = [self.keys[name] for name in ("batch", "group", role) if name in self.keys]
        joint = joint_codes(*(KeyColumn.of(column.take(rows).chunks).codes for column in keys))
        return len(np.unique(joint))

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


def read_keys(source: Source | TableSource, columns: ColumnMap) -> RowKeys:
    """Stream the keys and rewards of an input; lists of rewards are summed."""
    keys = {role: columns.column(role) for role in (*KEY_ROLES, "domain") if role in columns}
    keys |= {name: name for name in ID_COLUMNS if name in source.columns}
    types = dict(zip(source.schemas[0].names, source.schemas[0].types, strict=True))
    keys = {key: n for key, n in keys.items() if n not in types or not pa.types.is_nested(types[n])}
    reward = columns.column("reward") if "reward" in columns else ""
    names = [*dict.fromkeys([*keys.values(), *([reward] if reward else [])])]
    values: dict[str, list[pa.Array]] = {key: [] for key in keys}
    rewards = [np.zeros(0)]
    for chunk in source.read(names or source.columns[:1], CHUNK_TOKENS, reward):
        for key, name in keys.items():
            values[key].append(plain_keys(chunk.table.column(name)))
        missing = np.full(chunk.table.num_rows, np.nan)
        rewards.append(_rewards(chunk.table.column(reward)) if reward else missing)
    key_columns = {
        key: pa.chunked_array(of_one_type(parts)) for key, parts in values.items() if parts
    }
    return RowKeys(source, columns, key_columns, np.concatenate(rewards))


def _rewards(array: pa.Array) -> NDArray[np.float64]:
    if is_list(array.type):
        offsets, values = lists.flat(array)
        sums: NDArray[np.float64] = segment_sum(values, offsets)
        return sums
    return lists.numbers(array) if is_number(array.type) else np.full(len(array), np.nan)


def match(inputs: Sequence[RowKeys]) -> Match:
    """Match the rows of inputs: by the keys that all have, else by position.

    Raises:
        DataError: there are no keys and the numbers of rows differ, or no row is in all inputs.
    """
    shared = set.intersection(*({*side.keys} for side in inputs)) - {"domain"}
    keys = [key for key in inputs[0].keys if key in shared]
    counts = [side.count for side in inputs]
    names = ", ".join(f"{side.name} ({counted(side.count, 'row')})" for side in inputs)
    if len(inputs) == 1 or not keys:
        if len({*counts}) > 1:
            raise DataError(
                f"{names}: without a column that identifies rows (prompt_id, step, sample_id, ...) "
                "they are matched by position and need the same number of rows"
            )
        return Match((), ordinal=False, rows=[np.arange(count) for count in counts])
    chunks = ([chunk for side in inputs for chunk in side.keys[key].chunks] for key in keys)
    joint = joint_codes(*(KeyColumn.of(column).codes for column in chunks))
    codes = np.split(joint, np.cumsum(counts)[:-1])
    ordinals = [ordinals_of(code) for code in codes]
    most = 1 + max(int(order.max(initial=0)) for order in ordinals)
    rows = _common_rows([code * most + order for code, order in zip(codes, ordinals, strict=True)])
    if not len(rows[0]):
        raise DataError(f"{names}: no row has the same {', '.join(keys)} in all of them")
    return Match(tuple(keys), most > 1, rows)


def _common_rows(codes: list[Codes]) -> list[Codes]:
    """Return the rows whose codes all inputs have, in the order of the first input."""
    shared = codes[0]
    for other in codes[1:]:
        shared = shared[np.isin(shared, other)]
    orders = [np.argsort(code, kind="stable") for code in codes]
    return [
        order[np.searchsorted(code, shared, sorter=order)]
        for code, order in zip(codes, orders, strict=True)
    ]


def select_rows(stream: Generator[ColumnChunk], rows: Codes, count: int) -> Generator[ColumnChunk]:
    """Yield these rows of a stream, in this order.

    Unless these are all rows in their order, a temporary file has the values of the column, so that
    memory is bounded for any order.

    Args:
        stream: the whole column.
        rows: [m] row numbers.
        count: rows of the stream.
    """
    if np.array_equal(rows, np.arange(count)):
        yield from stream
        return
    with tempfile.TemporaryFile() as file:
        parts = [np.zeros(0, np.int64)]
        for chunk in stream:
            parts.append(chunk.lengths)
            chunk.values.tofile(file)
        file.flush()
        lengths = np.concatenate(parts)
        ends, stored = lengths.cumsum(), np.zeros(0)
        if lengths.any():
            stored = np.memmap(file, np.float64, mode="r")
        cuts = np.searchsorted(lengths[rows].cumsum(), np.arange(0, len(stored), CHUNK_TOKENS))
        for part in np.split(rows, np.unique(cuts[1:])):
            sizes = lengths[part]
            first = (ends - lengths)[part] - (sizes.cumsum() - sizes)
            yield ColumnChunk(sizes, stored[np.arange(sizes.sum()) + np.repeat(first, sizes)])
