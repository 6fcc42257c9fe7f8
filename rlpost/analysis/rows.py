"""What the rows of an input say: keys and numbers, also those that a run rejects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.display.reporter import SilentReporter
from rlpost.io import arrow as ragged
from rlpost.io.arrow import CellLocation, is_true
from rlpost.io.finish_reasons import truncations
from rlpost.io.keys import encode_keys, of_one_type
from rlpost.io.parquet.source import CHUNK_TOKENS
from rlpost.io.threads import prefetch
from rlpost.kernels.rewards import component_sum
from rlpost.pipeline.columns import LENGTH
from rlpost.pipeline.data import ATTEMPTS, FAILURE, TRUNCATED, UNKNOWN_REASON
from rlpost.pipeline.failures import failure_reasons
from rlpost.pipeline.rollout_order import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from rlpost.display.reporter import Reporter
    from rlpost.io.parquet.source import RowChunk, Source
    from rlpost.recipe.roles import ColumnMap


Rows = dict[str, Any]
KEYS = ("group", "batch", "domain", "rollout", *PLACE[1:])
"""The roles whose columns are keys."""
ROLES = (
    *KEYS, "reward", "turn", "turn_reward", "sample_mask", TRUNCATED, FAILURE, *ATTEMPTS, LENGTH,
)  # fmt: skip
"""The roles of which each row has one value."""
SAID = (*ROLES, "kept", "reward_null", "tokens", "length")
"""The names of what rows say, besides components of rewards."""


@dataclass(frozen=True)
class RowReader:
    """Reads the columns of ROLES; nothing in a row is an error, but a type that a role cannot have.

    Rows are, by name, keys as Arrow's dictionaries, and numbers, [n] each: NaN for none. Besides
    roles, there are `kept`, `reward_null`, `unknown_reason`, and `component:NAME`; the number of
    policy tokens is `tokens`.
    """

    source: Source
    columns: ColumnMap
    components: Mapping[str, float] = field(default_factory=dict)
    """The columns whose weighted sum is the reward, with their weights."""

    @property
    def names(self) -> list[str]:
        """The columns that chunks need."""
        served = (self.columns.column(role) for role in ROLES if role in self.columns)
        return list(dict.fromkeys([*served, *self.components]))

    def cells(self, chunk: RowChunk, name: str) -> tuple[pa.Array, CellLocation]:
        """Return a column of a chunk, and where it is."""
        path = str(self.source.files[chunk.file].path)
        return chunk.table.column(name), CellLocation(path, chunk.first_row, name)

    def rows(self, chunk: RowChunk) -> Rows:
        """Return what the rows of a chunk say.

        Raises:
            DataError: a column has neither numbers nor what its role needs.
        """
        rows: Rows = {}
        for role in (role for role in ROLES if role in self.columns):
            array, location = self.cells(chunk, self.columns.column(role))
            if role in KEYS:
                rows[role] = keys_of(array)
            elif role == FAILURE:
                rows[role] = encode_keys(failure_reasons(array, location))
            elif role == TRUNCATED:
                rows[role], unknown = truncations(array, location)
                rows[UNKNOWN_REASON] = encode_keys(unknown)
            elif role == "sample_mask":
                rows["kept"] = numbers_of(array, location) != 0
            else:
                rows["tokens" if role == LENGTH else role] = numbers_of(array, location)
        rewards = [*self.components] or [
            self.columns.column(role) for role in ("reward",) if role in self.columns
        ]
        if self.components:
            parts = {name: numbers_of(*self.cells(chunk, name)) for name in rewards}
            rows |= {f"component:{name}": values for name, values in parts.items()}
            values, weights = np.stack([*parts.values()], axis=1), [*self.components.values()]
            lacking = np.isnan(values).any(1)
            rows["reward"] = np.where(lacking, np.nan, component_sum(values, np.array(weights)))
        if rewards:
            nulls = [is_true(chunk.table.column(name).is_null()) for name in rewards]
            rows["reward_null"] = np.all(nulls, axis=0)
        return rows


def stream_chunks(
    source: Source, columns: Sequence[str], sized_by: str | None, purpose: str,
    reporter: Reporter | None = None,
) -> Iterator[RowChunk]:  # fmt: skip
    """Yield the chunks of an input, read ahead in a thread; report each one after its use."""
    reporter = reporter or SilentReporter()
    reporter.start(purpose, source.rows)
    names = list(columns) or source.columns[:1]
    for chunk in prefetch(source.read(names, CHUNK_TOKENS, sized_by or ""), 1):
        yield chunk
        reporter.advance(chunk.table.num_rows)


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of consecutive chunks; keys are texts if their types differ between files."""
    rows: Rows = {}
    for name in [*parts[0]] if parts else ():
        columns = [part.pop(name) for part in parts]
        if isinstance(columns[0], pa.Array):
            whole = pa.chunked_array(of_one_type(columns)).unify_dictionaries()
            rows[name] = whole.combine_chunks()
        else:
            rows[name] = np.concatenate(columns)
    return rows


def keys_of(array: pa.Array) -> pa.DictionaryArray:
    """Return keys as codes of whole numbers or texts; nulls are kept."""
    array = ragged.nan_as_null(array)
    if pa.types.is_floating(array.type) and not ragged.is_inexact(array).any():
        array = array.cast(pa.int64())
    return encode_keys(ragged.plain_keys(array))


def numbers_of(array: pa.Array, location: CellLocation) -> NDArray[np.float64]:
    """Return one float64 per row: the sum of a list; NaN for a null.

    Raises:
        DataError: neither a number nor a list of numbers.
    """
    values = np.full(len(array), np.nan)
    values[is_true(array.is_valid())] = ragged.numbers(array.drop_null(), location)
    return values
