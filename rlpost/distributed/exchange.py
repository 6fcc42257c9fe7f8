"""Sheets: rows of responses as Arrow IPC, of which any part can be taken without the others.

A sheet lies in a file, or in the memory that the processes of a machine share. It has one record
batch for each task that will read of it, compressed by itself, and says of its rows what all of
them have in common.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from torch import Tensor

from rlpost.pipeline.data import Responses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Json = dict[str, Any]
_FACTS = b"rlpost.facts"
_KEY = "key:"


@dataclass(frozen=True)
class ArrowBlock:
    """Record batches of one schema, as they lie in memory or in a mapped file."""

    rows: pa.Buffer
    shared: pa.Buffer | None = None
    """Numbers that all rows need, besides their own; a sheet itself."""

    @property
    def sizes(self) -> list[int]:
        """How many rows each batch has."""
        found: list[int] = self.facts["sizes"]
        return found

    @property
    def facts(self) -> Json:
        """What holds for all rows."""
        found: Json = json.loads(pa.ipc.open_file(self.rows).schema.metadata[_FACTS])
        return found

    def batch(self, place: int) -> pa.RecordBatch:
        """One of the batches; the others are not looked at."""
        return pa.ipc.open_file(self.rows).get_batch(place)

    def whole(self) -> pa.Table:
        """All batches, in order."""
        return pa.ipc.open_file(self.rows).read_all()

    def responses(self, place: int | None = None) -> Responses:
        """The table of responses of one batch, or of all, where `sheet_of` made the sheet."""
        facts = self.facts
        table = self.whole() if place is None else self.batch(place)
        shared = {} if self.shared is None else tensors_of(ArrowBlock(self.shared).whole())
        return Responses(tensors_of(table), facts["labels"], facts["notes"], shared)


def responses_block(responses: Responses, sizes: Sequence[int], notes: Json) -> ArrowBlock:
    """A table of responses as a sheet, with one batch for each run of rows.

    Args:
        responses: the table.
        sizes: rows of each batch.
        notes: what of the table's notes those who read it need.
    """
    table = pa.table({name: _array(column) for name, column in responses.columns.items()})
    labels = {name: list(values) for name, values in responses.labels.items()}
    shared = {name: _array(column) for name, column in responses.shared.items()}
    own = block(pa.table(shared), None, {}).rows if shared else None
    return ArrowBlock(block(table, sizes, {"labels": labels, "notes": notes}).rows, own)


def block(table: pa.Table, sizes: Sequence[int] | None, facts: Json) -> ArrowBlock:
    """A table as a sheet, with one batch for each run of rows; None for one batch of all.

    Args:
        table: any.
        sizes: rows of each batch, which add up to those of the table.
        facts: what holds for all rows; plain data.
    """
    sizes = [table.num_rows] if sizes is None else list(sizes)
    assert sum(sizes) == table.num_rows
    facts = {**facts, "sizes": sizes}
    schema = table.schema.with_metadata({_FACTS: json.dumps(facts).encode()})
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    table, at = table.combine_chunks(), 0
    with pa.ipc.new_file(out, schema, options=options) as writer:
        for size in sizes:
            # An empty slice has no chunk, and a batch of no rows is a batch all the same.
            part = table.slice(at, size).combine_chunks().to_batches()
            writer.write_batch(part[0] if part else _empty(schema))
            at += size
    return ArrowBlock(out.getvalue())


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def columns_of(batch: pa.RecordBatch) -> dict[str, Tensor | pa.Array]:
    """The columns as `Collector.add` takes them; those of `keyed_table`."""
    keys = {name.removeprefix(_KEY): batch[name] for name in batch.schema.names if _is_key(name)}
    numbers = [name for name in batch.schema.names if not _is_key(name)]
    return {**keys, **tensors_of(batch.select(numbers))}


def _is_key(name: str) -> bool:
    return name.startswith(_KEY)


def keyed_table(chunks: Sequence[Mapping[str, Tensor | pa.Array]]) -> pa.Table:
    """Keys and numbers of consecutive rows as a table, which says which are keys."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name in chunks[0] if chunks else ():
        parts = [chunk[name] for chunk in chunks]
        if isinstance(parts[0], Tensor):
            columns[name] = pa.chunked_array([_array(part) for part in parts])
        else:
            columns[_KEY + name] = pa.chunked_array(of_one_type(parts))
    return pa.table(columns)


def key_column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    """A key of a `keyed_table`; None where there is none of that name."""
    return table[_KEY + name] if _KEY + name in table.schema.names else None


def of_one_type(keys: Sequence[pa.Array]) -> list[pa.Array]:
    """Keys as strings, where some are numbers and some are not."""
    if len({part.type for part in keys}) == 1:
        return list(keys)
    return [part.cast(pa.string()) for part in keys]


def table_of(parts: Sequence[Mapping[str, Tensor]]) -> pa.Table:
    """Columns of numbers of consecutive pieces as a table."""
    names = parts[0] if parts else ()
    return pa.table({n: pa.chunked_array([_array(part[n]) for part in parts]) for n in names})


def tensors_of(table: pa.Table | pa.RecordBatch) -> dict[str, Tensor]:
    """The columns as tensors of their own memory."""
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    return {name: torch.from_numpy(whole[name].to_numpy().copy()) for name in whole.schema.names}


def _array(column: Tensor) -> pa.Array:
    assert column.dim() == 1, "a column of responses has one number each"
    return pa.array(column.contiguous().numpy())
