"""Column chunks of another file with the same rows, which a sink copies as its new columns."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from rlpost.io.parquet.checks import metadata_of, read_decoded
from rlpost.io.parquet.checksums import extents_of, stored_checksums
from rlpost.io.parquet.encode import Encoder
from rlpost.io.parquet.footer import (
    TAIL,
    ColumnMeta,
    FileMeta,
    FooterError,
    RowGroup,
    SchemaElement,
    encode,
)
from rlpost.io.parquet.splice_plan import column_metas, plan_splice
from rlpost.io.ranges import close_file, open_file, read_at
from rlpost.io.staged import COPY_BYTES, READ_BYTES
from rlpost.io.threads import map_ordered

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rlpost.io.parquet.checksums import Extent
    from rlpost.io.paths import AnyPath


_REQUESTS = 4  # to a remote file, at a time


class CopiedColumns:
    """Columns of a Parquet file whose chunks can be copied; a context manager that closes the file.

    Args:
        path: the file.
        names: the columns.

    Raises:
        FooterError: the chunks cannot be copied, but the file may be readable.
        pyarrow.ArrowException: the footer is damaged or encrypted, or this is no Parquet file.
        OSError, ReadWriteError: the file cannot be read.
    """

    def __init__(self, path: AnyPath, names: Collection[str]) -> None:
        self.path = path
        data, self.footer = read_decoded(path)
        """FileMetaData of these columns: schema, column orders, and row groups with chunks."""
        extents = extents_of(self.footer.structs(FileMeta.ROW_GROUPS))
        values = stored_checksums(self.footer, extents)
        self.checksums: dict[Extent, int] = dict(zip(extents, values or (), strict=False))
        """Checksums of chunks by extent, as far as the file has any."""
        with ExitStack() as undo:
            self.file, size = open_file(path)
            undo.callback(close_file, self.file)
            empty = Encoder(pa.schema([]))
            end = size - TAIL - len(data)
            self.indexed = plan_splice(self.footer, end, empty, names, ()).indexed
            """The row groups with page indexes."""
            if FileMeta.COLUMN_ORDERS not in self.footer:
                raise FooterError("its footer has no column orders")
            self.groups = self.footer.structs(FileMeta.ROW_GROUPS)
            for element in self.footer.structs(FileMeta.SCHEMA):
                element.pop(SchemaElement.FIELD_ID, None)  # unique within one file only
            for meta in (meta for group in self.groups for meta in column_metas(group)):
                meta.pop(ColumnMeta.BLOOM, None)
                meta.pop(ColumnMeta.BLOOM_LENGTH, None)
            self.fields = metadata_of(encode(self.footer)).schema.to_arrow_schema()
            """The Arrow schema of the columns."""
            undo.pop_all()

    @property
    def rows(self) -> list[int]:
        """The rows of each row group."""
        return [group.integer(RowGroup.ROWS) for group in self.groups]

    def read(self, extent: Extent) -> Iterator[bytes]:
        """Read the bytes of a chunk in blocks; a damaged file may yield fewer.

        Raises:
            OSError, ReadWriteError: the file cannot be read.
        """
        begin, stop = extent
        local = isinstance(self.file, int)
        step = COPY_BYTES if local else READ_BYTES
        fetch = partial(self._block, stop, step)
        yield from map_ordered(fetch, iter(range(begin, stop, step)), 1 if local else _REQUESTS)

    def _block(self, stop: int, step: int, at: int) -> bytes:
        return read_at(self.file, min(step, stop - at), at)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        close_file(self.file)
