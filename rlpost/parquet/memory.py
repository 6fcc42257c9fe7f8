"""A table in memory, read in pieces as a file would be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlpost.parquet.inputs import InputFile
from rlpost.parquet.ragged import is_list
from rlpost.parquet.source import Piece

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

    def bytes_of(self, columns: Sequence[str]) -> int:
        """Bytes of these columns in memory."""
        return int(self.table.select(list(columns)).nbytes)

    def read(self, columns: Sequence[str], chunk_tokens: int) -> Iterator[Piece]:
        """These columns, in pieces of about `chunk_tokens` list elements."""
        table = self.table.select(list(columns))
        rows = max(1, int(chunk_tokens / max(1.0, self._per_row(table))))
        row = 0
        for batch in table.to_batches(max_chunksize=rows):
            if batch.num_rows:
                yield Piece(0, 0, row, batch)
            row += batch.num_rows

    def read_file(self, index: int, columns: Sequence[str], chunk_tokens: int) -> Iterator[Piece]:
        """The pieces of the only file there is."""
        assert index == 0
        return self.read(columns, chunk_tokens)

    def _per_row(self, table: pa.Table) -> float:
        lists = [field.name for field in table.schema if is_list(field.type)]
        if not lists or not table.num_rows:
            return 1.0
        most = max(
            sum(len(chunk.flatten()) for chunk in table.column(name).chunks) for name in lists
        )
        return float(most) / float(table.num_rows)
