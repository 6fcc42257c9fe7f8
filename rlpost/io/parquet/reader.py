"""Opening Parquet files: local ones by their path, remote ones by ranged reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.io.parquet.checks import checked_metadata
from rlpost.io.places import Remote
from rlpost.io.ranges import Ranges, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rlpost.io.places import AnyPath


_STREAM_BUFFER = 1 << 20  # bytes read at a time of a column chunk, so chunks are never held whole
# Of smaller files chunks may be held whole: then pages that claim to have gigabytes get none.
_SMALL = 64 << 20


class ParquetReader:
    """A Parquet file, open for reading; a context manager.

    Args:
        place: the file.
        metadata: its footer, where that was read already.
        checksums: compare the checksums of pages that have them.

    Raises:
        pyarrow.ArrowException, OSError: a file is damaged or no Parquet file, a local one missing.
        ReadWriteError: a remote file can't be read.
    """

    def __init__(
        self, place: AnyPath, metadata: pq.FileMetaData | None = None, *, checksums: bool = False
    ) -> None:
        self._ranges = Ranges(RemoteFile(place)) if isinstance(place, Remote) else None
        try:
            self.file = pq.ParquetFile(
                place if self._ranges is None else pa.PythonFile(self._ranges, mode="r"),
                metadata=checked_metadata(place) if metadata is None else metadata,
                buffer_size=_STREAM_BUFFER if place.stat().st_size > _SMALL else 0,
                pre_buffer=False,
                page_checksum_verification=checksums,
            )
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close(force=True)
        self._close()

    def batches(self, rows: int, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of a row group, in batches; of a remote file the next group is begun."""
        if self._ranges is not None:
            self._ranges.forget(group)
            for number in range(group, min(group + 2, self.file.metadata.num_row_groups)):
                self._ranges.announce(number, extents(self.file.metadata, number, columns))
        return self._counted(self.file.iter_batches(rows, [group], columns=columns), group)

    def _counted(self, batches: Iterator[Any], group: int) -> Iterator[pa.RecordBatch]:
        """The batches, which must have as many rows as the footer says: pyarrow minds neither."""
        wanted = self.file.metadata.row_group(group).num_rows
        found = 0
        for batch in batches:
            found += batch.num_rows
            if found > wanted:
                break
            yield batch
        if found != wanted:
            more = "more" if found > wanted else f"{found}"
            raise pa.ArrowInvalid(
                f"row group {group} has {more} rows where the footer says {wanted}"
            )

    def _close(self) -> None:
        if self._ranges is not None:
            self._ranges.close()


def footer_of(place: AnyPath) -> pq.FileMetaData:
    """A file's footer; raises as `ParquetReader`."""
    return checked_metadata(place)


def extents(
    footer: pq.FileMetaData, group: int, columns: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Where the chunks of top-level columns begin and end."""
    wanted = {*columns}
    row_group = footer.row_group(group)
    for place in range(row_group.num_columns):
        chunk = row_group.column(place)
        if chunk.path_in_schema.partition(".")[0] in wanted:
            begin = chunk.data_page_offset
            if chunk.has_dictionary_page:
                begin = min(begin, chunk.dictionary_page_offset)
            yield begin, begin + chunk.total_compressed_size
