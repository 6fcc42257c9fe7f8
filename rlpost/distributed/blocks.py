"""Blocks: rows of responses in Arrow IPC format, whose batches are read independently.

A block is stored in a file, or in memory that the processes of a machine share. It has one
compressed record batch for each task that will read from it, and facts about all of its rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rlpost.io.keys import of_one_type
from rlpost.pipeline.data import Responses
from rlpost.pipeline.totals import SummaryCells

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlpost.pipeline.data import Column


Json = dict[str, Any]
_FACTS = b"rlpost.facts"
_KEY = "key:"  # what the names of key columns begin with


@dataclass(frozen=True)
class ArrowBlock:
    """Record batches of one schema, in memory or in a mapped file."""

    rows: pa.Buffer
    shared: pa.Buffer | None = None
    """Numbers that all rows share; a block itself."""

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each batch."""
        sizes: list[int] = self.facts["sizes"]
        return sizes

    @property
    def facts(self) -> Json:
        """Facts about all rows."""
        facts: Json = json.loads(pa.ipc.open_file(self.rows).schema.metadata[_FACTS])
        return facts

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one of the batches, without reading the others."""
        return pa.ipc.open_file(self.rows).get_batch(number)

    def table(self) -> pa.Table:
        """Return all batches, in order."""
        return pa.ipc.open_file(self.rows).read_all()

    def responses(self, number: int | None = None) -> Responses:
        """Return the responses of one batch, or of all, of a block from `responses_block`."""
        facts = self.facts
        table = self.table() if number is None else self.batch(number)
        shared = {} if self.shared is None else arrays_of(ArrowBlock(self.shared).table())
        columns, labels = arrays_of(table), facts["labels"]
        cells, columns["cell"] = SummaryCells.of(
            columns["step"], labels["step"], columns["domain"], labels["domain"]
        )
        return Responses(columns, labels, facts["notes"], shared, cells)


def responses_block(responses: Responses, sizes: Sequence[int], notes: Json) -> ArrowBlock:
    """Return a table of responses as a block.

    Args:
        responses: the table.
        sizes: rows of each batch; they add up to the rows of the table.
        notes: those of the table's notes that readers need.
    """
    table = pa.table({name: _array(column) for name, column in responses.columns.items()})
    labels = {name: list(values) for name, values in responses.labels.items()}
    shared = {name: _array(column) for name, column in responses.shared.items()}
    own = arrow_block(pa.table(shared), None, {}).rows if shared else None
    return ArrowBlock(arrow_block(table, sizes, {"labels": labels, "notes": notes}).rows, own)


def arrow_block(table: pa.Table, sizes: Sequence[int] | None, facts: Json) -> ArrowBlock:
    """Return a table as a block.

    Args:
        table: any.
        sizes: rows of each batch, which add up to those of the table; None for one batch.
        facts: about all rows; plain data.
    """
    sizes = [table.num_rows] if sizes is None else list(sizes)
    assert sum(sizes) == table.num_rows
    facts = {**facts, "sizes": sizes}
    schema = table.schema.with_metadata({_FACTS: json.dumps(facts).encode()})
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    table, row = table.combine_chunks(), 0
    with pa.ipc.new_file(out, schema, options=options) as writer:
        for size in sizes:
            # An empty slice has no chunk, but a batch without rows is a batch too.
            batches = table.slice(row, size).combine_chunks().to_batches()
            writer.write_batch(batches[0] if batches else _empty(schema))
            row += size
    return ArrowBlock(out.getvalue())


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def columns_of(batch: pa.RecordBatch) -> dict[str, Column | pa.Array]:
    """Return the columns of a batch of a `keyed_table`, as `Collector.add` needs them."""
    keys = {name.removeprefix(_KEY): batch[name] for name in batch.schema.names if _is_key(name)}
    numbers = [name for name in batch.schema.names if not _is_key(name)]
    return {**keys, **arrays_of(batch.select(numbers))}


def _is_key(name: str) -> bool:
    return name.startswith(_KEY)


def keyed_table(chunks: Sequence[Mapping[str, Column | pa.Array]]) -> pa.Table:
    """Return keys and numbers of consecutive chunks as a table whose names mark the keys."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name in chunks[0] if chunks else ():
        parts = [chunk[name] for chunk in chunks]
        if isinstance(parts[0], np.ndarray):
            columns[name] = pa.chunked_array([_array(part) for part in parts])
        else:
            columns[_KEY + name] = pa.chunked_array(of_one_type(parts))
    return pa.table(columns)


def key_column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Return a key of a `keyed_table`; None if it has no key of that name."""
    return table[_KEY + name] if _KEY + name in table.schema.names else None


def table_of(chunks: Sequence[Mapping[str, Column]]) -> pa.Table:
    """Return numbers of consecutive chunks as a table."""
    names = chunks[0] if chunks else ()
    return pa.table({n: pa.chunked_array([_array(chunk[n]) for chunk in chunks]) for n in names})


def arrays_of(table: pa.Table | pa.RecordBatch) -> dict[str, Column]:
    """Return the columns as arrays that own their memory."""
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    return {name: whole[name].to_numpy().copy() for name in whole.schema.names}


def _array(column: Column) -> pa.Array:
    assert column.ndim == 1, "a column of responses has one number each"
    return pa.array(np.ascontiguousarray(column))
