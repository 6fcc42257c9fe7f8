"""A table in memory, read in pieces as a file would be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.io.arrow import is_list
from rlpost.io.parquet.inputs import InputFile
from rlpost.io.parquet.source import RowChunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa


class TableSource:
    """An Arrow table with the reading interface of `Source`."""

    name = "table"

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.files = [InputFile(Path(self.name), Path(self.name))]
        self.schemas = [table.schema]
        self.first_rows = [0, table.num_rows]
        self.rows = table.num_rows
        self.columns = list(table.schema.names)
        self.metadata: dict[bytes, bytes] = dict(table.schema.metadata or {})

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Bytes of these columns in memory."""
        return int(self.table.select(list(columns)).nbytes)

    def read(self, columns: Sequence[str], chunk_tokens: int, sized_by: str) -> Iterator[RowChunk]:
        """These columns, in pieces of about `chunk_tokens` elements of one list column."""
        table = self.table.select(list(columns))
        each = max(1.0, self._per_row(sized_by))
        row = 0
        for batch in table.to_batches(max_chunksize=max(1, int(chunk_tokens / each))):
            if batch.num_rows:
                yield RowChunk(0, 0, row, batch, round(each * batch.num_rows), joins=row > 0)
            row += batch.num_rows

    def read_file(
        self, index: int, columns: Sequence[str], chunk_tokens: int, sized_by: str
    ) -> Iterator[RowChunk]:
        """The pieces of the only file there is."""
        assert index == 0
        return self.read(columns, chunk_tokens, sized_by)

    def check_unchanged(self) -> None:
        """Nobody changes an Arrow table."""

    def _per_row(self, column: str) -> float:
        chunks = self.table.column(column).chunks
        if not self.rows or not is_list(self.table.schema.field(column).type):
            return 1.0
        return sum(len(chunk.flatten()) for chunk in chunks) / float(self.rows)
