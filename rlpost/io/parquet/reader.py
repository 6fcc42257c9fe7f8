"""Opening Parquet files: local ones by their path, remote ones by ranged reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from rlpost.errors import DataError, ReadWriteError
from rlpost.io.parquet.checks import check_utf8, read_metadata
from rlpost.io.paths import RemotePath
from rlpost.io.ranges import PrefetchedFile, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from rlpost.io.paths import AnyPath


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
        self._ranges = PrefetchedFile(RemoteFile(place)) if isinstance(place, RemotePath) else None
        try:
            self.file = pq.ParquetFile(
                place if self._ranges is None else pa.PythonFile(self._ranges, mode="r"),
                metadata=read_metadata(place) if metadata is None else metadata,
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
                self._ranges.announce(number, column_extents(self.file.metadata, number, columns))
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


def column_extents(
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


_BYTES = 32 << 20  # decoded bytes that are held at a time
_ROWS = 1 << 14


def damaged_columns(place: AnyPath, advance: Callable[[int], None]) -> dict[str, str]:
    """Decode every column of a file, with its pages' checksums where it has them.

    One column of one row group is read at a time. Texts must be UTF-8, and a row group must have
    the rows that the footer says. A checksum covers the bytes as they were written: without one,
    bits that changed and still decode are not found.

    Args:
        place: the file.
        advance: is told of rows, when all their columns were read.

    Returns:
        For each column that does not decode: the first row group in which, and why.

    Raises:
        DataError: the footer is damaged.
        ReadWriteError: the file can't be read.
    """
    found: dict[str, str] = {}
    try:
        opened = ParquetReader(place, checksums=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{place}: cannot be read as Parquet: {error}") from None
    with opened as reader:
        footer = reader.file.metadata
        for group in range(footer.num_row_groups):
            for name in dict.fromkeys(reader.file.schema_arrow.names):
                why = None if name in found else _damage(reader, place, group, name)
                if why is not None:
                    found[name] = f"row group {group}: {why}"
            advance(footer.row_group(group).num_rows)
    return found


def _damage(reader: ParquetReader, place: AnyPath, group: int, name: str) -> str | None:
    """Why a column of a row group does not decode; None where it does."""
    footer = reader.file.metadata.row_group(group)
    rows = _BYTES * footer.num_rows // max(footer.total_byte_size, 1)
    try:
        for batch in reader.batches(min(max(rows, 1), _ROWS), group, [name]):
            check_utf8(batch)
    except MemoryError:  # which is one of Arrow's exceptions, too, and says nothing of the file
        raise
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the system's; those of codecs have none
            raise ReadWriteError(f"{place}: cannot be read: {error.strerror or error}") from None
        return str(error).partition("\n")[0]
    return None
