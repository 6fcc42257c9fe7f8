"""The columns of an input that a log is compared with, read in chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rlpost.analysis.replay.input_columns import columns_of, common_schema
from rlpost.analysis.responses import columns as lists
from rlpost.io.arrow import is_list
from rlpost.io.parquet.source import Source
from rlpost.recipe.roles import ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rlpost.analysis.replay.input_columns import NamedColumns
    from rlpost.io.parquet.source import RowChunk

ADVANTAGES = "advantages"


@dataclass(frozen=True)
class RepeatedColumn:
    """A column of one number for each response, as one of lists with it for each token."""

    name: str
    """Of the lists."""
    column: str
    """Of the numbers."""
    lengths: str | None
    """Column of lists with the lengths of the responses; None: each has one token."""

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the lists of some rows."""
        values = lists.numbers(batch.column(self.column))
        counts = np.ones(batch.num_rows, np.int64)
        if self.lengths is not None:
            counts = lists.list_lengths(batch.column(self.lengths))
        offsets = np.concatenate([[0], counts.cumsum()])
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.repeat(values, counts)))


class ColumnsSource(Source):
    """Some columns of files, and one that is made of another; see `Source`."""

    repeated: RepeatedColumn | None = None

    def keep(self, names: Collection[str], repeated: RepeatedColumn | None = None) -> None:
        """Leave out all columns but some, and one that is made.

        Args:
            names: of the columns.
            repeated: one more column.
        """
        own = [pa.schema([one for one in schema if one.name in names]) for schema in self.schemas]
        self.columns = [name for name in self.columns if name in names]
        self.lacking = {name: file for name, file in self.lacking.items() if name in names}
        if repeated is not None:
            kind = pa.field(repeated.name, pa.large_list(pa.float64()))
            own = [schema.append(kind) for schema in own]
            self.columns.append(repeated.name)
        self.schemas, self.repeated = own, repeated

    def read_file(
        self,
        index: int,
        columns: Sequence[str],
        chunk_tokens: int,
        sized_by: str,
        groups: Collection[int] | None = None,
    ) -> Iterator[RowChunk]:
        """Read one file in chunks, as `Source.read_file`."""
        made = self.repeated
        if made is None or made.name not in (*columns, sized_by):
            yield from super().read_file(index, columns, chunk_tokens, sized_by, groups)
            return
        read = [made.column, *([made.lengths] if made.lengths else [])]
        read = [*dict.fromkeys([*(name for name in columns if name != made.name), *read])]
        sized = sized_by if sized_by != made.name else made.lengths or ""
        for chunk in super().read_file(index, read, chunk_tokens, sized, groups):
            arrays = [
                made.of(chunk.table) if name == made.name else chunk.table.column(name)
                for name in columns
            ]
            yield replace(chunk, table=pa.RecordBatch.from_arrays(arrays, names=[*columns]))


def columns_of_log(source: ColumnsSource, named: NamedColumns) -> dict[str, str]:
    """Return columns by role, and leave out those of an input that no log is compared with.

    Advantages of one number for each response become lists, with that number for each token.

    Raises:
        DataError: the input has no rows, or lacks a column that the user named.
    """
    schema, found = common_schema(source), columns_of(source, named)
    roles = {role: name for role, name in found.roles.columns.items() if role in ROLES}
    name, repeated = found.recorded.get(ADVANTAGES), None
    if name is not None and not is_list(schema.field(name).type):
        repeated = RepeatedColumn(f"{name} of tokens", name, found.length_column(schema))
    if name is not None:
        roles[ADVANTAGES] = name if repeated is None else repeated.name
    source.keep(found.read(schema, None), repeated)
    return roles
